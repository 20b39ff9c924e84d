//! Matrix times a few rows, plain, grouped and gated.

use tokenmill_cuda_exec::{
    BandHeight, Bands, FewRows,
    modules::{PAIRS, type_suffix},
};
use tokenmill_gguf::TensorType;
use tokenmill_ptx_sim::{Arguments, Counters, DevicePtr};
use tokenmill_testkit::{Random, cases};

use crate::{
    grid::pairs,
    kernels::bench::{NULL, Quantized, Sim, assert_close, is_float, random_matrix, types},
};

/// Rounding of sums in f32, relative to the sum of magnitudes: a lane adds few terms, then a tree adds the lanes.
pub(crate) const TOLERANCE: f64 = 2e-6;

/// The rows of a product, as f32 or quantized.
pub(crate) enum Input {
    Float(DevicePtr),
    Quantized(Quantized),
}

impl Input {
    pub(crate) fn append(&self, arguments: Arguments) -> Arguments {
        match self {
            Self::Float(x) => arguments.ptr(*x),
            Self::Quantized(x) => arguments.ptr(x.bytes).ptr(x.scales),
        }
    }
}

/// Uploads rows in the form that the type's kernels take; returns their exact values too.
pub(crate) fn upload(sim: &mut Sim, ty: TensorType, rows: &[f32], n_in: usize) -> (Input, Vec<f64>) {
    if is_float(ty) {
        let exact = rows.iter().map(|&x| f64::from(x)).collect();
        return (Input::Float(sim.f32s(rows)), exact);
    }
    let quantized = sim.quantized(rows, n_in);
    let exact = sim.dequantized(&quantized, rows.len() / n_in, n_in);
    (Input::Quantized(quantized), exact)
}

/// Returns the product of row `row` of `w` and row `m` of `x`: the sum, and the sum of magnitudes.
pub(crate) fn dot(w: &[f32], x: &[f64], n_in: usize, row: usize, m: usize) -> (f64, f64) {
    let (w, x) = (&w[row * n_in..][..n_in], &x[m * n_in..][..n_in]);
    let terms = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * x);
    terms.fold((0.0, 0.0), |(sum, magnitude), term| {
        (sum + term, magnitude + term.abs())
    })
}

/// A kernel: its module's prefix, its name, rows of weights and of x that a thread block takes, its threads and shared memory.
pub(crate) struct Kernel {
    pub(crate) module: &'static str,
    pub(crate) name: String,
    pub(crate) tile: [usize; 2],
    pub(crate) block: usize,
    pub(crate) shared_bytes: usize,
    /// Number of thread blocks that share the columns, if the kernel supports it.
    pub(crate) n_splits: Option<usize>,
}

fn matvec(ty: TensorType, variant: usize) -> Kernel {
    Kernel {
        module: "matvec",
        name: format!("matvec_m{variant}"),
        tile: [FewRows::of(ty).block_rows(1, 256), 8],
        block: 128,
        shared_bytes: FewRows::of(ty).shared_bytes(variant),
        n_splits: None,
    }
}

fn sixteen(ty: TensorType) -> Kernel {
    Kernel {
        module: "matvec",
        name: "matvec_m16".to_owned(),
        tile: [FewRows::STRIP_ROWS, 16],
        block: 128,
        shared_bytes: FewRows::of(ty).sixteen_shared_bytes(),
        n_splits: None,
    }
}

fn matmul(ty: TensorType, tokens: usize) -> Kernel {
    let (rows, block) = match tokens {
        _ if is_float(ty) => (64, 256),
        64 => (128, 256),
        _ => (64, 128),
    };
    Kernel {
        module: "matmul",
        name: format!("matmul_n{tokens}"),
        tile: [rows, tokens],
        block,
        shared_bytes: 0,
        n_splits: None,
    }
}

fn check(
    ty: TensorType,
    variant: usize,
    n_rows: usize,
    n_outs: [usize; 3],
    n_in: usize,
    has_bias: bool,
) -> Counters {
    check_kernel(ty, &matvec(ty, variant), n_rows, n_outs, n_in, has_bias)
}

pub(crate) fn check_kernel(
    ty: TensorType,
    kernel: &Kernel,
    n_rows: usize,
    n_outs: [usize; 3],
    n_in: usize,
    has_bias: bool,
) -> Counters {
    let mut random = Random::new((n_in + n_outs[0] + n_rows) as u64);
    let mut sim = Sim::new();
    let (input, exact) = upload(&mut sim, ty, &random.values(n_rows * n_in), n_in);
    let mut weights = Vec::new();
    let mut addresses = [NULL; 3];
    let mut outputs = [NULL; 3];
    let mut biases = [NULL; 3];
    let mut bias_values = [vec![], vec![], vec![]];
    for (job, &n_out) in n_outs.iter().enumerate() {
        let (file_rows, values) = random_matrix(&mut random, ty, n_out, n_in);
        if n_out > 0 {
            addresses[job] = sim.matrix(ty, n_out, n_in, &file_rows);
            outputs[job] = sim.room(n_rows * n_out * 4);
        }
        bias_values[job] = random.values(n_out);
        if has_bias {
            biases[job] = sim.f32s(&bias_values[job]);
        }
        weights.push(values);
    }
    let mut arguments = Arguments::new();
    for list in [addresses, outputs, biases] {
        arguments = list.into_iter().fold(arguments, Arguments::ptr);
    }
    for n in [n_outs[0], n_outs[1], n_outs[2], n_in, n_rows] {
        arguments = arguments.i32(n as i32);
    }
    let module = format!("{}_{}", kernel.module, type_suffix(ty).unwrap());
    let [tile_rows, tile_tokens] = kernel.tile;
    let n_blocks = n_outs.iter().map(|n_out| n_out.div_ceil(tile_rows)).sum();
    let n_tiles = n_rows.div_ceil(tile_tokens);
    let grid = [n_blocks, n_tiles, kernel.n_splits.unwrap_or(1)];
    let mut arguments = input.append(arguments);
    let mut counts = None;
    if let Some(n_splits) = kernel.n_splits {
        let parts = sim.room(n_blocks * n_tiles * n_splits * tile_rows * tile_tokens * 4);
        let zeros = sim.u32s(&vec![0; n_blocks * n_tiles]);
        let each = (n_in / 256).div_ceil(n_splits).next_multiple_of(2);
        arguments = arguments.ptr(parts).ptr(zeros).i32(each as i32);
        counts = Some(zeros);
    }
    let counters = sim.launch(
        &module,
        &kernel.name,
        grid,
        kernel.block,
        kernel.shared_bytes,
        &arguments,
    );
    if let Some(counts) = counts {
        let left = sim.read_u32s(counts, n_blocks * n_tiles);
        assert!(
            left.iter().all(|&count| count == 0),
            "counters are left as they were"
        );
    }
    for (job, &n_out) in n_outs.iter().enumerate().filter(|(_, n_out)| **n_out > 0) {
        let found = sim.read_f32s(outputs[job], n_rows * n_out);
        let expected: Vec<(f64, f64)> = (0..n_rows * n_out)
            .map(|index| {
                let (m, row) = (index / n_out, index % n_out);
                let (sum, magnitude) = dot(&weights[job], &exact, n_in, row, m);
                let bias = if has_bias {
                    f64::from(bias_values[job][row])
                } else {
                    0.0
                };
                (sum + bias, magnitude + bias.abs())
            })
            .collect();
        assert_close(
            &found,
            &expected,
            TOLERANCE,
            &format!("{ty:?} {n_out}x{n_in} by {n_rows}"),
        );
    }
    counters
}

#[test]
fn products_of_every_type_match_a_plain_loop() {
    for ty in types() {
        let block = ty.block_len();
        check(ty, 1, 1, [9, 0, 0], 3 * block.max(32), false);
        check(ty, 2, 2, [16, 0, 0], block, false);
        check(ty, 4, 3, [1, 0, 0], 5 * block, true);
        check(ty, 8, 8, [10, 0, 0], 2560, true);
    }
}

#[test]
fn long_rows_of_strips_match_a_plain_loop() {
    // 65 superblocks: one more than the scales of a strip of Q6_K in shared memory, and an odd number for pairs of them.
    for ty in [TensorType::Q4_K, TensorType::Q5_K, TensorType::Q6_K] {
        check(ty, 1, 1, [17, 0, 0], 65 * 256, false);
        check(ty, 8, 7, [5, 0, 0], 65 * 256, true);
        check_kernel(ty, &sixteen(ty), 11, [40, 7, 3], 65 * 256, true);
    }
}

#[test]
fn each_warp_has_several_strips_of_a_tall_matrix() {
    // The last thread block has four strips, then one, one of 4 rows, and two empty ones.
    let n_out = (1 << 15) + 64 + 20;
    // An even number of superblocks, and an odd one.
    let shapes = [(1, 1, 1024), (4, 3, 768), (8, 5, 768)];
    let types = types().filter(|&ty| FewRows::of(ty).takes_sixteen());
    let all: Vec<_> = types.flat_map(|ty| shapes.map(|shape| (ty, shape))).collect();
    // Each has a ragged end; one tall matrix takes seconds.
    for case in cases("tall matrices", all.len()) {
        let (ty, (variant, n_rows, n_in)) = all[case];
        assert_eq!(FewRows::of(ty).block_rows(n_out, 4096), 128);
        assert_eq!(FewRows::of(ty).block_rows(128_256, 2048), 8 * 64);
        let kernel = Kernel {
            tile: [128, 8],
            ..matvec(ty, variant)
        };
        let counters = check_kernel(ty, &kernel, n_rows, [n_out, 0, 0], n_in, variant == 4);
        assert_eq!(counters.bank_conflicts(), 0, "{ty:?} by {n_rows}");
    }
}

#[test]
fn rows_beyond_sixteen_are_further_thread_blocks() {
    for ty in types().filter(|&ty| FewRows::of(ty).takes_sixteen()) {
        check_kernel(ty, &sixteen(ty), 35, [21, 16, 5], 768, true);
        let counters = check_kernel(ty, &sixteen(ty), 16, [64, 0, 0], 2048, false);
        assert_eq!(counters.bank_conflicts(), 0, "{ty:?}");
    }
}

#[test]
fn several_matrices_of_one_input_are_one_launch() {
    for ty in [TensorType::Q4_K, TensorType::Q8_0, TensorType::F16] {
        check(ty, 1, 1, [20, 8, 3], 512, false);
        check(ty, 4, 4, [7, 9, 0], 256, true);
    }
}

#[test]
fn products_with_many_rows_match_a_plain_loop() {
    // Columns of a tile, rows, outputs, blocks of a row.
    let shapes = [
        (16, 1, [1, 0, 0], 1),
        (64, 9, [16, 70, 5], 5),
        (64, 65, [130, 0, 0], 2),
        (16, 17, [65, 3, 0], 3),
    ];
    let all = types().flat_map(|ty| shapes.map(|shape| (ty, shape)));
    let all = all.filter(|&(ty, (columns, ..))| columns == 64 || !is_float(ty));
    for (ty, (columns, n_rows, n_outs, n_blocks)) in pairs("products with many rows", all) {
        let n_in = n_blocks * ty.block_len().max(if columns == 64 { 32 } else { 1 });
        check_kernel(ty, &matmul(ty, columns), n_rows, n_outs, n_in, n_rows > 16);
    }
    check_kernel(
        TensorType::F32,
        &matmul(TensorType::F32, 64),
        3,
        [5, 0, 0],
        7,
        false,
    );
}

#[test]
fn narrow_tiles_of_f32_match_a_plain_loop() {
    let kernel = Kernel {
        tile: [8, 8],
        ..matmul(TensorType::F32, 8)
    };
    // Rows with fewer and more chunks than threads, and rows that are not read four values at a time.
    for n_in in [7, 64, 1000, 1025, 2880] {
        check_kernel(TensorType::F32, &kernel, 19, [21, 0, 0], n_in, true);
        check_kernel(TensorType::F32, &kernel, 9, [3, 8, 33], n_in, false);
    }
    let counters = check_kernel(TensorType::F32, &kernel, 16, [128, 0, 0], 2048, false);
    assert_eq!(counters.bank_conflicts(), 0);
}

#[test]
fn products_have_no_bank_conflicts() {
    let kernels = [(true, 64), (true, 16), (false, 8)];
    let all = types().flat_map(|ty| kernels.map(|kernel| (ty, kernel)));
    let all = all.filter(|&(ty, kernel)| kernel != (true, 16) || !is_float(ty));
    for (ty, (is_matmul, columns)) in pairs("bank conflicts of products", all) {
        let kernel = if is_matmul {
            matmul(ty, columns)
        } else {
            matvec(ty, columns)
        };
        let n_rows = kernel.tile[1];
        let counters = check_kernel(ty, &kernel, n_rows, [128, 0, 0], 1024, false);
        assert_eq!(counters.bank_conflicts(), 0, "{ty:?} {}", kernel.name);
    }
}

/// Returns the bits of products by matrices of two types, by one launch and by one for each type.
#[test]
fn matrices_of_two_types_are_one_launch_with_the_same_bits() {
    let n_in = 1280;
    let rows = [(1, 1), (2, 2), (4, 3), (8, 8), (16, 11)];
    let shapes = rows.map(|rows| [[20, 9, 11], [8, 0, 3]].map(|n_outs| (rows, n_outs)));
    let all = PAIRS
        .into_iter()
        .flat_map(|types| shapes.concat().into_iter().map(move |shape| (types, shape)));
    let all = all.filter(|&(types, ((variant, _), _))| {
        variant < 16 || types.iter().all(|&ty| FewRows::of(ty).takes_sixteen())
    });
    for (types, ((variant, n_rows), n_outs)) in pairs("matrices of two types", all) {
        let mut random = Random::new(variant);
        let mut sim = Sim::new();
        let (input, _) = upload(&mut sim, types[0], &random.values(n_rows * n_in), n_in);
        let of_job = [types[0], types[0], types[1]];
        let matrices: Vec<DevicePtr> = (of_job.iter().zip(n_outs))
            .map(|(&ty, n_out)| {
                let (file_rows, _) = random_matrix(&mut random, ty, n_out, n_in);
                sim.matrix(ty, n_out, n_in, &file_rows)
            })
            .collect();
        let bias = sim.f32s(&random.values(20));
        let mut run = |module: &str, kernel: &str, jobs: [Option<usize>; 3]| -> Vec<Vec<f32>> {
            let outs = jobs.map(|job| job.map_or(0, |job| n_outs[job]));
            let outputs = outs.map(|n_out| sim.room(n_rows * n_out.max(1) * 4));
            let mut arguments = Arguments::new();
            for job in jobs {
                arguments = arguments.ptr(job.map_or(NULL, |job| matrices[job]));
            }
            arguments = outputs.iter().fold(arguments, |arguments, &y| arguments.ptr(y));
            arguments = arguments.ptr(bias).ptr(NULL).ptr(bias);
            for n in [outs[0], outs[1], outs[2], n_in, n_rows] {
                arguments = arguments.i32(n as i32);
            }
            let few = of_job.map(FewRows::of);
            let n_blocks =
                (outs.iter().zip(few)).map(|(n_out, few)| n_out.div_ceil(few.block_rows(*n_out, n_in)));
            let shared_bytes = few.map(|few| match variant {
                16 => few.sixteen_shared_bytes(),
                _ => few.shared_bytes(n_rows),
            });
            let shared_bytes = shared_bytes.into_iter().max();
            let arguments = input.append(arguments);
            let grid = [n_blocks.sum(), 1, 1];
            sim.launch(module, kernel, grid, 128, shared_bytes.unwrap(), &arguments);
            (outputs.iter().zip(outs))
                .map(|(&y, n_out)| sim.read_f32s(y, n_rows * n_out))
                .collect()
        };
        let [first, second] = types.map(|ty| type_suffix(ty).unwrap());
        let alone = format!("matvec_m{variant}");
        let mut expected = run(&format!("matvec_{first}"), &alone, [Some(0), Some(1), None]);
        expected[2] = run(&format!("matvec_{second}"), &alone, [None, None, Some(2)])
            .pop()
            .unwrap();
        let module = format!("matvec_{first}_{second}");
        let kernel = format!("matvec_pair_m{variant}");
        let found = run(&module, &kernel, [Some(0), Some(1), Some(2)]);
        assert_eq!(found, expected, "{module} by {n_rows}");
    }
}

#[test]
fn float_rows_may_have_any_length() {
    for ty in [TensorType::F32, TensorType::F16, TensorType::BF16] {
        for n_in in [1, 3, 7, 30, 257, 1000] {
            check(ty, 2, 2, [5, 0, 0], n_in, false);
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others() {
    let mut random = Random::new(5);
    for (ty, n_in, n_out) in [
        (TensorType::Q4_K, 1280, 12),
        (TensorType::Q6_K, 1280, 12),
        (TensorType::BF16, 1280, 12),
        // A tall matrix.
        (TensorType::Q6_K, 768, 1 << 15),
    ] {
        let mut sim = Sim::new();
        let (file_rows, _) = random_matrix(&mut random, ty, n_out, n_in);
        let w = sim.matrix(ty, n_out, n_in, &file_rows);
        let rows = random.values(8 * n_in);
        let mut results = Vec::new();
        for (variant, n_rows) in [(1, 1), (2, 2), (4, 3), (8, 8)] {
            let (input, _) = upload(&mut sim, ty, &rows[..n_rows * n_in], n_in);
            let y = sim.room(n_rows * n_out * 4);
            let mut arguments = Arguments::new().ptr(w).ptr(NULL).ptr(NULL).ptr(y);
            arguments = (0..5).fold(arguments, |arguments, _| arguments.ptr(NULL));
            for n in [n_out, 0, 0, n_in, n_rows] {
                arguments = arguments.i32(n as i32);
            }
            let module = format!("matvec_{}", type_suffix(ty).unwrap());
            let kernel = format!("matvec_m{variant}");
            let few = FewRows::of(ty);
            let grid = [n_out.div_ceil(few.block_rows(n_out, n_in)), 1, 1];
            let shared_bytes = few.shared_bytes(n_rows);
            sim.launch(
                &module,
                &kernel,
                grid,
                128,
                shared_bytes,
                &input.append(arguments),
            );
            results.push(sim.read_f32s(y, n_out));
        }
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{ty:?}");
    }
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

#[test]
fn gated_products_activate_and_quantize() {
    for (ty, variant, n_rows, n_out, has_bias) in [
        (TensorType::Q4_K, 1, 1, 64, false),
        (TensorType::Q6_K, 4, 3, 96, true),
        (TensorType::Q6_K, 8, 5, 64, false),
        (TensorType::Q5_K, 8, 8, 32, true),
        (TensorType::Q5_K, 1, 1, 35, false),
        (TensorType::Q8_0, 8, 8, 32, false),
        (TensorType::Q5_0, 2, 2, 40, true),
        (TensorType::Q2_K, 1, 1, 33, false),
        (TensorType::F32, 1, 1, 64, false),
        (TensorType::F16, 4, 3, 40, true),
        (TensorType::BF16, 8, 8, 32, true),
        (TensorType::Q4_K, 16, 9, 96, false),
        (TensorType::Q4_K, 64, 67, 64, true),
        (TensorType::Q5_K, 16, 16, 35, true),
        (TensorType::Q5_K, 32, 30, 32, false),
        (TensorType::Q6_K, 64, 41, 160, true),
    ] {
        // More superblocks than the scales of a strip of Q6_K in shared memory if there are 8 rows.
        let n_in = if variant == 8 { 17 * 256 } else { 512 };
        let mut random = Random::new(n_out as u64);
        let mut sim = Sim::new();
        let (input, exact) = upload(&mut sim, ty, &random.values(n_rows * n_in), n_in);
        let matrices = [0, 1].map(|_| random_matrix(&mut random, ty, n_out, n_in));
        let [gate, up] = [0, 1].map(|job: usize| sim.matrix(ty, n_out, n_in, &matrices[job].0));
        let bias_values = [random.values(n_out), random.values(n_out)];
        let biases = [0, 1].map(|job: usize| {
            if has_bias {
                sim.f32s(&bias_values[job])
            } else {
                NULL
            }
        });
        let y = sim.room(n_rows * n_out * 4);
        let is_quantized = n_out % 32 == 0;
        let quantized = sim.room_quantized(n_rows, n_out);
        let null = Quantized {
            bytes: NULL,
            scales: NULL,
        };
        let target = if is_quantized { &quantized } else { &null };
        let arguments = Arguments::new()
            .ptr(gate)
            .ptr(up)
            .i32(n_out as i32)
            .ptr(biases[0])
            .ptr(biases[1])
            .i32(0)
            .ptr(y)
            .ptr(target.bytes)
            .ptr(target.scales)
            .i32(n_in as i32)
            .i32(n_rows as i32);
        let suffix = type_suffix(ty).unwrap();
        let arguments = input.append(arguments);
        if let (true, Some(bands)) = (variant > 8, Bands::of(ty)) {
            let grid = [n_out.div_ceil(Bands::GATED_ROWS), n_rows.div_ceil(variant), 1];
            let shared_bytes = bands.shared_bytes(BandHeight::High, variant);
            let (module, kernel) = (format!("matmul_{suffix}"), format!("matmul_gated_n{variant}"));
            sim.launch(&module, &kernel, grid, 128, shared_bytes, &arguments);
        } else {
            let grid = [n_out.div_ceil(32), 1, 1];
            let shared_bytes = FewRows::of(ty).gated_shared_bytes(n_rows);
            let (module, kernel) = (format!("matvec_{suffix}"), format!("matvec_gated_m{variant}"));
            let n_threads = FewRows::of(ty).gated_threads() as usize;
            sim.launch(&module, &kernel, grid, n_threads, shared_bytes, &arguments);
        }
        let found = sim.read_f32s(y, n_rows * n_out);
        let expected: Vec<(f64, f64)> = (0..n_rows * n_out)
            .map(|index| {
                let (m, row) = (index / n_out, index % n_out);
                let add = |job: usize| {
                    if has_bias {
                        f64::from(bias_values[job][row])
                    } else {
                        0.0
                    }
                };
                let (gate, gate_size) = dot(&matrices[0].1, &exact, n_in, row, m);
                let (up, up_size) = dot(&matrices[1].1, &exact, n_in, row, m);
                // The slope of silu is at most 1.1; both factors carry an error.
                let value = silu(gate + add(0)) * (up + add(1));
                (value, 1.1 * (gate_size + 1.0) * (up_size + 1.0))
            })
            .collect();
        assert_close(&found, &expected, TOLERANCE, &format!("gated {ty:?}"));
        if is_quantized {
            let rounded = sim.dequantized(&quantized, n_rows, n_out);
            for (group, rounded) in found.chunks(32).zip(rounded.chunks(32)) {
                let peak = group.iter().fold(0f32, |peak, x| peak.max(x.abs()));
                for (x, r) in group.iter().zip(rounded) {
                    assert!((f64::from(*x) - r).abs() <= f64::from(peak) / 254.0 * 1.0001);
                }
            }
        }
    }
}

#[test]
fn weights_are_read_once_and_without_waste() {
    // A slice of a real width; the weights' sectors are those of the matrix, once each.
    for ty in types() {
        let (n_out, n_in) = (32, 4096);
        for (variant, n_rows) in [(1, 1), (4, 4)] {
            let counters = check(ty, variant, n_rows, [n_out, 0, 0], n_in, false);
            let all = counters.loads.sectors as f64 / counters.loads.necessary_sectors as f64;
            // The scales that a warp of Q1_0 reads at once are half a sector, with the four whole ones of its bits.
            let limit = if ty == TensorType::Q1_0 { 1.112 } else { 1.05 };
            assert!(all <= limit, "{ty:?} by {n_rows}, with the rows of x: {all}");
            let weights = counters
                .buffers
                .values()
                .max_by_key(|buffer| buffer.unique_loaded_sectors);
            let weights = weights.unwrap();
            let necessary = tokenmill_cuda_exec::MatrixLayout::of(ty, n_out, n_in)
                .unwrap()
                .bytes() as u64
                / 32;
            assert!(weights.unique_loaded_sectors <= necessary, "{ty:?}");
            let ratio = weights.loaded_sectors as f64 / weights.unique_loaded_sectors as f64;
            assert!(ratio <= limit, "{ty:?} by {n_rows}: {ratio}");
        }
    }
}
