//! [`Case`]: one launch of an attention kernel, and its expected results.

use half::f16;
use tokenmill_backend::KvType;
use tokenmill_cuda_exec::PrefillTiles;
use tokenmill_ptx_sim::{Arguments, Counters, DevicePtr};
use tokenmill_quant::e4m3;
use tokenmill_testkit::Random;

use crate::kernels::bench::{NULL, Sim, assert_close};

/// Error of f32 sums of hundreds of terms, weights below 1 times values below 1.
const SUMMED: f64 = 3e-6;
/// Relative rounding error of f16.
const HALF: f64 = 1.0 / 2048.0;

/// A batch of tokens on a paged store.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one choice of the kernel's arguments"
)]
pub(super) struct Case {
    /// Position of each token; `None` is padding. Each token is a sequence of its own here, unless `seq_of` says otherwise.
    pub(super) positions: Vec<Option<u32>>,
    pub(super) seq_of: Vec<u32>,
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    pub(super) dims: [usize; 2],
    /// Type of keys and values for the kernel of single tokens.
    pub(super) ty: KvType,
    pub(super) window: usize,
    /// Whether windows are consecutive chunks instead of sliding.
    pub(super) is_chunked: bool,
    /// Whether tokens see later ones too, up to the last of their sequence.
    pub(super) both: bool,
    pub(super) cap: f32,
    pub(super) has_sinks: bool,
    pub(super) has_slopes: bool,
    pub(super) quantizes: bool,
    /// Whether values are the first elements of keys.
    pub(super) in_keys: bool,
    /// The types of keys and values for the kernel for many query rows; the tokens of a sequence are then consecutive.
    pub(super) prefill: Option<[KvType; 2]>,
    /// Whether that kernel uses matrix operations of warpgroups.
    pub(super) is_wide: bool,
    /// Number of sequences that it skips: the first ones, of one token each.
    pub(super) n_leading_single: usize,
    /// Splits of a token before they grow, as a power of two.
    pub(super) split_bits: u32,
    /// Number of tiles in a warp's ring.
    pub(super) n_stages: usize,
}

/// Selects how the kernel of single tokens is launched.
struct Cut {
    kernel: String,
    heads: usize,
    n_splits: usize,
    columns: [usize; 2],
    warp_tokens: usize,
    shared_bytes: usize,
}

impl Cut {
    fn of(case: &Case, context: usize) -> Self {
        let rows = case.dims.map(|dim| dim.next_multiple_of(8));
        let number_bytes = match case.ty {
            KvType::F32 => 4,
            KvType::F16 => 2,
            _ => 1,
        };
        let is_tensor = case.ty != KvType::F32;
        let group = case.n_heads / case.n_kv_heads;
        let is_wide = rows[0].max(rows[1]) > 256;
        let longer = ((context - 1) / 64) >> case.split_bits;
        let split: usize = 64 << longer.checked_ilog2().map_or(0, |bits| bits + 1).min(3);
        // Kernels in f16 multiply 8 heads, even if there are fewer, and 16 columns at a time.
        let most = if is_wide { 2 } else { 8 };
        let (heads, columns, score_heads, score_pad, query_bytes);
        if is_tensor {
            heads = most;
            columns = rows.map(|row| if is_wide { 64 } else { row.next_multiple_of(16) });
            (score_heads, score_pad, query_bytes) = (8, 8, 32);
        } else {
            let wanted = [1, 2, 4, 8].into_iter().find(|&heads| heads >= group);
            heads = wanted.unwrap_or(8).min(most);
            columns = rows.map(|row| if row * 4 <= 512 { row } else { 128 });
            (score_heads, score_pad, query_bytes) = (heads, 0, 4 * heads);
        }
        let tile = |columns: usize| 16 * ((columns * number_bytes / 16) | 1) * 16;
        let sums = if columns[1] < rows[1] {
            heads * (rows[1] + 4)
        } else {
            0
        };
        let of_warp = case.n_stages * tile(columns[0]).max(tile(columns[1]))
            + 4 * (score_heads * (split / 4 + score_pad) + sums);
        Self {
            kernel: if is_tensor {
                let widest = columns[0].max(columns[1]);
                let name = if case.ty == KvType::F16 { "f16" } else { "of_types" };
                format!("attention_{name}_d{}", widest.next_power_of_two().max(64))
            } else {
                format!("attention_f32_g{heads}")
            },
            heads,
            // One split more than needed: a captured grid is larger than most steps.
            n_splits: context.div_ceil(64) + 1,
            columns,
            warp_tokens: split / 4,
            shared_bytes: 4 * of_warp + rows[0].next_multiple_of(16) * query_bytes,
        }
    }
}

impl Case {
    pub(super) fn new(positions: &[u32], n_heads: usize, n_kv_heads: usize, dim: usize) -> Self {
        Self {
            positions: positions.iter().copied().map(Some).collect(),
            seq_of: (0..positions.len() as u32).collect(),
            n_heads,
            n_kv_heads,
            dims: [dim, dim],
            ty: KvType::F16,
            window: 0,
            is_chunked: false,
            both: false,
            cap: 0.0,
            has_sinks: false,
            has_slopes: false,
            quantizes: false,
            in_keys: false,
            prefill: None,
            is_wide: false,
            n_leading_single: 0,
            split_bits: 5,
            n_stages: 2,
        }
    }

    /// Makes runs of consecutive tokens for the kernel for many query rows: each sequence's first position and length.
    pub(super) fn prefill(runs: &[(u32, u32)], n_heads: usize, n_kv_heads: usize, dim: usize) -> Self {
        let positions: Vec<u32> = runs.iter().flat_map(|&(first, n)| first..first + n).collect();
        let seq_of = (0..)
            .zip(runs)
            .flat_map(|(seq, &(_, n))| (0..n).map(move |_| seq));
        Self {
            seq_of: seq_of.collect(),
            prefill: Some([KvType::F16; 2]),
            ..Self::new(&positions, n_heads, n_kv_heads, dim)
        }
    }

    /// Returns the types of keys and of values.
    fn types(&self) -> [KvType; 2] {
        self.prefill.unwrap_or([self.ty; 2])
    }

    /// Returns the kernel for runs.
    fn tiles(&self) -> Option<PrefillTiles> {
        let dim = self.dims[0].max(self.dims[1]);
        let wide = || PrefillTiles::wide().find(|tiles| tiles.takes(dim));
        let tiles = |types| {
            if self.is_wide {
                wide()
            } else {
                PrefillTiles::of(types, dim)
            }
        };
        self.prefill
            .map(|types| tiles(types).expect("there is a kernel for such heads"))
    }

    /// Returns a query's number times the scale as the kernel multiplies it. For warpgroups this is the closest f16 number, with the factor
    /// for powers of two.
    fn scaled(&self, q: f32, scale: f32) -> f64 {
        if self.is_wide {
            let number = f16::from_f32(q * (scale * std::f32::consts::LOG2_E));
            number.to_f64() * std::f64::consts::LN_2
        } else {
            f64::from(scale) * f64::from(q)
        }
    }

    fn n_seqs(&self) -> usize {
        self.seq_of.iter().max().map_or(0, |&last| last as usize + 1)
    }
}

/// Returns the store of one layer, and its numbers: rows by slot, KV head and element.
fn store(
    random: &mut Random,
    n_pages: usize,
    n_kv_heads: usize,
    dim: usize,
    ty: KvType,
) -> (Vec<u8>, Vec<f32>) {
    let row = dim.next_multiple_of(8);
    let mut bytes = Vec::new();
    let mut values = Vec::new();
    let mut scales = Vec::new();
    for index in 0..n_pages * n_kv_heads * 16 {
        if ty == KvType::Q8_0 {
            for _ in 0..row / 32 {
                let scale = f16::from_f32(random.symmetric().abs() / 127.0);
                scales.extend(scale.to_le_bytes());
                for _ in 0..32 {
                    let byte = (random.symmetric() * 127.0) as i8;
                    bytes.push(byte as u8);
                    values.push(scale.to_f32() * f32::from(byte));
                }
            }
            // The scales of a head follow the bytes of its 16 rows, and a page ends at a multiple of 256 bytes.
            if index % 16 == 15 {
                bytes.append(&mut scales);
            }
            if (index + 1) % (16 * n_kv_heads) == 0 {
                bytes.resize(bytes.len().next_multiple_of(256), 0);
            }
            continue;
        }
        for i in 0..row {
            let value = if i < dim { random.symmetric() } else { 0.0 };
            if ty == KvType::E4M3 {
                let code = e4m3::encode(value);
                bytes.push(code);
                values.push(e4m3::decode(code));
            } else if ty == KvType::F16 {
                let rounded = f16::from_f32(value);
                bytes.extend(rounded.to_le_bytes());
                values.push(rounded.to_f32());
            } else {
                bytes.extend(value.to_le_bytes());
                values.push(value);
            }
        }
    }
    (bytes, values)
}

/// Runs the kernel on a case, compares it with the plain formula in f64, and returns the launch's counts.
pub(super) fn check(case: &Case) -> Counters {
    let [dim_k, dim_v] = case.dims;
    let (n_heads, n_kv_heads) = (case.n_heads, case.n_kv_heads);
    let n_tokens = case.positions.len();
    let mut random = Random::new((dim_k * n_heads + n_tokens) as u64);
    let mut sim = Sim::new();
    // Pages are assigned at random; each sequence has as many as its longest token needs.
    let longest = |seq: usize| {
        let tokens = case.positions.iter().zip(&case.seq_of);
        tokens
            .filter(|(_, s)| **s as usize == seq)
            .filter_map(|(p, _)| *p)
            .max()
    };
    let counts: Vec<usize> = (0..case.n_seqs())
        .map(|seq| longest(seq).map_or(0, |last| last as usize / 16 + 1))
        .collect();
    let n_pages = counts.iter().sum::<usize>() + 3;
    let mut pages: Vec<u32> = (0..n_pages as u32).collect();
    for i in (1..n_pages).rev() {
        pages.swap(i, random.below(i + 1));
    }
    // Pages that no token sees any more are absent.
    let starts_of = |seq: usize| counts[..seq].iter().sum::<usize>();
    let mut table = pages.clone();
    for seq in 0..counts.len() {
        let tokens = case.positions.iter().zip(&case.seq_of);
        let oldest = tokens
            .filter(|(_, s)| **s as usize == seq)
            .filter_map(|(p, _)| *p)
            .min();
        if let (Some(oldest), 1..) = (oldest, case.window) {
            let n_gone = (oldest as usize + 1).saturating_sub(case.window) / 16;
            table[starts_of(seq)..][..n_gone].fill(u32::MAX);
        }
    }
    let starts: Vec<u32> = (0..=counts.len())
        .map(|seq| counts[..seq].iter().sum::<usize>() as u32)
        .collect();
    let scale = 1.0 / (dim_k as f32).sqrt();
    let q = random.values(n_tokens * n_heads * dim_k);
    let sinks = random.values(n_heads);
    let slopes: Vec<f32> = random.values(n_heads).iter().map(|slope| slope.abs()).collect();
    let types = case.types();
    let (k_bytes, k) = store(&mut random, n_pages, n_kv_heads, dim_k, types[0]);
    let (v_bytes, v) = if case.in_keys {
        (Vec::new(), k.clone())
    } else {
        store(&mut random, n_pages, n_kv_heads, dim_v, types[1])
    };

    let group = n_heads / n_kv_heads;
    let longest_context = case
        .positions
        .iter()
        .flatten()
        .max()
        .map_or(1, |&last| last as usize + 1);
    let cut = Cut::of(case, longest_context);
    let (g, n_splits) = (cut.heads, cut.n_splits);
    let grid = [n_kv_heads * group.div_ceil(g), n_splits, n_tokens];
    let width = n_heads * dim_v;
    let out = sim.room(n_tokens * width * 4);
    let quantized = sim.room_quantized(n_tokens, width);
    let partial = sim.room(n_tokens * n_heads * n_splits * (dim_v.next_multiple_of(8) + 4) * 4);
    let counters = sim.u32s(&vec![0; n_tokens * grid[0]]);
    let positions: Vec<u32> = case.positions.iter().map(|p| p.unwrap_or(u32::MAX)).collect();
    let (row_k, row_v) = (dim_k.next_multiple_of(8), dim_v.next_multiple_of(8));
    let stride_v = if case.in_keys { row_k } else { row_v };
    let mut arguments = Arguments::new().ptr(sim.f32s(&q)).ptr(out);
    if case.prefill.is_none() {
        arguments = arguments
            .ptr(if case.quantizes { quantized.bytes } else { NULL })
            .ptr(if case.quantizes { quantized.scales } else { NULL });
    }
    let seq_starts: Vec<u32> = (0..=case.n_seqs())
        .map(|seq| case.seq_of.iter().filter(|&&s| (s as usize) < seq).count() as u32)
        .collect();
    // Skipped sequences come before those that the kernel is given.
    let left_out = 4 * case.n_leading_single as u64;
    let keys = sim.bytes(&k_bytes);
    let values = if case.in_keys { keys } else { sim.bytes(&v_bytes) };
    arguments = arguments.ptr(sim.u32s(&positions));
    if case.prefill.is_none() {
        arguments = arguments.ptr(sim.u32s(&case.seq_of));
    }
    arguments = arguments
        .ptr(if case.prefill.is_some() || case.both {
            DevicePtr(sim.u32s(&seq_starts).0 + left_out)
        } else {
            NULL
        })
        .ptr(DevicePtr(sim.u32s(&starts).0 + left_out))
        .ptr(sim.u32s(&table))
        .ptr(keys)
        .ptr(values)
        .ptr(if case.has_sinks { sim.f32s(&sinks) } else { NULL })
        .ptr(if case.has_slopes { sim.f32s(&slopes) } else { NULL })
        .f32(scale)
        .f32(case.cap);
    arguments = arguments.i32(case.window as i32);
    if case.prefill.is_some() {
        arguments = arguments
            .i32(i32::from(case.is_chunked))
            .i32(i32::from(case.both));
    }
    for n in [n_heads, n_kv_heads, dim_k, dim_v] {
        arguments = arguments.i32(n as i32);
    }
    let launched = if let Some(tiles) = case.tiles() {
        let [module, kernel] = tiles.names();
        if types[0] != types[1] {
            for ty in types {
                // The codes of `kernels/mixed.cuh`.
                arguments = arguments.i32(match ty {
                    KvType::F16 => 0,
                    KvType::F32 => 1,
                    _ => 2,
                });
            }
        }
        // As many tiles as if all tokens were one sequence's.
        let n_tiles = (n_tokens * group).div_ceil(tiles.rows());
        let grid = [n_kv_heads, n_tiles, case.n_seqs() - case.n_leading_single];
        sim.launch(&module, &kernel, grid, 256, tiles.shared_bytes(), &arguments)
    } else {
        let arguments = (arguments.i32(stride_v as i32))
            .i32(i32::from(case.is_chunked))
            .i32(cut.heads as i32)
            .i32(case.split_bits as i32)
            .i32(cut.columns[0] as i32)
            .i32(cut.columns[1] as i32)
            .i32(case.n_stages as i32)
            .i32(cut.warp_tokens as i32)
            .ptr(partial)
            .ptr(counters);
        let shared = cut.shared_bytes;
        let module = match case.ty {
            KvType::E4M3 => "attention_decode_e4m3_e4m3",
            _ => "attention_decode",
        };
        sim.launch(module, &cut.kernel, grid, 128, shared, &arguments)
    };
    let counts_left = sim.read_u32s(counters, n_tokens * grid[0]);
    assert!(counts_left.iter().all(|&count| count == 0));

    let n_left_out = seq_starts[case.n_leading_single] as usize;
    let found = sim.read_f32s(
        DevicePtr(out.0 + (4 * n_left_out * width) as u64),
        (n_tokens - n_left_out) * width,
    );
    let mut expected = vec![(0.0, SUMMED); n_tokens * width];
    for (token, position) in case.positions.iter().enumerate() {
        let Some(position) = *position else {
            continue;
        };
        let mut context = position as usize + 1;
        let first = if case.is_chunked {
            position as usize / case.window * case.window
        } else if case.window > 0 {
            context.saturating_sub(case.window)
        } else {
            0
        };
        if case.both {
            let last = longest(case.seq_of[token] as usize).unwrap_or(0) as usize;
            context = last + 1;
            if case.window > 0 {
                context = context.min(position as usize + case.window);
            }
        }
        let table = &pages[starts[case.seq_of[token] as usize] as usize..];
        let row_of = |j: usize, head: usize, row: usize| {
            ((table[j / 16] as usize * n_kv_heads + head / group) * 16 + j % 16) * row
        };
        for head in 0..n_heads {
            let query = &q[(token * n_heads + head) * dim_k..][..dim_k];
            let scores: Vec<f64> = (first..context)
                .map(|j| {
                    let key = &k[row_of(j, head, row_k)..][..dim_k];
                    let dot: f64 = query
                        .iter()
                        .zip(key)
                        .map(|(q, k)| case.scaled(*q, scale) * f64::from(*k))
                        .sum();
                    let slope = if case.has_slopes { slopes[head] } else { 0.0 };
                    let s = dot - f64::from(slope) * (position as usize).abs_diff(j) as f64;
                    let cap = f64::from(case.cap);
                    if cap > 0.0 { cap * (s / cap).tanh() } else { s }
                })
                .collect();
            let sink = f64::from(sinks[head]);
            let mut denominator: f64 = scores.iter().map(|s| s.exp()).sum();
            if case.has_sinks {
                denominator += sink.exp();
            }
            for d in 0..dim_v {
                let terms = (first..context)
                    .zip(&scores)
                    .map(|(j, s)| s.exp() * f64::from(v[row_of(j, head, stride_v) + d]));
                let (sum, magnitude) = terms.fold((0.0, 0.0), |(sum, magnitude), term| {
                    (sum + term, magnitude + term.abs())
                });
                // Each weight is rounded to f16 before it is multiplied, but not in their sum.
                let rounded = if case.is_wide { HALF } else { 0.0 };
                expected[token * width + head * dim_v + d] =
                    (sum / denominator, SUMMED + rounded * magnitude / denominator);
            }
        }
    }
    assert_close(&found, &expected[n_left_out * width..], 1.0, "attention");
    if case.quantizes {
        let rounded = sim.dequantized(&quantized, n_tokens, width);
        for (x, r) in found.iter().zip(rounded) {
            assert!((f64::from(*x) - r).abs() < 1.0 / 250.0);
        }
    }
    launched
}
