//! Quantized matrices times many rows by matrix operations of warpgroups.

use tokenmill_cuda_exec::{
    MatrixLayout, Wide,
    modules::{WIDE, type_suffix},
};
use tokenmill_gguf::TensorType;
use tokenmill_ptx_sim::{Arguments, Counters, DevicePtr};
use tokenmill_quant::Format;
use tokenmill_testkit::Random;

use crate::{
    grid::pairs,
    kernels::{
        bench::{NULL, Quantized, Sim, assert_close, random_matrix},
        matvec::dot,
    },
};

/// All types that have such products.
const TYPES: [TensorType; 13] = WIDE;
/// Some of each kind: K-quants in strips, bytes, nibbles that are added to, scales by 16, and exponents.
const SOME: [TensorType; 7] = [
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::Q8_0,
    TensorType::Q5_1,
    TensorType::Q2_K,
    TensorType::MXFP4,
];
/// Rows of a tile of x.
const TILE_ROWS: usize = 64;

/// Tolerance relative to the sum of magnitudes: weights are rounded to 11 bits, up to three times, and so is
/// x. Errors of 2^-11 mostly cancel in a sum of hundreds.
const ROUNDED: f64 = 3e-4;

/// Rows that are written of tiles, as the program makes them: two or four thread blocks of 8 for the kernels that take all of up to 16 or 32.
fn n_written(n_rows: usize, width: usize) -> usize {
    if width < TILE_ROWS && n_rows <= width {
        width
    } else {
        n_rows.next_multiple_of(TILE_ROWS)
    }
}

/// Makes tiles of quantized rows, the first `n_written` of them with the zeros after them, and returns tiles and
/// powers. The rest is left as NaN.
fn tiles(
    sim: &mut Sim,
    rows: &Quantized,
    [n_rows, n_written]: [usize; 2],
    n_in: usize,
    n_places: usize,
) -> [DevicePtr; 2] {
    let padded = n_rows.next_multiple_of(TILE_ROWS);
    let planes = [padded * n_in * 2, padded * 4].map(|bytes| sim.bytes(&vec![0xff; bytes]));
    let mut arguments = Arguments::new().ptr(rows.bytes).ptr(rows.scales);
    arguments = arguments.i32(n_in as i32).i32(n_rows as i32);
    arguments = planes.into_iter().fold(arguments, Arguments::ptr);
    let counters = sim.launch(
        "wide_rows",
        "wide_tiles",
        [n_written / 8, n_places, 1],
        256,
        0,
        &arguments,
    );
    assert_eq!(counters.bank_conflicts(), 0);
    planes
}

/// Products of up to three matrices of a type with rows, what plain loops over the quantized rows give, and the launch's counters.
struct Products {
    found: Vec<Vec<f32>>,
    expected: Vec<Vec<(f64, f64)>>,
    counters: Counters,
}

/// `matrix` makes rows as a file has them and their values.
fn multiply_by(
    ty: TensorType,
    [width, each]: [usize; 2],
    rows: &[f32],
    n_outs: [usize; 3],
    n_in: usize,
    mut matrix: impl FnMut(&mut Random, usize) -> (Vec<u8>, Vec<f32>),
) -> Products {
    let n_rows = rows.len() / n_in;
    let mut random = Random::new((n_in + n_outs[0]) as u64);
    let mut sim = Sim::new();
    let quantized = sim.quantized(rows, n_in);
    let exact = sim.dequantized(&quantized, n_rows, n_in);
    let planes = tiles(&mut sim, &quantized, [n_rows, n_written(n_rows, width)], n_in, 2);
    let [mut matrices, mut outputs, mut biases] = [[NULL; 3]; 3];
    let mut expected = Vec::new();
    for (job, &n_out) in n_outs.iter().enumerate().filter(|(_, n_out)| **n_out > 0) {
        let (file_rows, values) = matrix(&mut random, n_out);
        // The last has none.
        let bias = if job < 2 { random.values(n_out) } else { Vec::new() };
        matrices[job] = sim.matrix(ty, n_out, n_in, &file_rows);
        outputs[job] = sim.room(n_rows * n_out * 4);
        if job < 2 {
            biases[job] = sim.f32s(&bias);
        }
        let sums = (0..n_rows * n_out).map(|index| {
            let (sum, magnitude) = dot(&values, &exact, n_in, index % n_out, index / n_out);
            let bias = bias.get(index % n_out).copied().map_or(0.0, f64::from);
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
    let n_bands: usize = n_outs.iter().map(|n_out| n_out.div_ceil(Wide::ROWS)).sum();
    let (n_places, n_splits) = (n_bands * n_rows.div_ceil(width), (n_in / 256).div_ceil(each));
    let [mut parts, mut counts] = [NULL; 2];
    if n_splits > 1 {
        parts = sim.room(n_places * n_splits * Wide::ROWS * width * 4);
        counts = sim.u32s(&vec![0; n_places]);
    }
    let counters = sim.launch(
        &format!("matmul_wide_{}", type_suffix(ty).unwrap()),
        &format!("wide_band_n{width}"),
        [n_rows.div_ceil(width), n_bands, n_splits],
        256,
        Wide::shared_bytes(width),
        &arguments.ptr(parts).ptr(counts).i32(each as i32),
    );
    assert_eq!(counters.bank_conflicts(), 0, "{ty:?} by {width}");
    if n_splits > 1 {
        let left = sim.read_u32s(counts, n_places);
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

/// Cases of types that have kernels of their width.
fn of_types<C: Copy>(
    types: &[TensorType],
    cases: &[C],
    width: fn(&C) -> usize,
) -> impl Iterator<Item = (TensorType, C)> {
    (types.iter())
        .flat_map(|&ty| cases.iter().map(move |&case| (ty, case)))
        .filter(move |(ty, case)| Wide::of(*ty).unwrap().columns().contains(&width(case)))
}

fn multiply(ty: TensorType, shape: [usize; 2], rows: &[f32], n_outs: [usize; 3], n_in: usize) -> Products {
    multiply_by(ty, shape, rows, n_outs, n_in, |random, n_out| {
        random_matrix(random, ty, n_out, n_in)
    })
}

#[track_caller]
fn check(products: &Products, tolerance: f64, what: &str) {
    for (found, expected) in products.found.iter().zip(&products.expected) {
        assert_close(found, expected, tolerance, what);
    }
}

#[test]
fn wide_products_match_a_plain_loop() {
    // Ragged in rows of both; odd numbers of superblocks, of bands and of tiles; fewer steps than stages, and more.
    let cases = [
        (16, 9, [150, 33, 5], 5),
        (16, 35, [130, 0, 7], 2),
        (32, 17, [16, 0, 0], 1),
        (32, 32, [20, 129, 0], 7),
        (64, 67, [150, 33, 5], 5),
        (64, 9, [16, 0, 0], 1),
        (128, 67, [130, 0, 7], 3),
        (256, 259, [20, 129, 0], 2),
    ];
    for (ty, (width, n_rows, n_outs, n_supers)) in
        pairs("wide products", of_types(&TYPES, &cases, |case| case.0))
    {
        let n_in = n_supers * 256;
        let rows = Random::new(4).values(n_rows * n_in);
        let products = multiply(ty, [width, n_supers], &rows, n_outs, n_in);
        check(&products, ROUNDED, &format!("{ty:?} {n_rows} by {width}"));
    }
}

#[test]
fn wide_products_by_exactly_the_rows_of_thread_blocks_match_a_plain_loop() {
    let n_in = 2 * 256;
    // One thread block and two, and a row less than one.
    // With all columns in one thread block, or one superblock each.
    let cases = [
        (128, 128, 2),
        (128, 128, 1),
        (128, 127, 2),
        (128, 256, 2),
        (256, 256, 2),
        (256, 256, 1),
        (256, 255, 2),
    ];
    for (ty, (width, n_rows, each)) in pairs(
        "wide products by whole thread blocks",
        of_types(&SOME, &cases, |case| case.0),
    ) {
        let rows = Random::new(13).values(n_rows * n_in);
        let products = multiply(ty, [width, each], &rows, [16, 3, 0], n_in);
        check(
            &products,
            ROUNDED,
            &format!("{ty:?} {n_rows} by {width}, {each} each"),
        );
    }
}

#[test]
fn wide_products_whose_columns_are_shared_match_a_plain_loop() {
    let cases = [(16, 2, 5), (32, 1, 3), (64, 2, 5), (128, 1, 2), (256, 1, 3)];
    for (ty, (width, each, n_supers)) in pairs(
        "wide products with shared columns",
        of_types(&SOME, &cases, |case| case.0),
    ) {
        let n_in = n_supers * 256;
        let rows = Random::new(5).values(67 * n_in);
        let products = multiply(ty, [width, each], &rows, [150, 33, 5], n_in);
        check(&products, ROUNDED, &format!("{ty:?} by {width}, {each} each"));
    }
}

#[test]
fn wide_products_hardly_add_to_what_eight_bits_leave_away() {
    let (n_out, n_in, n_rows) = (40, 1024, 33);
    for ty in SOME {
        let rows = Random::new(6).values(n_rows * n_in);
        let products = multiply(ty, [64, 4], &rows, [0, 0, n_out], n_in);
        let (_, values) = random_matrix(&mut Random::new(n_in as u64), ty, n_out, n_in);
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

/// Sets the scale of every block, and what is added where a type has such: to the smallest number above zero, or to the largest that is taken. Signs are
/// kept where a type may have both.
fn set_limits(ty: TensorType, file_rows: &mut [u8], is_largest: bool) {
    let wide = Wide::of(ty).unwrap();
    let is_positive = matches!(ty, TensorType::Q4_K | TensorType::Q5_K);
    for block in file_rows.chunks_exact_mut(Format::of(ty).unwrap().block_bytes()) {
        if ty == TensorType::MXFP4 {
            block[0] = if is_largest { 130 } else { 104 };
        }
        for (at, largest) in wide.limits() {
            let sign = if is_positive { 0 } else { block[at + 1] & 0x80 };
            let magnitude = if is_largest { largest } else { 1 };
            block[at..at + 2].copy_from_slice(&magnitude.to_le_bytes());
            block[at + 1] |= sign;
        }
    }
    assert!(wide.takes(file_rows), "{ty:?}");
}

#[test]
fn weights_may_have_the_smallest_d_of_f16_and_the_largest_that_fits() {
    let n_in = 512;
    for ty in TYPES {
        for is_largest in [false, true] {
            let rows = Random::new(12).values(33 * n_in);
            let products = multiply_by(ty, [64, 2], &rows, [20, 0, 0], n_in, |random, n_out| {
                let format = Format::of(ty).unwrap();
                let (mut file_rows, mut values) = random_matrix(random, ty, n_out, n_in);
                // Every bit of scales and numbers may be set.
                file_rows.fill_with(|| random.bits() as u8);
                set_limits(ty, &mut file_rows, is_largest);
                let bytes = format.row_bytes(n_in).unwrap();
                for (row, values) in file_rows.chunks(bytes).zip(values.chunks_mut(n_in)) {
                    format.dequantize_row(row, values).unwrap();
                }
                (file_rows, values)
            });
            for (found, (expected, magnitude)) in products.found[0].iter().zip(&products.expected[0]) {
                // A bias is no part of what is asked.
                let error = (f64::from(*found) - expected).abs();
                assert!(
                    error <= 2.0 * ROUNDED * magnitude + 1e-7 * expected.abs(),
                    "{ty:?} {is_largest}: {found}, expected {expected}"
                );
            }
        }
    }
}

#[test]
fn blocks_of_zeros_may_have_any_exponent() {
    // Numbers of a block with this exponent are beyond what f16 holds, were one not zero.
    const EXPONENT: u8 = 133;
    let n_in = 512;
    let ty = TensorType::MXFP4;
    let rows = Random::new(13).values(20 * n_in);
    let products = multiply_by(ty, [64, 2], &rows, [20, 0, 0], n_in, |random, n_out| {
        let format = Format::of(ty).unwrap();
        let (mut file_rows, mut values) = random_matrix(random, ty, n_out, n_in);
        for block in file_rows.chunks_exact_mut(format.block_bytes()).step_by(3) {
            block.fill(0);
            block[0] = EXPONENT;
        }
        assert!(Wide::of(ty).unwrap().takes(&file_rows));
        let bytes = format.row_bytes(n_in).unwrap();
        for (row, values) in file_rows.chunks(bytes).zip(values.chunks_mut(n_in)) {
            format.dequantize_row(row, values).unwrap();
        }
        (file_rows, values)
    });
    check(&products, ROUNDED, "blocks of zeros");
}

#[test]
fn wide_rows_may_be_large_small_and_zero() {
    let n_in = 512;
    for factor in [1e30, 1e-30, 0.0] {
        let rows = Random::new(7).values(40 * n_in);
        let rows: Vec<f32> = rows.iter().map(|x| x * factor).collect();
        for ty in SOME {
            let products = multiply(ty, [64, 2], &rows, [0, 0, 20], n_in);
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
fn wide_products_read_weights_once() {
    for ty in SOME {
        let (n_out, n_in) = (256, 1024);
        let rows = Random::new(8).values(64 * n_in);
        let products = multiply(ty, [64, 4], &rows, [n_out, 0, 0], n_in);
        // Exactly as many rows as a thread block takes.
        for (found, (expected, magnitude)) in products.found[0].iter().zip(&products.expected[0]) {
            let error = (f64::from(*found) - expected).abs();
            assert!(
                error <= ROUNDED * magnitude,
                "{ty:?}: {found}, expected {expected}"
            );
        }
        let necessary = MatrixLayout::of(ty, n_out, n_in).unwrap().bytes() as u64 / 32;
        let mut buffers = products.counters.buffers.values();
        let weights =
            buffers.find(|buffer| (necessary * 19 / 20..=necessary).contains(&buffer.unique_loaded_sectors));
        let weights = weights.expect("the weights are read");
        let ratio = weights.loaded_sectors as f64 / weights.unique_loaded_sectors as f64;
        // A load takes a part of a sector from a plane of its own, and the next load gets the rest from L1.
        let limit = match ty {
            TensorType::Q4_K => 1.12,
            TensorType::Q5_K => 1.3,
            TensorType::Q6_K => 1.7,
            _ => 2.0,
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

/// A gate and up of a type; `activation` by its code.
fn gated(
    ty: TensorType,
    width: usize,
    rows: &[f32],
    n_out: usize,
    n_in: usize,
    (activation, has_bias): (i32, bool),
) -> GatedProducts {
    let n_rows = rows.len() / n_in;
    let mut random = Random::new(9);
    let mut sim = Sim::new();
    let quantized = sim.quantized(rows, n_in);
    let exact = sim.dequantized(&quantized, n_rows, n_in);
    let planes = tiles(&mut sim, &quantized, [n_rows, n_written(n_rows, width)], n_in, 1);
    let matrices = [0, 1].map(|_| random_matrix(&mut random, ty, n_out, n_in));
    let [gate, up] = [0, 1].map(|index: usize| sim.matrix(ty, n_out, n_in, &matrices[index].0));
    let mut bias_values = random.values(n_out);
    if !has_bias {
        bias_values.fill(0.0);
    }
    let bias = if has_bias { sim.f32s(&bias_values) } else { NULL };
    let y = sim.room(n_rows * n_out * 4);
    let output = sim.room_quantized(n_rows, n_out);
    let arguments = Arguments::new().ptr(gate).ptr(up).i32(n_out as i32);
    let arguments = (arguments.ptr(bias).ptr(NULL).i32(activation).ptr(y)).ptr(output.bytes);
    let arguments = (arguments.ptr(output.scales)).i32(n_in as i32).i32(n_rows as i32);
    let counters = sim.launch(
        &format!("matmul_wide_{}", type_suffix(ty).unwrap()),
        &format!("wide_gated_n{width}"),
        [n_rows.div_ceil(width), n_out.div_ceil(Wide::GATED_ROWS), 1],
        256,
        Wide::shared_bytes(width),
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
fn a_wide_gate_and_up_match_a_plain_loop_and_are_quantized() {
    let (n_out, n_in) = (96, 3 * 256);
    let cases = [
        (16, 13, true, false),
        (16, 19, false, true),
        (32, 32, true, true),
        (64, 67, true, false),
        (128, 130, true, true),
        (128, 128, true, false),
        (256, 256, true, true),
        (64, 67, false, false),
        (256, 67, false, false),
        (256, 67, true, false),
    ];
    for (ty, (width, n_rows, is_silu, has_bias)) in
        pairs("wide gates", of_types(&SOME, &cases, |case| case.0))
    {
        let rows: Vec<f32> = (Random::new(10).values(n_rows * n_in).iter())
            .map(|x| x / 8.0)
            .collect();
        // SiLU, or what is above zero.
        let products = gated(
            ty,
            width,
            &rows,
            n_out,
            n_in,
            (if is_silu { 0 } else { 3 }, has_bias),
        );
        let expected: Vec<(f64, f64)> = (products.sums.iter())
            .map(|[(gate, gate_magnitude), (up, up_magnitude)]| {
                let active = if is_silu {
                    gate / (1.0 + (-gate).exp())
                } else {
                    gate.max(0.0)
                };
                // No slope of SiLU is above 1.1.
                (
                    active * up,
                    1.1 * gate_magnitude * up.abs() + up_magnitude * gate.abs(),
                )
            })
            .collect();
        assert_close(&products.y, &expected, ROUNDED, &format!("{ty:?} by {width}"));
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
fn bits_of_a_wide_row_do_not_depend_on_how_many_rows_there_are() {
    let (n_out, n_in) = (40, 3 * 256);
    let rows = Random::new(11).values(130 * n_in);
    for ty in SOME {
        let widths = Wide::of(ty).unwrap().columns().iter();
        let results = widths.map(|&width| {
            let n_rows = if width <= 64 { 33 } else { 130 };
            let products = multiply(ty, [width, 3], &rows[..n_rows * n_in], [n_out, 0, 0], n_in);
            let GatedProducts { y, quantized, .. } =
                gated(ty, width, &rows[..n_rows * n_in], 32, n_in, (0, false));
            (
                products.found[0][..33 * n_out].to_vec(),
                y[..33 * 32].to_vec(),
                quantized[..33 * 32].to_vec(),
            )
        });
        let results: Vec<_> = results.collect();
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{ty:?}");
    }
}
