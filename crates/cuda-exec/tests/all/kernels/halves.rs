//! Matrices of K-quants times many rows in f16.

use tokenmill_cuda_exec::{HalfBands, MatrixLayout, modules::type_suffix};
use tokenmill_gguf::TensorType;
use tokenmill_ptx_sim::{Arguments, Counters, DevicePtr};
use tokenmill_testkit::Random;

use crate::kernels::{
    bench::{NULL, Quantized, Sim, assert_close, random_matrix},
    matvec::dot,
};

const TYPES: [TensorType; 3] = [TensorType::Q4_K, TensorType::Q5_K, TensorType::Q6_K];

/// Relative to the sum of magnitudes, where every number of x is one of f16: sums in f32. Scale times weight of Q6_K is rounded to 11 bits, 2^-11 of
/// each at most, of which a sum of hundreds keeps little.
fn tolerance(ty: TensorType) -> f64 {
    match ty {
        TensorType::Q6_K => 1e-4,
        _ => 5e-6,
    }
}
/// The same where numbers of x are rounded to 11 bits, too.
const ROUNDED: f64 = 2e-4;

/// Rows whose groups have scales that are powers of two, so that f16 has every number.
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

/// Makes quantized rows f16; gives the planes.
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

/// Products of up to three matrices of a type with rows, what plain loops over the quantized rows give, and the launch's counters.
struct Products {
    found: Vec<Vec<f32>>,
    expected: Vec<Vec<(f64, f64)>>,
    counters: Counters,
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
    let mut random = Random::new((n_in + n_outs[0]) as u64);
    let mut sim = Sim::new();
    let quantized = sim.quantized(rows, n_in);
    let exact = sim.dequantized(&quantized, n_rows, n_in);
    let planes = halved(&mut sim, &quantized, n_rows, n_in);
    let [mut matrices, mut outputs, mut biases] = [[NULL; 3]; 3];
    let mut expected = Vec::new();
    for (job, &n_out) in n_outs.iter().enumerate().filter(|(_, n_out)| **n_out > 0) {
        let (file_rows, values) = random_matrix(&mut random, ty, n_out, n_in);
        let bias = random.values(n_out);
        matrices[job] = sim.matrix(ty, n_out, n_in, &file_rows);
        outputs[job] = sim.room(n_rows * n_out * 4);
        if has_bias {
            biases[job] = sim.f32s(&bias);
        }
        let sums = (0..n_rows * n_out).map(|index| {
            let (sum, magnitude) = dot(&values, &exact, n_in, index % n_out, index / n_out);
            let bias = if has_bias {
                f64::from(bias[index % n_out])
            } else {
                0.0
            };
            (sum + bias, magnitude + bias.abs())
        });
        expected.push(sums.collect());
    }
    let mut arguments = Arguments::new();
    for list in [matrices, outputs, biases] {
        arguments = list.into_iter().fold(arguments, Arguments::ptr);
    }
    for n in [n_outs[0], n_outs[1], n_outs[2], n_in, n_rows] {
        arguments = arguments.i32(n as i32);
    }
    arguments = planes.into_iter().fold(arguments, Arguments::ptr);
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
        let left = sim.read_u32s(counts, n_blocks * n_tiles);
        assert!(
            left.iter().all(|&count| count == 0),
            "counters are left as they were"
        );
    }
    let found = (n_outs.iter().zip(outputs)).filter(|(n_out, _)| **n_out > 0);
    let found = found.map(|(n_out, y)| sim.read_f32s(y, n_rows * n_out)).collect();
    Products {
        found,
        expected,
        counters,
    }
}

#[track_caller]
fn check(products: &Products, tolerance: f64, what: &str) {
    for (found, expected) in products.found.iter().zip(&products.expected) {
        assert_close(found, expected, tolerance, what);
    }
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
            check(&products, tolerance(ty), &format!("{ty:?} exact by {n_rows}"));
            let rows = Random::new(4).values(n_rows * n_in);
            let products = multiply(ty, 1, &rows, n_outs, n_in, has_bias);
            check(&products, ROUNDED, &format!("{ty:?} by {n_rows}"));
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
            check(&products, tolerance(ty), &format!("{ty:?} by {n_splits}"));
        }
    }
}

#[test]
fn rounding_to_f16_hardly_adds_to_what_eight_bits_leave_away() {
    let (n_out, n_in, n_rows) = (40, 1024, 33);
    for ty in TYPES {
        let rows = Random::new(6).values(n_rows * n_in);
        let products = multiply(ty, 1, &rows, [n_out, 0, 0], n_in, false);
        let (_, values) = random_matrix(&mut Random::new((n_in + n_out) as u64), ty, n_out, n_in);
        let unrounded: Vec<f64> = rows.iter().map(|&x| f64::from(x)).collect();
        let [mut of_f16, mut of_bytes] = [0.0; 2];
        for index in 0..n_rows * n_out {
            let (right, _) = dot(&values, &unrounded, n_in, index % n_out, index / n_out);
            of_f16 += (f64::from(products.found[0][index]) - right).powi(2);
            of_bytes += (products.expected[0][index].0 - right).powi(2);
        }
        assert!(
            of_f16.sqrt() < 1.02 * of_bytes.sqrt(),
            "{ty:?}: {of_f16} {of_bytes}"
        );
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
            for (found, (expected, magnitude)) in products.found[0].iter().zip(&products.expected[0]) {
                let error = (f64::from(*found) - expected).abs();
                assert!(
                    error <= ROUNDED * magnitude,
                    "{ty:?} by {factor}: {found}, expected {expected}"
                );
            }
        }
    }
}

#[test]
fn products_in_f16_read_weights_once() {
    for ty in TYPES {
        let (n_out, n_in) = (256, 1024);
        let rows = Random::new(8).values(64 * n_in);
        let products = multiply(ty, 1, &rows, [n_out, 0, 0], n_in, false);
        let necessary = MatrixLayout::of(ty, n_out, n_in).unwrap().bytes() as u64 / 32;
        let mut buffers = products.counters.buffers.values();
        let weights =
            buffers.find(|buffer| (necessary * 19 / 20..=necessary).contains(&buffer.unique_loaded_sectors));
        let weights = weights.expect("the weights are read");
        let ratio = weights.loaded_sectors as f64 / weights.unique_loaded_sectors as f64;
        // Scales of superblocks that are in a plane of their own lie together, and come from L1 after the first; of further bits of Q5_K a step takes half
        // a sector.
        let limit = match ty {
            TensorType::Q4_K => 1.0,
            TensorType::Q5_K => 1.2,
            _ => 1.4,
        };
        assert!(ratio <= limit, "{ty:?}: {ratio}");
    }
}

/// Results of a gate and up, and the expected sums.
struct GatedProducts {
    y: Vec<f32>,
    /// Values of the quantized rows.
    quantized: Vec<f64>,
    /// Sums of gate and of up, with their magnitudes.
    sums: Vec<[(f64, f64); 2]>,
}

/// A gate and up of a type in f16.
fn gated(ty: TensorType, rows: &[f32], n_out: usize, n_in: usize) -> GatedProducts {
    let n_rows = rows.len() / n_in;
    let mut random = Random::new(9);
    let mut sim = Sim::new();
    let quantized = sim.quantized(rows, n_in);
    let exact = sim.dequantized(&quantized, n_rows, n_in);
    let planes = halved(&mut sim, &quantized, n_rows, n_in);
    let matrices = [0, 1].map(|_| random_matrix(&mut random, ty, n_out, n_in));
    let [gate, up] = [0, 1].map(|index: usize| sim.matrix(ty, n_out, n_in, &matrices[index].0));
    let bias_values = random.values(n_out);
    let bias = sim.f32s(&bias_values);
    let y = sim.room(n_rows * n_out * 4);
    let output = sim.room_quantized(n_rows, n_out);
    let arguments = Arguments::new().ptr(gate).ptr(up).i32(n_out as i32);
    let arguments = (arguments.ptr(bias).ptr(NULL).i32(0).ptr(y)).ptr(output.bytes);
    let arguments = (arguments.ptr(output.scales)).i32(n_in as i32).i32(n_rows as i32);
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
        &planes.into_iter().fold(arguments, Arguments::ptr),
    );
    assert_eq!(counters.bank_conflicts(), 0, "{ty:?}");
    let sums = (0..n_rows * n_out).map(|index| {
        let mut sums =
            [0, 1].map(|which: usize| dot(&matrices[which].1, &exact, n_in, index % n_out, index / n_out));
        sums[0].0 += f64::from(bias_values[index % n_out]);
        sums
    });
    GatedProducts {
        y: sim.read_f32s(y, n_rows * n_out),
        quantized: sim.dequantized(&output, n_rows, n_out),
        sums: sums.collect(),
    }
}

#[test]
fn a_gate_and_up_in_f16_match_a_plain_loop_and_are_quantized() {
    let (n_out, n_in, n_rows) = (96, 3 * 256, 67);
    for ty in TYPES {
        let rows = exact_rows(&mut Random::new(10), n_rows * n_in);
        let rows: Vec<f32> = rows.iter().map(|x| x / 500.0).collect();
        let products = gated(ty, &rows, n_out, n_in);
        let expected: Vec<(f64, f64)> = (products.sums.iter())
            .map(|[(gate, gate_magnitude), (up, up_magnitude)]| {
                let value = gate / (1.0 + (-gate).exp()) * up;
                // No slope of SiLU is above 1.1.
                (value, 1.1 * gate_magnitude * up.abs() + up_magnitude * gate.abs())
            })
            .collect();
        assert_close(&products.y, &expected, ROUNDED, &format!("{ty:?}"));
        for (group, values) in products.y.chunks(32).enumerate() {
            let peak = values.iter().fold(0f32, |peak, x| peak.max(x.abs()));
            for (i, value) in values.iter().enumerate() {
                let error = (f64::from(*value) - products.quantized[group * 32 + i]).abs();
                assert!(error <= f64::from(peak) / 127.0 * 0.501, "{ty:?} {group} {i}");
            }
        }
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
