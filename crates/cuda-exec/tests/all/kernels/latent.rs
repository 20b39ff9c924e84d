//! Attention over latent rows against the plain formula, and products with the matrices of heads.

use half::f16;
use tokenmill_cuda_exec::modules::type_suffix;
use tokenmill_gguf::TensorType;
use tokenmill_ptx_sim::{Arguments, Counters};
use tokenmill_testkit::Random;

use crate::kernels::{
    bench::{NULL, Sim, assert_close, random_matrix, types},
    experts::kernel_of_runs,
    matvec::{TOLERANCE, dot, upload},
};

/// Smallest number of positions of a split, as the operation chooses it for few heads.
const MIN_SPLIT: usize = 64;

/// Sequences with tokens at the end of their contexts: the first token's position, and how many tokens; a position of `None` is
/// padding.
struct Case {
    runs: Vec<(Option<u32>, u32)>,
    n_heads: usize,
    dims: [usize; 2],
    n_query_rows: usize,
    quantizes: bool,
    /// Multiplies the queries' last number and divides that of the rows.
    large: f32,
}

impl Case {
    fn new(runs: &[(u32, u32)], n_heads: usize, dims: [usize; 2]) -> Self {
        Self {
            runs: runs.iter().map(|&(first, n)| (Some(first), n)).collect(),
            n_heads,
            dims,
            n_query_rows: 16,
            quantizes: false,
            large: 1.0,
        }
    }
}

/// Runs a case as runs of tokens, or with every token by itself if `is_decode`.
fn check(case: &Case, is_decode: bool) -> Counters {
    let Case {
        n_heads,
        dims: [dim_k, dim_v],
        ..
    } = *case;
    let row = dim_k.next_multiple_of(8);
    let mut random = Random::new((dim_k * n_heads + case.runs.len()) as u64);
    let mut sim = Sim::new();
    let counts: Vec<usize> = (case.runs.iter())
        .map(|&(first, n)| first.map_or(1, |first| (first + n).div_ceil(16) as usize))
        .collect();
    let starts: Vec<u32> = (0..=counts.len())
        .map(|seq| counts[..seq].iter().sum::<usize>() as u32)
        .collect();
    let n_pages = counts.iter().sum::<usize>() + 2;
    let mut pages: Vec<u32> = (0..n_pages as u32).collect();
    random.shuffle(&mut pages);
    let (mut bytes, mut store) = (Vec::new(), Vec::new());
    for at in 0..n_pages * 16 * row {
        let mut value = if at % row < dim_k { random.symmetric() } else { 0.0 };
        if at % row == dim_k - 1 {
            value /= case.large;
        }
        let rounded = f16::from_f32(value);
        bytes.extend(rounded.to_le_bytes());
        store.push(rounded.to_f32());
    }
    let (mut positions, mut seq_of) = (Vec::new(), Vec::new());
    for (seq, &(first, n)) in case.runs.iter().enumerate() {
        for i in 0..n {
            positions.push(first.map_or(u32::MAX, |first| first + i));
            seq_of.push(seq as u32);
        }
    }
    let n_tokens = positions.len();
    let seq_starts: Vec<u32> = (0..=case.runs.len())
        .map(|seq| case.runs[..seq].iter().map(|&(_, n)| n).sum())
        .collect();
    let scale = 1.0 / (dim_k as f32).sqrt();
    let mut q = random.values(n_tokens * n_heads * dim_k);
    for query in q.chunks_mut(dim_k) {
        query[dim_k - 1] *= case.large;
    }
    let longest_context = (positions.iter())
        .filter(|&&position| position != u32::MAX)
        .max()
        .map_or(1, |&last| last as usize + 1);
    // More splits than needed: a captured grid is larger than most steps.
    let n_splits = longest_context.div_ceil(MIN_SPLIT).min(64) + 1;
    let out = sim.room(n_tokens * n_heads * dim_v * 4);
    let partial = sim.room(n_tokens * n_heads * n_splits * (dim_v + 2) * 4);
    let quantized = sim.room_quantized(n_tokens * n_heads, dim_v);
    let device_positions = sim.u32s(&positions);
    let arguments = Arguments::new()
        .ptr(sim.f32s(&q))
        .ptr(if is_decode { NULL } else { out })
        .ptr(device_positions)
        .ptr(sim.u32s(&seq_of))
        .ptr(if is_decode { NULL } else { sim.u32s(&seq_starts) })
        .ptr(sim.u32s(&starts))
        .ptr(sim.u32s(&pages))
        .ptr(sim.bytes(&bytes))
        .f32(scale)
        .i32(n_heads as i32)
        .i32(dim_k as i32)
        .i32(dim_v as i32)
        .i32(MIN_SPLIT as i32)
        .i32(1)
        .ptr(if is_decode { partial } else { NULL });
    let d = if dim_k <= 128 && dim_v <= 128 { 128 } else { 576 };
    let n_query_rows = case.n_query_rows;
    let longest_run = case.runs.iter().map(|&(_, n)| n as usize).max().unwrap_or(0);
    let grid = if is_decode {
        [n_heads.div_ceil(n_query_rows), n_splits, n_tokens]
    } else {
        [(longest_run * n_heads).div_ceil(n_query_rows), 1, case.runs.len()]
    };
    let counters = sim.launch(
        "latent_attention",
        &format!("latent_d{d}_r{n_query_rows}"),
        grid,
        8 * n_query_rows,
        2 * 32 * (d + 8) * 2 + n_query_rows * 160 * 4,
        &arguments,
    );
    if is_decode {
        let arguments = Arguments::new()
            .ptr(partial)
            .ptr(device_positions)
            .ptr(NULL)
            .i32(n_splits as i32)
            .i32(MIN_SPLIT as i32)
            .i32(dim_v as i32)
            .ptr(out)
            .ptr(if case.quantizes { quantized.bytes } else { NULL })
            .ptr(if case.quantizes { quantized.scales } else { NULL });
        let grid = [n_heads, n_tokens, dim_v.div_ceil(128)];
        sim.launch("latent_attention", "latent_combine", grid, 128, 0, &arguments);
    }

    let found = sim.read_f32s(out, n_tokens * n_heads * dim_v);
    let mut expected = vec![(0.0, 1.0); n_tokens * n_heads * dim_v];
    for (token, &position) in positions.iter().enumerate() {
        if position == u32::MAX {
            continue;
        }
        let table = &pages[starts[seq_of[token] as usize] as usize..];
        let row_of = |j: usize| &store[(table[j / 16] as usize * 16 + j % 16) * row..][..dim_k];
        for head in 0..n_heads {
            let query = &q[(token * n_heads + head) * dim_k..][..dim_k];
            let weights: Vec<f64> = (0..=position as usize)
                .map(|j| {
                    let terms = query.iter().zip(row_of(j));
                    let dot: f64 = terms.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                    (f64::from(scale) * dot).exp()
                })
                .collect();
            let total: f64 = weights.iter().sum();
            for d in 0..dim_v {
                let terms = weights.iter().enumerate();
                let sum: f64 = terms.map(|(j, weight)| weight * f64::from(row_of(j)[d])).sum();
                expected[(token * n_heads + head) * dim_v + d].0 = sum / total;
            }
        }
    }
    // Weights below 1 times values below 1: f32 sums of hundreds of terms. The part of a query beyond f16 has
    // 11 bits: 4 of 75,000.
    let tolerance = if case.large > 1.0 { 1e-5 } else { 3e-6 };
    assert_close(&found, &expected, tolerance, "latent attention");
    if case.quantizes && is_decode {
        let rounded = sim.dequantized(&quantized, n_tokens * n_heads, dim_v);
        for (group, rounded) in found.chunks(32).zip(rounded.chunks(32)) {
            // Half a step of the group's peak, and a little for the rounding of its scale.
            let peak = group.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
            let most = f64::from(peak) / 254.0 * 1.001;
            for (x, rounded) in group.iter().zip(rounded) {
                assert!((f64::from(*x) - rounded).abs() <= most, "{x} and {rounded}");
            }
        }
    }
    counters
}

#[test]
fn tokens_attend_to_latent_rows_of_any_number() {
    let runs = [(0, 1), (31, 1), (32, 1), (63, 1), (64, 1), (300, 1)];
    check(&Case::new(&runs, 4, [48, 32]), true);
    check(&Case::new(&runs, 4, [48, 32]), false);
}

#[test]
fn queries_beyond_f16_keep_their_size() {
    for (dims, n_query_rows) in [([48, 32], 16), ([48, 32], 32), ([192, 160], 16)] {
        let case = Case {
            n_query_rows,
            large: if dims[0] == 48 { 524_288.0 } else { 1_048_576.0 },
            ..Case::new(&[(40, 1), (3, 2)], 40, dims)
        };
        check(&case, true);
        check(&case, false);
    }
}

#[test]
fn long_contexts_have_long_splits() {
    // 64 splits of 64 positions end at 4096.
    check(&Case::new(&[(4095, 1), (4096, 1)], 1, [16, 8]), true);
}

#[test]
fn heads_beyond_those_of_a_thread_block_have_their_own() {
    for n_heads in [1, 15, 16, 17, 40] {
        for n_query_rows in [16, 32] {
            let case = Case {
                n_query_rows,
                ..Case::new(&[(40, 1), (3, 2)], n_heads, [40, 24])
            };
            check(&case, true);
            check(&case, false);
        }
    }
}

#[test]
fn latent_rows_of_any_width() {
    for dims in [[37, 21], [96, 80], [128, 128], [8, 8], [9, 7]] {
        for is_decode in [true, false] {
            check(&Case::new(&[(70, 3)], 5, dims), is_decode);
        }
    }
}

#[test]
fn latent_rows_as_wide_as_those_of_models_that_people_run() {
    for n_query_rows in [16, 32] {
        let case = Case {
            n_query_rows,
            quantizes: true,
            ..Case::new(&[(95, 2)], 17, [576, 512])
        };
        check(&case, true);
        check(&case, false);
    }
}

#[test]
fn runs_of_tokens_attend_to_what_stands_before_each() {
    check(&Case::new(&[(0, 70), (5, 3), (100, 40)], 3, [48, 32]), false);
}

#[test]
fn padding_yields_zeros() {
    let case = Case {
        runs: vec![(Some(20), 2), (None, 3), (Some(100), 1)],
        quantizes: true,
        ..Case::new(&[], 3, [48, 32])
    };
    check(&case, true);
    check(&case, false);
}

#[test]
fn a_latent_row_is_read_once_for_all_heads() {
    let counters = check(&Case::new(&[(511, 1)], 16, [576, 512]), true);
    let stored = (counters.buffers.values()).max_by_key(|buffer| buffer.unique_loaded_sectors);
    let stored = stored.expect("the store was read");
    let ratio = stored.loaded_sectors as f64 / stored.unique_loaded_sectors as f64;
    assert!(ratio <= 1.01, "{ratio}");
    // The loop over the tiles has none.
    let share = counters.bank_conflicts() as f64 / counters.shared.wavefronts as f64;
    assert!(share < 0.02, "{share}");
}

/// Multiplies the parts of `n_rows` rows by the matrices of their heads.
fn check_heads(ty: TensorType, run_len: usize, n_rows: usize, n_heads: usize, n_out: usize, n_in: usize) {
    let mut random = Random::new((n_in + n_out + n_rows) as u64);
    let mut sim = Sim::new();
    let (input, exact) = upload(&mut sim, ty, &random.values(n_rows * n_heads * n_in), n_in);
    let (file_rows, values) = random_matrix(&mut random, ty, n_heads * n_out, n_in);
    let matrix = sim.matrix(ty, n_heads * n_out, n_in, &file_rows);
    let output = sim.room(n_rows * n_heads * n_out * 4);
    let mut arguments = Arguments::new();
    for address in [matrix, NULL, NULL, NULL, output, NULL] {
        arguments = arguments.ptr(address);
    }
    for n in [n_heads, n_rows, n_out, n_in] {
        arguments = arguments.i32(n as i32);
    }
    let arguments = arguments.ptr(NULL).ptr(NULL).ptr(NULL);
    let (kernel, tile, n_threads) = kernel_of_runs(ty, run_len);
    let grid = [n_out.div_ceil(tile), n_heads * n_rows.div_ceil(run_len), 1];
    let module = format!("experts_{}", type_suffix(ty).unwrap());
    sim.launch(&module, &kernel, grid, n_threads, 0, &input.append(arguments));
    let expected: Vec<(f64, f64)> = (0..n_rows * n_heads * n_out)
        .map(|at| {
            let (part, row) = (at / n_out, at % n_out);
            dot(&values, &exact, n_in, part % n_heads * n_out + row, part)
        })
        .collect();
    let found = sim.read_f32s(output, n_rows * n_heads * n_out);
    assert_close(&found, &expected, TOLERANCE, &format!("heads in {ty:?}"));
}

#[test]
fn each_head_has_a_matrix_of_its_own() {
    for ty in types() {
        let n_in = 2 * ty.block_len().max(32);
        check_heads(ty, 1, 1, 3, 9, n_in);
        check_heads(ty, 8, 11, 2, 10, n_in);
        check_heads(ty, 16, 18, 2, 10, n_in);
        check_heads(ty, 64, 70, 2, 3, n_in);
    }
    check_heads(TensorType::F32, 2, 2, 5, 7, 21);
    check_heads(TensorType::F16, 4, 3, 1, 1, 30);
}
