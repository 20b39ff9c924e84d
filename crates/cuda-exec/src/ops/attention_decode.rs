//! [`DecodePlan`]: how a launch of `attention_decode.cu` is divided into query heads, splits and tiles.
//!
//! This is arithmetic, some of which the kernel repeats. Invariant: splits depend only on a token's visible context and on the heads; the
//! kernel, its heads and its tiles depend only on the model. So neither the grid nor the batch decides how a token's sums are made.

use tokenmill_backend::{KvLayerShape, KvType, PAGE_TOKENS};

use crate::DeviceInfo;

/// Threads of a thread block.
pub(super) const THREADS: u32 = 128;
const WARPS: usize = 4;
/// Smallest number of positions of a split: a page for each warp.
const MIN_SPLIT: usize = WARPS * PAGE_TOKENS;
const MAX_LONGER: u32 = 3;
const MAX_SPLIT: usize = MIN_SPLIT << MAX_LONGER;
/// Number of thread blocks that fill a large GPU twice.
const WANTED_BLOCKS: usize = 256;
/// Thread blocks per multiprocessor that the registers allow. Launches that rotate rows and have more thread blocks than fit on all
/// multiprocessors at once give each of them several splits, of [`MAX_SPLIT`] positions together.
const TURNED_BLOCKS: usize = 4;
/// The bytes of shared memory that the kernel declares statically, with the bytes reserved for each thread
/// block.
const STATIC_SHARED_BYTES: usize = 3 << 10;
/// Columns of a tile of the kernels for keys and values that are both f16 or both e4m3, and those of wider rows; their query heads.
const TENSOR_COLUMNS: [usize; 3] = [64, 128, 256];
const TENSOR_COLUMNS_OF_WIDE: usize = 64;
const TENSOR_HEADS: usize = 8;
/// Padding between the scores of two heads, in numbers.
const TENSOR_SCORE_PAD: usize = 8;
/// Query heads of the other kernels, the largest bytes and columns of a row that is one tile, and the columns for wider rows.
const PLAIN_HEADS: [usize; 4] = [1, 2, 4, 8];
const PLAIN_ROW_BYTES: usize = 512;
const PLAIN_ROW: usize = 256;
const PLAIN_COLUMNS_OF_WIDE: usize = 128;
/// Rings of tiles above this size have two stages, others four.
const LARGE_RINGS: usize = 40 << 10;
/// Dynamic shared memory of a thread block: the limit of GPUs of compute capability 8.6, less the kernel's static part.
pub(super) const MAX_SHARED_BYTES: usize = 96 << 10;

/// The numbers of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DecodePlan {
    /// Which of [`kernels`]; [`Self::kernel`] names it.
    pub(super) variant: usize,
    /// Query heads of a thread block.
    pub heads: usize,
    /// Thread blocks for a token and a split.
    pub n_blocks_x: usize,
    /// Splits of the grid.
    pub n_splits: usize,
    /// Binary logarithm of a token's number of splits while these are shorter than the longest.
    pub split_bits: u32,
    /// Columns of a tile of keys and of one of values.
    pub columns: [usize; 2],
    /// Number of tiles in a warp's ring.
    pub n_stages: usize,
    /// Positions of a warp in the longest split.
    pub warp_tokens: usize,
    /// Dynamic shared memory.
    pub shared_bytes: usize,
    /// Dynamic shared memory if thread blocks have several splits.
    shared_bytes_of_several: usize,
    /// Smallest number of thread blocks for a token and some heads: its splits, [`MAX_SPLIT`] positions together.
    min_blocks_y: usize,
}

/// Names of the kernels for a store of these types.
pub(super) fn kernels(types: [KvType; 2]) -> Vec<String> {
    match types {
        [KvType::F16, KvType::F16] => TENSOR_COLUMNS.map(|n| format!("attention_f16_d{n}")).to_vec(),
        [KvType::E4M3, KvType::E4M3] => (TENSOR_COLUMNS.map(|n| format!("attention_of_types_d{n}"))).to_vec(),
        [KvType::F32, KvType::F32] => PLAIN_HEADS.map(|n| format!("attention_f32_g{n}")).to_vec(),
        _ => PLAIN_HEADS.map(|n| format!("attention_of_types_g{n}")).to_vec(),
    }
}

/// The part of a context that a token can see, from the first position's page on.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Visible {
    /// Positions of the longest context.
    pub context: usize,
    /// The window; 0 for none.
    pub window: usize,
    /// Whether tokens see no later ones.
    pub is_causal: bool,
}

impl Visible {
    /// Returns the span of all of a context, up to the token itself.
    pub fn causal(context: usize) -> Self {
        Self {
            context,
            window: 0,
            is_causal: true,
        }
    }

    /// Returns the same span with a window; 0 for none.
    #[must_use]
    pub fn with_window(self, window: usize) -> Self {
        Self { window, ..self }
    }

    /// Returns the number of positions of which a token sees some or all.
    pub(super) fn n_tokens(self) -> usize {
        if self.window == 0 {
            return self.context.max(1);
        }
        let sees = if self.is_causal {
            self.window
        } else {
            2 * self.window - 1
        };
        (sees + PAGE_TOKENS - 1).min(self.context).max(1)
    }
}

/// Returns the largest number of splits of a token's context while they are shorter than [`MAX_SPLIT`], as a power of two.
fn split_bits(n_kv_heads: usize) -> u32 {
    (WANTED_BLOCKS / n_kv_heads).clamp(16, 64).ilog2()
}

/// Returns the positions of each split of a context of `n_tokens`, as the kernel computes them.
fn split_len(n_tokens: usize, split_bits: u32) -> usize {
    let excess = ((n_tokens - 1) / MIN_SPLIT) >> split_bits;
    let longer = excess.checked_ilog2().map_or(0, |bits| bits + 1);
    (MIN_SPLIT << longer.min(MAX_LONGER)).min(MAX_SPLIT)
}

/// Returns the largest number of splits for any number of positions up to `n_tokens`.
fn n_splits(n_tokens: usize, split_bits: u32) -> usize {
    let most = (1 << split_bits).max(n_tokens.div_ceil(MAX_SPLIT));
    n_tokens.div_ceil(MIN_SPLIT).min(most)
}

/// Returns the numbers of a token's partial results: for each head and split the sums, their maximum and their denominator.
pub(super) fn partial_len(n_heads: usize, n_splits: usize, dim_v: usize) -> usize {
    n_heads * n_splits * (dim_v.next_multiple_of(8) + 4)
}

/// Returns the same for contexts of up to `n_tokens`.
pub(super) fn longest_partial_len(n_heads: usize, n_kv_heads: usize, dim_v: usize, n_tokens: usize) -> usize {
    partial_len(n_heads, n_splits(n_tokens, split_bits(n_kv_heads)), dim_v)
}

fn number_bytes(ty: KvType) -> usize {
    match ty {
        KvType::F16 => 2,
        KvType::F32 => 4,
        KvType::Q8_0 | KvType::E4M3 => 1,
        KvType::Q4_0 => unreachable!("a store of this type is refused when it is made"),
    }
}

fn tile_bytes(columns: usize, row: usize, ty: KvType) -> usize {
    let scales = if ty == KvType::Q8_0 { row } else { 0 };
    // Rows are an odd multiple of 16 bytes apart.
    PAGE_TOKENS * ((columns * number_bytes(ty) / 16) | 1) * 16 + scales
}

/// Selects the kernel, its heads, and the columns of a tile for rows of these widths.
struct Candidate {
    variant: usize,
    heads: usize,
    columns: [usize; 2],
    is_tensor: bool,
}

impl Candidate {
    /// Returns the candidates that take a group of heads, most heads first.
    fn all(group: usize, rows: [usize; 2], types: [KvType; 2]) -> [Self; 4] {
        if types == [KvType::F16; 2] || types == [KvType::E4M3; 2] {
            let whole = rows.map(|row| row.next_multiple_of(16));
            let widest = whole[0].max(whole[1]);
            let variant = TENSOR_COLUMNS.iter().position(|&columns| columns >= widest);
            let of_heads = |heads| Self {
                variant: variant.unwrap_or(0),
                heads,
                columns: variant.map_or([TENSOR_COLUMNS_OF_WIDE; 2], |_| whole),
                is_tensor: true,
            };
            return [TENSOR_HEADS, 4, 2, 1].map(of_heads);
        }
        let columns = |part: usize| {
            let (row, bytes) = (rows[part], number_bytes(types[part]));
            if row <= PLAIN_ROW && row * bytes <= PLAIN_ROW_BYTES {
                row
            } else {
                PLAIN_COLUMNS_OF_WIDE
            }
        };
        let wanted = PLAIN_HEADS.iter().position(|&heads| heads >= group);
        let wanted = wanted.unwrap_or(PLAIN_HEADS.len() - 1);
        [0, 1, 2, 3].map(|fewer| {
            let variant = wanted.saturating_sub(fewer);
            Self {
                variant,
                heads: PLAIN_HEADS[variant],
                columns: [columns(0), columns(1)],
                is_tensor: false,
            }
        })
    }

    /// Returns the shared memory with the sums of `heads_apart` heads next to the rings. Sums of values in one tile need this only while the rings
    /// are in use.
    fn shared_bytes(
        &self,
        rows: [usize; 2],
        tile: usize,
        n_stages: usize,
        warp_tokens: usize,
        heads_apart: usize,
    ) -> usize {
        let [row_k, row_v] = rows;
        let queries = row_k.next_multiple_of(16) * if self.is_tensor { 32 } else { 4 * self.heads };
        let scores = if self.is_tensor {
            TENSOR_HEADS * (warp_tokens + TENSOR_SCORE_PAD)
        } else {
            self.heads * warp_tokens
        };
        let heads = if self.columns[1] < row_v {
            self.heads
        } else {
            heads_apart
        };
        let sums = heads * (row_v + 4);
        WARPS * (n_stages * tile + 4 * (scores + sums)) + queries
    }
}

/// Describes the multiprocessors of a GPU for the choice of grids. Results do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Multiprocessors {
    pub(super) n: usize,
    /// Shared memory of each, in bytes.
    pub(super) shared_bytes: usize,
}

impl Multiprocessors {
    /// As the driver reports them.
    pub(super) fn of(info: &DeviceInfo) -> Self {
        Self {
            n: info.n_multiprocessors as usize,
            shared_bytes: info.multiprocessor_shared_bytes as usize,
        }
    }
}

impl DecodePlan {
    /// Threads of a thread block.
    pub const THREADS: u32 = THREADS;

    /// Returns the name of the plan's kernel for a store of these types.
    ///
    /// # Panics
    /// For types that no store has.
    pub fn kernel(&self, types: [KvType; 2]) -> String {
        kernels(types).swap_remove(self.variant)
    }

    /// Returns the numbers that the splits of a token pass to each other, for `n_heads` query heads.
    pub fn partial_len(&self, n_heads: usize, dim_v: usize) -> usize {
        partial_len(n_heads, self.n_splits, dim_v)
    }

    /// Returns the number of thread blocks that share the splits of a token, in a launch that rotates `n_tokens` tokens on these
    /// multiprocessors, and their dynamic shared memory.
    pub(super) fn turned(&self, n_tokens: usize, on: Multiprocessors) -> (usize, usize) {
        let n_resident = on.shared_bytes / (self.shared_bytes_of_several + STATIC_SHARED_BYTES);
        let n_wanted = on.n * n_resident.min(TURNED_BLOCKS) / (self.n_blocks_x * n_tokens);
        let n_blocks_y = n_wanted.max(self.min_blocks_y).min(self.n_splits);
        if n_blocks_y == self.n_splits || self.shared_bytes_of_several > MAX_SHARED_BYTES {
            (self.n_splits, self.shared_bytes)
        } else {
            (n_blocks_y, self.shared_bytes_of_several)
        }
    }

    /// Plans the launch for `n_heads` query heads over a layer of this shape and these types.
    pub fn of(n_heads: usize, shape: KvLayerShape, types: [KvType; 2], visible: Visible) -> Self {
        let row = |dim: usize| dim.next_multiple_of(8);
        let rows = [row(shape.head_dim_k), row(shape.head_dim_v)];
        let row_of_value = if shape.has_values_in_keys {
            rows[0]
        } else {
            rows[1]
        };
        let group = n_heads / shape.n_kv_heads;
        let split_bits = split_bits(shape.n_kv_heads);
        let warp_tokens = split_len(visible.n_tokens(), split_bits) / WARPS;
        let plan = |one: &Candidate, warp_tokens: usize| {
            let tile = tile_bytes(one.columns[0], rows[0], types[0]);
            let tile = tile.max(tile_bytes(one.columns[1], row_of_value, types[1]));
            let parts = rows[0].div_ceil(one.columns[0]) + rows[1].div_ceil(one.columns[1]);
            let has_two_tiles = warp_tokens / PAGE_TOKENS * parts <= 2;
            // Sums of values of one tile reuse the memory of a ring.
            let has_sums = one.columns[1] >= rows[1] && 4 * one.heads * (rows[1] + 4) > 2 * tile;
            let has_large_rings = parts > 2 || 4 * WARPS * tile > LARGE_RINGS;
            let n_stages = if !has_sums && (has_two_tiles || has_large_rings) {
                2
            } else {
                4
            };
            Self {
                variant: one.variant,
                heads: one.heads,
                n_blocks_x: shape.n_kv_heads * group.div_ceil(one.heads),
                n_splits: n_splits(visible.n_tokens(), split_bits),
                split_bits,
                columns: one.columns,
                n_stages,
                warp_tokens,
                shared_bytes: one.shared_bytes(rows, tile, n_stages, warp_tokens, 0),
                shared_bytes_of_several: one.shared_bytes(
                    rows,
                    tile,
                    n_stages,
                    warp_tokens,
                    one.heads.min(group),
                ),
                min_blocks_y: visible.n_tokens().div_ceil(MAX_SPLIT),
            }
        };
        // A kernel that fits with the longest splits fits with all, and is used for all. Kernels of fewer
        // heads add up in another order, and the length of a step's splits depends on its longest context,
        // which may be another sequence's.
        let candidates = Candidate::all(group, rows, types);
        let fits = |one: &&Candidate| plan(one, MAX_SPLIT / WARPS).shared_bytes <= MAX_SHARED_BYTES;
        plan(
            candidates.iter().find(fits).unwrap_or(&candidates[3]),
            warp_tokens,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(group: usize, dims: [usize; 2], types: [KvType; 2], context: usize) -> DecodePlan {
        let shape = KvLayerShape {
            n_kv_heads: 8,
            head_dim_k: dims[0],
            head_dim_v: dims[1],
            has_values_in_keys: false,
        };
        let visible = Visible {
            context,
            window: 0,
            is_causal: true,
        };
        DecodePlan::of(8 * group, shape, types, visible)
    }

    fn stored_types() -> Vec<[KvType; 2]> {
        let pairs = KvType::ALL.map(|keys| KvType::ALL.map(|values| [keys, values]));
        (pairs.concat().into_iter())
            .filter(|types| crate::KvStore::takes(*types))
            .collect()
    }

    #[test]
    fn a_thread_block_takes_as_many_heads_as_fit() {
        let heads = |ty, group, dim_k, dim_v| plan(group, [dim_k, dim_v], [ty; 2], 1 << 20).heads;
        assert_eq!(heads(KvType::F16, 1, 128, 128), 8);
        assert_eq!(heads(KvType::F16, 16, 256, 256), 8);
        assert_eq!(heads(KvType::F16, 8, 512, 512), 4);
        assert_eq!(heads(KvType::F16, 8, 1024, 1024), 1);
        assert_eq!(heads(KvType::Q8_0, 1, 128, 128), 1);
        assert_eq!(heads(KvType::Q8_0, 6, 128, 128), 8);
        assert_eq!(heads(KvType::F32, 8, 512, 512), 2);
        assert_eq!(heads(KvType::E4M3, 4, 128, 128), 8);
    }

    #[test]
    fn heads_of_any_width_fit() {
        for [keys, values] in stored_types() {
            let step = keys.block_len().max(values.block_len()).max(16);
            for dim in (step..=1024).step_by(step) {
                for group in [1, 2, 4, 8] {
                    for context in [64, 4096, 1 << 17] {
                        let plan = plan(group, [dim, dim], [keys, values], context);
                        assert!(plan.shared_bytes <= MAX_SHARED_BYTES, "{keys} {values} {dim}");
                        // The sums of a warp reuse the memory of its ring if values are one tile.
                        let tile = tile_bytes(plan.columns[1], dim, values);
                        let sums = 4 * plan.heads * (dim + 4);
                        assert!(plan.columns[1] < dim || sums <= plan.n_stages * tile);
                    }
                }
            }
        }
    }

    #[test]
    fn the_kernel_does_not_depend_on_the_context() {
        for types in stored_types() {
            for dim in (32..=1024).step_by(32) {
                for group in [1, 2, 4, 8, 16] {
                    let of = |context| {
                        let plan = plan(group, [dim, dim], types, context);
                        (plan.variant, plan.heads, plan.n_blocks_x, plan.columns)
                    };
                    for bits in 0..20 {
                        assert_eq!(of(1 << bits), of(1 << 20), "{types:?}, {dim}, {group}, 2^{bits}");
                    }
                }
            }
        }
        // Types whose scores fit with short splits but not with the longest.
        let heads = |keys, values, dim| {
            [512, 1 << 17].map(|context| plan(8, [dim, dim], [keys, values], context).heads)
        };
        assert_eq!(heads(KvType::F32, KvType::F32, 160), [4; 2]);
        assert_eq!(heads(KvType::Q8_0, KvType::F32, 160), [4; 2]);
        assert_eq!(heads(KvType::F16, KvType::F32, 160), [4; 2]);
        assert_eq!(heads(KvType::F32, KvType::F32, 320), [2; 2]);
        assert_eq!(heads(KvType::Q8_0, KvType::Q8_0, 384), [4; 2]);
        assert_eq!(heads(KvType::Q8_0, KvType::Q8_0, 448), [4; 2]);
    }

    #[test]
    fn thread_blocks_of_several_splits_are_as_many_as_the_gpu_has_at_once() {
        let plan = plan(4, [128, 128], [KvType::F16; 2], 512);
        let blocks = |n, kib: usize| {
            let on = Multiprocessors {
                n,
                shared_bytes: kib << 10,
            };
            plan.turned(16, on).0
        };
        // The GPUs are an H200, an A100 and an RTX 4090.
        assert_eq!([blocks(132, 228), blocks(108, 164), blocks(128, 100)], [4, 2, 1]);
    }

    #[test]
    fn splits_are_short_where_there_is_little_and_few_where_there_is_much() {
        let splits = |context| {
            let plan = plan(4, [128, 128], [KvType::F16; 2], context);
            (plan.n_splits, WARPS * plan.warp_tokens)
        };
        assert_eq!(splits(1), (1, 64));
        assert_eq!(splits(512), (8, 64));
        assert_eq!(splits(2048), (32, 64));
        assert_eq!(splits(2049), (32, 128));
        assert_eq!(splits(8192), (32, 256));
        assert_eq!(splits(32_768), (64, 512));
        // No shorter context has more splits than the grid.
        for bits in [4, 5, 6] {
            let mut most = 0;
            for n_tokens in 1..40_000_usize {
                let found = n_tokens.div_ceil(split_len(n_tokens, bits));
                most = most.max(found);
                assert!(most <= n_splits(n_tokens, bits), "{n_tokens}");
            }
        }
    }

    #[test]
    fn a_window_bounds_what_is_seen() {
        let seen = |context, window, is_causal| {
            Visible {
                context,
                window,
                is_causal,
            }
            .n_tokens()
        };
        assert_eq!(seen(5000, 0, true), 5000);
        assert_eq!(seen(5000, 1024, true), 1024 + 15);
        assert_eq!(seen(5000, 100, false), 199 + 15);
        assert_eq!(seen(50, 1024, true), 50);
        assert_eq!(seen(0, 0, true), 1);
    }
}
