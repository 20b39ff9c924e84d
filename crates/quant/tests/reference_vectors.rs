//! Compares decoding, encoding and dot products with ggml's own results, bit for bit where it computes exactly.
//!
//! The vectors are read from the folder that `TOKENMILL_TEST_DATA` names; without it these tests say so and pass.

use std::{
    io::{Write, stderr},
    path::PathBuf,
};

use safetensors::SafeTensors;
use tokenmill_quant::{ActivationFormat, CpuFeatures, Format};

/// Reads `types/NAME.safetensors`, or says that there is none to read.
fn vectors(name: &str) -> Option<Vec<u8>> {
    let Some(folder) = std::env::var_os("TOKENMILL_TEST_DATA") else {
        // Not `eprintln!`, which the test harness shows of failed tests only.
        let _ = writeln!(
            stderr(),
            "skipped: TOKENMILL_TEST_DATA does not name the folder of test data"
        );
        return None;
    };
    let path = PathBuf::from(folder)
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

#[test]
fn activations_are_exact() {
    let Some(data) = vectors("activations") else {
        return;
    };
    let file = SafeTensors::deserialize(&data).unwrap();
    let values = floats(&file, "input");
    for format in [
        ActivationFormat::Q8_0,
        ActivationFormat::Q8_1,
        ActivationFormat::Q8K,
    ] {
        let expected = bytes(&file, format.name());
        for features in CpuFeatures::each_path() {
            let mut found = vec![0; expected.len()];
            format.quantize_row(features, &values, &mut found).unwrap();
            assert!(found == expected, "{} {features}", format.name());
        }
    }
}

/// The expected value is exact for the quantized activations, so what is left is the rounding of our f32 sums. They
/// have at most 32 terms a lane and 5 levels of lanes, each within 2^-24 of the terms' magnitudes: 40 * 2^-24 = 2.4e-6
/// of the sum of magnitudes. With Q8_1 the reference takes `min * sum` from unrounded sums, where the format keeps 11
/// bits: 2^-12 = 2.5e-4.
#[test]
fn dots_are_near_the_exact_ones() {
    let Some(data) = vectors("dots") else { return };
    let file = SafeTensors::deserialize(&data).unwrap();
    let values = floats(&file, "act");
    for format in quantized_formats().filter(|format| format.activation() != ActivationFormat::F32) {
        let weights_data = vectors(format.name()).unwrap();
        let weights_file = SafeTensors::deserialize(&weights_data).unwrap();
        let (weights, decoded) = (bytes(&weights_file, "blocks"), floats(&weights_file, "dequant"));
        let activation = format.activation().name();
        let activations = bytes(&file, &format!("act_{activation}"));
        let expected = floats(&file, &format!("{}.{activation}_act", format.name()));
        let tolerance = if format.activation() == ActivationFormat::Q8_1 {
            2.5e-4
        } else {
            2.4e-6
        };
        for (row, &expected) in expected.iter().enumerate() {
            let magnitude: f32 = (decoded.chunks(1024).nth(row).unwrap().iter())
                .zip(values.chunks(1024).nth(row).unwrap())
                .map(|(w, x)| (w * x).abs())
                .sum();
            let part = |bytes: &[u8]| bytes[bytes.len() / 8 * row..bytes.len() / 8 * (row + 1)].to_vec();
            for features in CpuFeatures::each_path() {
                let found = format.dot(features, &part(&weights), &part(&activations));
                assert!(
                    (found - expected).abs() <= tolerance * magnitude,
                    "{} row {row} {features}: {found} instead of {expected}, terms' magnitudes {magnitude}",
                    format.name()
                );
            }
        }
    }
}
