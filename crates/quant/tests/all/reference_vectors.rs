//! Compares decoding and encoding with ggml's own results, bit for bit.
//!
//! There are two sets of vectors: a core set of ordinary weights and random blocks, and a full set of rows that are hard to
//! quantize.

use safetensors::SafeTensors;
use tokenmill_quant::{CpuFeatures, Format};
use tokenmill_testkit::Comparisons;

/// Reads the vectors of each format in both sets, as far as they exist: all formats except plain floats.
fn vectors(comparisons: &mut Comparisons) -> Vec<(&'static Format, Vec<u8>)> {
    let mut vectors = Vec::new();
    for set in ["vectors", "types"] {
        for format in Format::all().iter().filter(|format| format.name() != "F32") {
            if let Some(path) = comparisons.find(&format!("{set}/{}.safetensors", format.name())) {
                vectors.push((format, std::fs::read(path).unwrap()));
            }
        }
    }
    vectors
}

fn bytes(file: &SafeTensors<'_>, name: &str) -> Vec<u8> {
    file.tensor(name)
        .unwrap_or_else(|error| panic!("{name}: {error}"))
        .data()
        .to_vec()
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let data = bytes(file, name);
    data.chunks_exact(4)
        .map(|x| f32::from_le_bytes(x.try_into().unwrap()))
        .collect()
}

#[track_caller]
fn assert_same_bits(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(
            found.to_bits(),
            expected.to_bits(),
            "{what}[{i}]: {found:e} instead of {expected:e}"
        );
    }
}

#[test]
fn decoding_is_exact() {
    let mut comparisons = Comparisons::of("decoded blocks");
    for (format, data) in vectors(&mut comparisons) {
        let file = SafeTensors::deserialize(&data).unwrap();
        for (blocks, values) in [("blocks", "dequant"), ("random_blocks", "random_dequant")] {
            let (blocks, expected) = (bytes(&file, blocks), floats(&file, values));
            for features in CpuFeatures::each_path() {
                let mut found = vec![0.0; expected.len()];
                format.dequantize_row_with(features, &blocks, &mut found).unwrap();
                assert_same_bits(
                    &format!("{} {values} {features}", format.name()),
                    &found,
                    &expected,
                );
            }
        }
        comparisons.compared(1);
    }
}

#[test]
fn encoding_is_exact() {
    let mut comparisons = Comparisons::of("encoded blocks");
    for (format, data) in vectors(&mut comparisons) {
        if !format.has_encoder() {
            continue;
        }
        let file = SafeTensors::deserialize(&data).unwrap();
        let (values, expected) = (floats(&file, "input"), bytes(&file, "blocks"));
        let mut found = vec![0; expected.len()];
        format.quantize_row(&values, &mut found).unwrap();
        let wrong = (found
            .chunks(format.block_bytes())
            .zip(expected.chunks(format.block_bytes())))
        .position(|(found, expected)| found != expected);
        assert_eq!(wrong, None, "first wrong block of {}", format.name());
        comparisons.compared(1);
    }
}
