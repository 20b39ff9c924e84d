//! Compares decoding on each instruction set with scalar code, bit for bit, over random rows of every length from none
//! to several groups of blocks with a ragged tail; and feeds the encoders hostile values.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokenmill_quant::{CpuFeatures, Format};
use tokenmill_testkit::Random;

/// Blocks with any bit pattern whose values are finite and not huge.
fn rows(format: &Format, n_blocks: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut weights = Vec::new();
    while weights.len() < n_blocks * format.block_bytes() {
        let block: Vec<u8> = (0..format.block_bytes()).map(|_| random.bits() as u8).collect();
        let mut decoded = vec![0.0; format.block_len()];
        format.dequantize_row(&block, &mut decoded).unwrap();
        if decoded.iter().all(|x| x.abs() < 1e9) {
            weights.extend(block);
        }
    }
    weights
}

/// Runs a test on random rows: `lengths` are counts of blocks of 32 or fewer weights; superblocks get an eighth.
fn for_random_rows(max_blocks: usize, test: impl Fn(&Format, &[u8])) {
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
fn every_instruction_set_decodes_to_the_same_bits() {
    for_random_rows(20, |format, rows| {
        let decode = |features| {
            let mut out = vec![0.0; rows.len() / format.block_bytes() * format.block_len()];
            format.dequantize_row_with(features, rows, &mut out).unwrap();
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

/// Values that are not finite, huge, tiny or mixed: nothing panics, and finite blocks next to them are not touched.
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
    for format in Format::all().iter().filter(|format| format.has_encoder()) {
        let round_trip = |values: &[f32]| {
            let mut bytes = vec![0; format.row_bytes(values.len()).unwrap()];
            format.quantize_row(values, &mut bytes).unwrap();
            let mut decoded = vec![0.0; values.len()];
            format.dequantize_row(&bytes, &mut decoded).unwrap();
            decoded
        };
        let alone = round_trip(&[0.25; 256]);
        assert!(alone.iter().all(|x| x.is_finite()), "{}", format.name());
        for (i, &first) in hostile.iter().enumerate() {
            let mut values = vec![0.25; 512];
            values[..256].fill(first);
            values[3] = hostile[(i + 1) % hostile.len()];
            assert_eq!(round_trip(&values)[256..], alone, "{} {first}", format.name());
        }
    }
}
