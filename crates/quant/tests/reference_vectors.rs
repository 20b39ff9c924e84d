//! Compares decoding and encoding with ggml's own results, bit for bit.
//!
//! The vectors are read from the folder that `TOKENMILL_TEST_DATA` names; without it these tests say so and pass.

use safetensors::SafeTensors;
use tokenmill_quant::{CpuFeatures, Format};
use tokenmill_testkit::test_data;

/// Reads `types/NAME.safetensors`, or says that there is none to read.
fn vectors(name: &str) -> Option<Vec<u8>> {
    let path = test_data(&format!("vectors of {name}"))?
        .join("types")
        .join(format!("{name}.safetensors"));
    Some(std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
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

/// Formats that the reference has vectors for: all but plain floats.
fn quantized_formats() -> impl Iterator<Item = &'static Format> {
    Format::all().iter().filter(|format| format.name() != "F32")
}

#[test]
fn decoding_is_exact() {
    for format in quantized_formats() {
        let Some(data) = vectors(format.name()) else {
            return;
        };
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
    }
}

#[test]
fn encoding_is_exact() {
    for format in quantized_formats() {
        let Some(data) = vectors(format.name()) else {
            return;
        };
        let file = SafeTensors::deserialize(&data).unwrap();
        let (values, expected) = (floats(&file, "input"), bytes(&file, "blocks"));
        let mut found = vec![0; expected.len()];
        format.quantize_row(&values, &mut found).unwrap();
        let wrong = (found
            .chunks(format.block_bytes())
            .zip(expected.chunks(format.block_bytes())))
        .position(|(found, expected)| found != expected);
        assert_eq!(wrong, None, "first wrong block of {}", format.name());
    }
}
