//! Compares every kernel with its scalar twin, bit for bit, and the twin with exact arithmetic, over random rows of
//! every length from none to several groups of blocks with a ragged tail.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokenmill_quant::formats::{BlockQ8_1, BlockQ8K};
use tokenmill_quant::{ActivationFormat, CpuFeatures, F16Bits, Format};

/// A row of weights with any bit pattern whose values are finite and not huge, and a row of activations.
#[derive(Debug)]
struct Rows {
    weights: Vec<u8>,
    activations: Vec<f32>,
}

/// Small deterministic generator, seeded by proptest: rows are too long to shrink byte by byte.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    /// A value in -1..1.
    fn value(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

fn rows(format: &Format, n_blocks: usize, seed: u64) -> Rows {
    let mut random = Random(seed);
    let n_values = n_blocks * format.block_len();
    let mut weights = Vec::new();
    while weights.len() < n_blocks * format.block_bytes() {
        let block: Vec<u8> = (0..format.block_bytes()).map(|_| random.next() as u8).collect();
        let mut decoded = vec![0.0; format.block_len()];
        format.dequantize_row(&block, &mut decoded).unwrap();
        if decoded.iter().all(|x| x.abs() < 1e9) {
            weights.extend(block);
        }
    }
    let magnitude = 1e3_f32.powf(random.value());
    let activations = (0..n_values).map(|_| random.value() * magnitude).collect();
    Rows { weights, activations }
}

fn quantize(format: ActivationFormat, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; format.row_bytes(values.len()).unwrap()];
    format
        .quantize_row(CpuFeatures::scalar(), values, &mut bytes)
        .unwrap();
    bytes
}

/// Runs a test on random rows: `lengths` are blocks of 32 or fewer weights, and superblocks get an eighth.
fn for_random_rows(max_blocks: usize, test: impl Fn(&Format, &Rows)) {
    for format in Format::all() {
        let max_blocks = if format.block_len() == 256 {
            max_blocks.div_ceil(8)
        } else {
            max_blocks
        };
        let mut runner = TestRunner::new(Config {
            failure_persistence: None,
            ..Config::with_cases(200)
        });
        let rows = (0..=max_blocks, any::<u64>()).prop_map(|(n_blocks, seed)| rows(format, n_blocks, seed));
        runner
            .run(&rows, |rows| {
                test(format, &rows);
                Ok(())
            })
            .unwrap();
    }
}

#[test]
fn every_instruction_set_returns_the_same_bits() {
    println!("paths: {:?}", CpuFeatures::each_path().collect::<Vec<_>>());
    for_random_rows(100, |format, rows| {
        let activations = quantize(format.activation(), &rows.activations);
        let expected = format.dot(CpuFeatures::scalar(), &rows.weights, &activations);
        for features in CpuFeatures::each_path() {
            let found = format.dot(features, &rows.weights, &activations);
            assert_eq!(
                found.to_bits(),
                expected.to_bits(),
                "{} {features}: {found} {expected}",
                format.name()
            );
        }
    });
}

#[test]
fn every_instruction_set_decodes_to_the_same_bits() {
    for_random_rows(20, |format, rows| {
        let decode = |features| {
            let mut out = vec![0.0; rows.activations.len()];
            format
                .dequantize_row_with(features, &rows.weights, &mut out)
                .unwrap();
            out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        for features in CpuFeatures::each_path() {
            assert_eq!(
                decode(features),
                decode(CpuFeatures::scalar()),
                "{} {features}",
                format.name()
            );
        }
    });
}

#[test]
fn every_instruction_set_quantizes_activations_to_the_same_bits() {
    for_random_rows(20, |format, rows| {
        let expected = quantize(format.activation(), &rows.activations);
        for features in CpuFeatures::each_path() {
            let mut found = vec![0; expected.len()];
            format
                .activation()
                .quantize_row(features, &rows.activations, &mut found)
                .unwrap();
            assert!(found == expected, "{:?} {features}", format.activation());
        }
    });
}

/// What quantized activations stand for.
fn decode_activations(format: ActivationFormat, bytes: &[u8]) -> Vec<f64> {
    match format {
        ActivationFormat::Q8_1 => (bytemuck::cast_slice::<u8, BlockQ8_1>(bytes).iter())
            .flat_map(|block| {
                block
                    .quants
                    .map(|q| f64::from(block.scale.to_f32()) * f64::from(q))
            })
            .collect(),
        ActivationFormat::Q8K => (bytemuck::cast_slice::<u8, BlockQ8K>(bytes).iter())
            .flat_map(|block| block.quants.map(|q| f64::from(block.scale()) * f64::from(q)))
            .collect(),
        _ => {
            let format = (Format::all()
                .iter()
                .find(|f| f.name().eq_ignore_ascii_case(format.name())))
            .unwrap();
            let mut out = vec![0.0; bytes.len() / format.block_bytes() * format.block_len()];
            format.dequantize_row(bytes, &mut out).unwrap();
            out.into_iter().map(f64::from).collect()
        }
    }
}

/// One block of integers rounds a handful of times, each within 2^-24 of the magnitudes; an error of one in an integer
/// sum would be larger. Decoded weights are rounded themselves, by as much. Rows of plain floats are one product here.
/// Weights so small that products are subnormal round to fewer bits and are left out.
///
/// With Q8_1 the weights' minimum meets the activations' sum as it is stored, rounded to half precision, and not the
/// quants; so the exact value is made of the same two parts, and both count for the magnitude.
#[test]
fn one_block_is_exact_but_for_rounding() {
    for_random_rows(1, |format, rows| {
        let bytes = quantize(format.activation(), &rows.activations);
        let mut weights = vec![0.0; rows.activations.len()];
        format.dequantize_row(&rows.weights, &mut weights).unwrap();
        if weights.iter().any(|w| *w != 0.0 && w.abs() < 1e-25) {
            return;
        }
        let (mut expected, mut magnitude) = (0.0, 0.0);
        let mut min = 0.0;
        if format.activation() == ActivationFormat::Q8_1 && !weights.is_empty() {
            // Q4_1 and Q5_1 begin alike: the scale, then the minimum.
            min = f64::from(bytemuck::pod_read_unaligned::<F16Bits>(&rows.weights[2..4]).to_f32());
            expected = min * f64::from(bytemuck::from_bytes::<BlockQ8_1>(&bytes).sum.to_f32());
        }
        for (&w, a) in weights
            .iter()
            .zip(decode_activations(format.activation(), &bytes))
        {
            expected += (f64::from(w) - min) * a;
            magnitude += (f64::from(w).abs() + 2.0 * min.abs()) * a.abs();
        }
        let found = f64::from(format.dot(CpuFeatures::scalar(), &rows.weights, &bytes));
        assert!(
            (found - expected).abs() <= 4.8e-7 * magnitude,
            "{}: {found} instead of {expected}, magnitudes {magnitude}",
            format.name()
        );
    });
}

/// Values that are not finite, huge, tiny or mixed: nothing panics, and finite blocks beside them are not touched.
#[test]
fn hostile_values_do_not_panic() {
    let hostile = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN_POSITIVE,
        1e-45,
        -0.0,
        1.0,
    ];
    for format in Format::all() {
        for (i, &first) in hostile.iter().enumerate() {
            let mut values = vec![0.25; 512];
            values[..256].fill(first);
            values[3] = hostile[(i + 1) % hostile.len()];
            let mut bytes = vec![0; format.row_bytes(512).unwrap()];
            format.quantize_row(&values, &mut bytes).unwrap();
            let mut decoded = vec![0.0; 512];
            format.dequantize_row(&bytes, &mut decoded).unwrap();
            assert!(
                decoded[256..].iter().all(|x| (x - 0.25).abs() < 0.02),
                "{} {first}",
                format.name()
            );
            for features in CpuFeatures::each_path() {
                let mut activations = vec![0; format.activation().row_bytes(512).unwrap()];
                format
                    .activation()
                    .quantize_row(features, &values, &mut activations)
                    .unwrap();
                let _ = format.dot(features, &bytes, &activations);
            }
        }
    }
}
