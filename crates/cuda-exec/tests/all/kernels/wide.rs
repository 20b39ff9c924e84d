//! Quantized matrices times many rows by matrix operations of warpgroups.

use tokenmill_cuda_exec::{
    Wide,
    modules::{WIDE, type_suffix},
};
use tokenmill_gguf::TensorType;
use tokenmill_ptx_sim::{Arguments, DevicePtr};
use tokenmill_quant::Format;
use tokenmill_testkit::Random;

use crate::{
    grid::pairs,
    kernels::{
        bench::{NULL, Quantized, Sim, assert_relative, random_matrix},
        many_rows::{GateAndUp, GatedProducts, Operands, Products, assert_reset, reads_of_weights, silu},
    },
};

/// All types that have such products.
const TYPES: [TensorType; 13] = WIDE;
/// Some of each kind: K-quants in strips, bytes, nibbles with an offset, scales by 16, and exponents.
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

/// Returns the number of tile rows that the program writes: two or four thread blocks of 8 for the kernels that take all of up to 16 or 32.
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

/// Multiplies rows by matrices of these heights; `matrix` makes rows in the form of a file, and their values.
fn multiply_by(
    ty: TensorType,
    [width, each]: [usize; 2],
    rows: &[f32],
    n_outs: [usize; 3],
    n_in: usize,
    matrix: impl FnMut(&mut Random, usize) -> (Vec<u8>, Vec<f32>),
) -> Products {
    let n_rows = rows.len() / n_in;
    let mut sim = Sim::new();
    let quantized = sim.quantized(rows, n_in);
    let exact = sim.dequantized(&quantized, n_rows, n_in);
    let planes = tiles(&mut sim, &quantized, [n_rows, n_written(n_rows, width)], n_in, 2);
    let operands = Operands::new(&mut sim, ty, &exact, n_outs, n_in, 2, matrix);
    let arguments = planes.into_iter().fold(operands.arguments(), Arguments::ptr);
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
        assert_reset(&sim, counts, n_places);
    }
    operands.products(&sim, counters)
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
        products.check(ROUNDED, &format!("{ty:?} {n_rows} by {width}"));
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
        products.check(ROUNDED, &format!("{ty:?} {n_rows} by {width}, {each} each"));
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
        products.check(ROUNDED, &format!("{ty:?} by {width}, {each} each"));
    }
}

#[test]
fn wide_products_hardly_add_to_what_eight_bits_leave_away() {
    let (n_out, n_in, n_rows) = (40, 1024, 33);
    for ty in SOME {
        let rows = Random::new(6).values(n_rows * n_in);
        let products = multiply(ty, [64, 4], &rows, [0, 0, n_out], n_in);
        products.check_rounding(&rows, n_in, &format!("{ty:?}"));
    }
}

/// Sets the scale of every block, and the offset if the type has one: to the smallest number above zero, or to the largest accepted one. Signs are
/// kept if a type may have both.
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
                // This test is not about the bias.
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
    // Numbers of a block with this exponent would exceed f16 if they were not all zero.
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
    products.check(ROUNDED, "blocks of zeros");
}

#[test]
fn wide_rows_may_be_large_small_and_zero() {
    let n_in = 512;
    for factor in [1e30, 1e-30, 0.0] {
        let rows = Random::new(7).values(40 * n_in);
        let rows: Vec<f32> = rows.iter().map(|x| x * factor).collect();
        for ty in SOME {
            let products = multiply(ty, [64, 2], &rows, [0, 0, 20], n_in);
            let what = format!("{ty:?} by {factor}");
            assert_relative(&products.found[0], &products.expected[0], ROUNDED, &what);
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
        assert_relative(
            &products.found[0],
            &products.expected[0],
            ROUNDED,
            &format!("{ty:?}"),
        );
        let ratio = reads_of_weights(&products.counters, ty, n_out, n_in);
        // A load takes a part of a sector from a separate plane, and the next load gets the rest from L1.
        let limit = match ty {
            TensorType::Q4_K => 1.12,
            TensorType::Q5_K => 1.3,
            TensorType::Q6_K => 1.7,
            _ => 2.0,
        };
        assert!(ratio <= limit, "{ty:?}: {ratio}");
    }
}

/// Returns a gate and up of a type; `activation` by its code.
fn gated(
    ty: TensorType,
    width: usize,
    rows: &[f32],
    n_out: usize,
    n_in: usize,
    (activation, has_bias): (i32, bool),
) -> GatedProducts {
    let n_rows = rows.len() / n_in;
    let mut sim = Sim::new();
    let quantized = sim.quantized(rows, n_in);
    let exact = sim.dequantized(&quantized, n_rows, n_in);
    let planes = tiles(&mut sim, &quantized, [n_rows, n_written(n_rows, width)], n_in, 1);
    let operands = GateAndUp::new(&mut sim, ty, &exact, n_out, n_in, has_bias);
    let arguments = operands.arguments(activation);
    let counters = sim.launch(
        &format!("matmul_wide_{}", type_suffix(ty).unwrap()),
        &format!("wide_gated_n{width}"),
        [n_rows.div_ceil(width), n_out.div_ceil(Wide::GATED_ROWS), 1],
        256,
        Wide::shared_bytes(width),
        &planes.into_iter().fold(arguments, Arguments::ptr),
    );
    assert_eq!(counters.bank_conflicts(), 0, "{ty:?}");
    operands.products(&sim)
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
        // SiLU, or the positive part.
        let products = gated(
            ty,
            width,
            &rows,
            n_out,
            n_in,
            (if is_silu { 0 } else { 3 }, has_bias),
        );
        let active = |gate: f64| if is_silu { silu(gate) } else { gate.max(0.0) };
        products.check(active, ROUNDED, &format!("{ty:?} by {width}"));
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
