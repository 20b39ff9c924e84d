//! Matrices of K-quants times many rows in f16.

use tokenmill_cuda_exec::{HalfBands, modules::type_suffix};
use tokenmill_gguf::TensorType;
use tokenmill_ptx_sim::{Arguments, DevicePtr};
use tokenmill_testkit::Random;

use crate::kernels::{
    bench::{NULL, Quantized, Sim, assert_relative, random_matrix},
    many_rows::{GateAndUp, GatedProducts, Operands, Products, assert_reset, reads_of_weights, silu},
};

const TYPES: [TensorType; 3] = [TensorType::Q4_K, TensorType::Q5_K, TensorType::Q6_K];

/// Tolerance relative to the sum of magnitudes if f16 holds every number of x exactly: sums are in f32. Scale times weight of Q6_K is rounded to 11
/// bits, at most 2^-11 each, which mostly cancel in a sum of hundreds.
fn tolerance(ty: TensorType) -> f64 {
    match ty {
        TensorType::Q6_K => 1e-4,
        _ => 5e-6,
    }
}
/// The same if numbers of x are rounded to 11 bits, too.
const ROUNDED: f64 = 2e-4;

/// Makes rows whose groups have scales that are powers of two, so that f16 holds every number.
fn exact_rows(random: &mut Random, n: usize) -> Vec<f32> {
    let mut rows = random.values(n);
    let peak = rows.iter().fold(0f32, |peak, x| peak.max(x.abs()));
    for (group, values) in rows.chunks_mut(32).enumerate() {
        let scale = 2f32.powi(-((group * 5 % 3) as i32));
        for value in &mut *values {
            *value = (*value / peak * 127.0).round() * scale;
        }
        values[group % 32] = 127.0 * scale;
    }
    rows
}

/// Converts quantized rows to f16; returns the planes.
fn halved(sim: &mut Sim, rows: &Quantized, n_rows: usize, n_in: usize) -> [DevicePtr; 3] {
    let padded = n_rows.next_multiple_of(HalfBands::COLUMNS);
    let planes = [2 * n_in, n_in / 8, n_in / 64].map(|row_bytes| sim.room(padded * row_bytes));
    let mut arguments = Arguments::new().ptr(rows.bytes).ptr(rows.scales);
    arguments = arguments.i32(n_in as i32).i32(n_rows as i32);
    arguments = planes.into_iter().fold(arguments, Arguments::ptr);
    let grid = [padded, (n_in / 256).div_ceil(8), 1];
    let counters = sim.launch("halves", "halve_rows", grid, 256, 0, &arguments);
    assert_eq!(counters.bank_conflicts(), 0);
    planes
}

fn multiply(
    ty: TensorType,
    n_splits: usize,
    rows: &[f32],
    n_outs: [usize; 3],
    n_in: usize,
    has_bias: bool,
) -> Products {
    let n_rows = rows.len() / n_in;
    let mut sim = Sim::new();
    let quantized = sim.quantized(rows, n_in);
    let exact = sim.dequantized(&quantized, n_rows, n_in);
    let planes = halved(&mut sim, &quantized, n_rows, n_in);
    let n_biased = if has_bias { 3 } else { 0 };
    let operands = Operands::new(&mut sim, ty, &exact, n_outs, n_in, n_biased, |random, n_out| {
        random_matrix(random, ty, n_out, n_in)
    });
    let mut arguments = planes.into_iter().fold(operands.arguments(), Arguments::ptr);
    let n_blocks = n_outs.iter().map(|n_out| n_out.div_ceil(HalfBands::ROWS)).sum();
    let n_tiles = n_rows.div_ceil(HalfBands::COLUMNS);
    let mut name = "half_band_n64";
    let mut counts = NULL;
    if n_splits > 1 {
        name = "half_split_n64";
        let parts = sim.room(n_blocks * n_tiles * n_splits * HalfBands::ROWS * HalfBands::COLUMNS * 4);
        counts = sim.u32s(&vec![0; n_blocks * n_tiles]);
        let each = (n_in / 256).div_ceil(n_splits).next_multiple_of(2);
        arguments = arguments.ptr(parts).ptr(counts).i32(each as i32);
    }
    let counters = sim.launch(
        &format!("matmul_halves_{}", type_suffix(ty).unwrap()),
        name,
        [n_tiles, n_blocks, n_splits],
        128,
        HalfBands::of(ty).unwrap().shared_bytes(),
        &arguments,
    );
    assert_eq!(counters.bank_conflicts(), 0, "{ty:?} {name}");
    if n_splits > 1 {
        assert_reset(&sim, counts, n_blocks * n_tiles);
    }
    operands.products(&sim, counters)
}

#[test]
fn products_in_f16_match_a_plain_loop() {
    for ty in TYPES {
        // Ragged in rows of both, an odd number of superblocks, and thread blocks of further rows of x.
        for (n_rows, n_outs, n_in, has_bias) in
            [(67, [150, 33, 5], 5 * 256, true), (33, [16, 0, 0], 256, false)]
        {
            let rows = exact_rows(&mut Random::new(3), n_rows * n_in);
            let products = multiply(ty, 1, &rows, n_outs, n_in, has_bias);
            products.check(tolerance(ty), &format!("{ty:?} exact by {n_rows}"));
            let rows = Random::new(4).values(n_rows * n_in);
            let products = multiply(ty, 1, &rows, n_outs, n_in, has_bias);
            products.check(ROUNDED, &format!("{ty:?} by {n_rows}"));
        }
    }
}

#[test]
fn products_in_f16_whose_columns_are_shared_match_a_plain_loop() {
    for ty in TYPES {
        for (n_splits, n_supers) in [(2, 3), (3, 5), (4, 7)] {
            let n_in = n_supers * 256;
            let rows = exact_rows(&mut Random::new(5), 67 * n_in);
            let products = multiply(ty, n_splits, &rows, [150, 33, 5], n_in, true);
            products.check(tolerance(ty), &format!("{ty:?} by {n_splits}"));
        }
    }
}

#[test]
fn rounding_to_f16_hardly_adds_to_what_eight_bits_leave_away() {
    let (n_out, n_in, n_rows) = (40, 1024, 33);
    for ty in TYPES {
        let rows = Random::new(6).values(n_rows * n_in);
        let products = multiply(ty, 1, &rows, [n_out, 0, 0], n_in, false);
        products.check_rounding(&rows, n_in, &format!("{ty:?}"));
    }
}

#[test]
fn rows_in_f16_may_be_large_small_and_zero() {
    let n_in = 512;
    for factor in [1e30, 1e-30, 0.0] {
        let rows = exact_rows(&mut Random::new(7), 40 * n_in);
        let rows: Vec<f32> = rows.iter().map(|x| x * factor).collect();
        for ty in TYPES {
            let products = multiply(ty, 1, &rows, [20, 0, 0], n_in, false);
            let what = format!("{ty:?} by {factor}");
            assert_relative(&products.found[0], &products.expected[0], ROUNDED, &what);
        }
    }
}

#[test]
fn products_in_f16_read_weights_once() {
    for ty in TYPES {
        let (n_out, n_in) = (256, 1024);
        let rows = Random::new(8).values(64 * n_in);
        let products = multiply(ty, 1, &rows, [n_out, 0, 0], n_in, false);
        let ratio = reads_of_weights(&products.counters, ty, n_out, n_in);
        // Scales of superblocks in a separate plane are adjacent, and come from L1 after the first; of the further bits of Q5_K a step takes half a
        // sector.
        let limit = match ty {
            TensorType::Q4_K => 1.0,
            TensorType::Q5_K => 1.2,
            _ => 1.4,
        };
        assert!(ratio <= limit, "{ty:?}: {ratio}");
    }
}

/// Returns a gate and up of a type in f16.
fn gated(ty: TensorType, rows: &[f32], n_out: usize, n_in: usize) -> GatedProducts {
    let n_rows = rows.len() / n_in;
    let mut sim = Sim::new();
    let quantized = sim.quantized(rows, n_in);
    let exact = sim.dequantized(&quantized, n_rows, n_in);
    let planes = halved(&mut sim, &quantized, n_rows, n_in);
    let operands = GateAndUp::new(&mut sim, ty, &exact, n_out, n_in, true);
    let counters = sim.launch(
        &format!("matmul_halves_{}", type_suffix(ty).unwrap()),
        "half_gated_n64",
        [
            n_rows.div_ceil(HalfBands::COLUMNS),
            n_out.div_ceil(HalfBands::GATED_ROWS),
            1,
        ],
        128,
        HalfBands::of(ty).unwrap().shared_bytes(),
        &planes.into_iter().fold(operands.arguments(0), Arguments::ptr),
    );
    assert_eq!(counters.bank_conflicts(), 0, "{ty:?}");
    operands.products(&sim)
}

#[test]
fn a_gate_and_up_in_f16_match_a_plain_loop_and_are_quantized() {
    let (n_out, n_in, n_rows) = (96, 3 * 256, 67);
    for ty in TYPES {
        let rows = exact_rows(&mut Random::new(10), n_rows * n_in);
        let rows: Vec<f32> = rows.iter().map(|x| x / 500.0).collect();
        gated(ty, &rows, n_out, n_in).check(silu, ROUNDED, &format!("{ty:?}"));
    }
}

#[test]
fn bits_of_a_row_in_f16_do_not_depend_on_how_many_rows_there_are() {
    let (n_out, n_in) = (40, 3 * 256);
    let rows = Random::new(11).values(130 * n_in);
    for ty in TYPES {
        let results = [33, 64, 130].map(|n_rows| {
            let products = multiply(ty, 1, &rows[..n_rows * n_in], [n_out, 0, 0], n_in, false);
            let GatedProducts { y, quantized, .. } = gated(ty, &rows[..n_rows * n_in], 32, n_in);
            (
                products.found[0][..33 * n_out].to_vec(),
                y[..33 * 32].to_vec(),
                quantized[..33 * 32].to_vec(),
            )
        });
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{ty:?}");
    }
}
