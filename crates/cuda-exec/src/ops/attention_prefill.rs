//! Attention of runs of tokens on tensor cores. Kernels: `attention_prefill.cu` for f16 stores, `attention_prefill_of_types.cu` for the others, and
//! `attention_wide.cu` for f16 stores by matrix operations of warpgroups.
//!
//! A thread block takes many tokens of a sequence, and no partial results are combined afterwards. Invariant: [`PrefillTiles`] equals the kernels'
//! sizes.

use tokenmill_backend::{Attention, KvType};

use super::{
    Ops,
    attention::{AttentionStep, TokenRuns, window_of},
    attention_decode::Visible,
    store_code, types_suffix, with_types,
};
use crate::{
    Args, Buffer, Device, Kernel, LaunchShape, View, ViewMut, error::Result, kv::KvLayer,
    modules::WIDE_ATTENTION, wide::has_module,
};

/// Threads of a thread block.
const THREADS: u32 = 256;
/// Number of warps of a thread block.
const WARPS: usize = 8;
/// Widest heads of the kernels for f16 stores.
const HALF_DIMS: [usize; 4] = [64, 128, 192, 256];
/// Widest heads of the kernels for other types.
const OTHER_DIMS: [usize; 3] = [64, 128, 256];
/// Widest heads of the kernels by matrix operations of warpgroups.
const WIDE_DIMS: [usize; 2] = [64, 128];
/// Smallest number of query rows of the longest run for which these kernels are used: as many as one of their warpgroups multiplies.
const MIN_WIDE_ROWS: usize = 64;
/// Widest heads for which a warp has all columns of its rows.
const MAX_WARP_DIM: usize = 128;

/// Number of positions up to which no kernel splits a context.
const SHORT_CONTEXT: usize = 64;
/// Number of reads of a head's context that take less time than one thread block's walk over it. By the timing model one walk gets 5 GB/s out of
/// the memory; all reads together get thousands.
const READS_OF_A_WALK: usize = 256;

/// Returns whether a kernel for runs computes the attention of runs, if one exists. Its thread blocks read a context once for many tokens, but each
/// walks over all of it: if few tokens follow a long context, as in drafts and short turns, most of the GPU would be idle. The kernels for single
/// tokens split the context, and read it once for each token and each of a token's `n_blocks_x` thread blocks of a split.
pub(super) fn attends_by_runs(n_tokens: usize, n_blocks_x: usize, visible: Visible) -> bool {
    visible.n_tokens() <= SHORT_CONTEXT || n_tokens * n_blocks_x >= READS_OF_A_WALK
}

/// The shared memory of a thread block in a kernel for runs, and its number of query rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillTiles {
    types: [KvType; 2],
    dim: usize,
    is_wide: bool,
}

/// Returns whether matrix operations of warpgroups compute the attention of runs, the longest of `n_rows`
/// query rows, if the GPU, the types and the heads have such a kernel. Queries and weights are rounded to f16
/// there, like the rows of products by as many rows, and scores are neither capped nor shifted by distance.
pub(super) fn attends_wide(n_rows: usize, has_cap: bool, has_slopes: bool) -> bool {
    n_rows >= MIN_WIDE_ROWS && !has_cap && !has_slopes
}

impl PrefillTiles {
    /// Returns the tiles of each kernel with matrix operations of warpgroups, narrowest heads first.
    pub fn wide() -> impl Iterator<Item = Self> {
        WIDE_DIMS.into_iter().map(|dim| Self {
            types: [KvType::F16; 2],
            dim,
            is_wide: true,
        })
    }

    /// Returns the tiles of each kernel for keys and values of these types, narrowest heads first.
    pub fn all(types: [KvType; 2]) -> impl Iterator<Item = Self> {
        let dims: &[usize] = if types == [KvType::F16; 2] {
            &HALF_DIMS
        } else {
            &OTHER_DIMS
        };
        dims.iter().map(move |&dim| Self {
            types,
            dim,
            is_wide: false,
        })
    }

    /// Returns the tiles for heads of up to `dim` values; `None` if no kernel takes heads that wide.
    pub fn of(types: [KvType; 2], dim: usize) -> Option<Self> {
        Self::all(types).find(|tiles| tiles.takes(dim))
    }

    /// Returns whether heads may have up to `dim` values.
    pub fn takes(self, dim: usize) -> bool {
        dim <= self.dim
    }

    fn is_half(self) -> bool {
        self.types == [KvType::F16; 2]
    }

    /// Returns the module and the kernel.
    pub fn names(self) -> [String; 2] {
        let dim = self.dim;
        if self.is_wide {
            [WIDE_ATTENTION.to_owned(), format!("{WIDE_ATTENTION}_d{dim}")]
        } else if self.is_half() {
            [
                "attention_prefill".to_owned(),
                format!("attention_prefill_d{dim}"),
            ]
        } else {
            [
                format!("attention_prefill_{}", types_suffix(self.types)),
                format!("attention_prefill_of_types_d{dim}"),
            ]
        }
    }

    /// Returns the number of warps that share the columns of their rows.
    fn split(self) -> usize {
        if self.dim > MAX_WARP_DIM { 2 } else { 1 }
    }

    /// Returns the query rows of a thread block: tokens times the query heads that share a KV head.
    pub fn rows(self) -> usize {
        16 * WARPS / self.split()
    }

    /// Positions of a tile of keys or values.
    fn positions(self) -> usize {
        if self.is_half() {
            64
        } else if self.types[0] != self.types[1] {
            16
        } else if self.dim == OTHER_DIMS[0] {
            64
        } else if self.types[1] == KvType::Q8_0 {
            16
        } else {
            32
        }
    }

    /// Returns the dynamic shared memory: a tile of keys and one of values with their padding, and the scores of warps that share rows; or two
    /// tiles of both, and their alignment.
    pub fn shared_bytes(self) -> usize {
        let (dim, n_positions) = (self.dim, self.positions());
        if self.is_wide {
            return 4 * n_positions * dim * 2 + 1024;
        }
        let tile = |ty: KvType, padding: usize| match ty {
            KvType::F16 => n_positions * (2 * dim + padding),
            KvType::F32 => n_positions * (4 * dim + padding),
            KvType::E4M3 => n_positions * (dim + padding),
            KvType::Q8_0 | KvType::Q4_0 => n_positions * (dim + padding) + n_positions * dim / 16,
        };
        let [keys, values] = self.types;
        let key_padding = match keys {
            KvType::F16 if self.is_half() => 16,
            KvType::F16 => 32,
            KvType::F32 => 64,
            _ => 16,
        };
        let scores = if self.split() == 2 {
            n_positions * 16 * WARPS * 4
        } else {
            0
        };
        tile(keys, key_padding) + tile(values, 16) + scores
    }
}

/// A kernel for runs, and its sizes.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefillKernel {
    tiles: PrefillTiles,
    kernel: Kernel,
}

/// Loads the kernels for keys and values of these types.
pub(super) fn load(device: &Device, types: [KvType; 2]) -> Result<Vec<PrefillKernel>> {
    PrefillTiles::all(types)
        .map(|tiles| load_one(device, tiles))
        .collect()
}

/// Loads the kernels by matrix operations of warpgroups; none if the device has none.
pub(super) fn load_wide(device: &Device) -> Result<Vec<PrefillKernel>> {
    if !has_module(device, WIDE_ATTENTION)? {
        return Ok(Vec::new());
    }
    PrefillTiles::wide()
        .map(|tiles| load_one(device, tiles))
        .collect()
}

fn load_one(device: &Device, tiles: PrefillTiles) -> Result<PrefillKernel> {
    let [module, name] = tiles.names();
    let kernel = device.kernel_with_shared_bytes(&module, &name, tiles.shared_bytes())?;
    Ok(PrefillKernel { tiles, kernel })
}

impl Ops {
    /// Returns the kernel for runs of tokens whose heads have up to `dim` values; `None` if there is none, or none was loaded.
    pub(super) fn prefill_of(&self, types: [KvType; 2], dim: usize) -> Option<PrefillKernel> {
        let kernels = self.prefill[store_code(types)].iter();
        (kernels.copied()).find(|kernel| kernel.tiles.takes(dim))
    }

    /// Attends as [`Self::attention`] does, on tensor cores: a thread block takes many tokens of a sequence.
    pub(super) fn attention_of_runs(
        &self,
        prefill: PrefillKernel,
        attention: &Attention<Buffer<f32>>,
        step: &AttentionStep<'_>,
        runs: TokenRuns<'_>,
        kv: KvLayer<'_>,
        q: View<'_, f32>,
        output: ViewMut<'_, f32>,
    ) -> Result<()> {
        let (dim_k, dim_v) = (kv.shape.head_dim_k, kv.shape.head_dim_v);
        let (n_heads, n_tokens) = (attention.n_heads, step.positions.len());
        let n_kv_heads = kv.shape.n_kv_heads;
        let n_rows = runs.longest * (n_heads / n_kv_heads);
        let prefill = if kv.types == [KvType::F16; 2]
            && attends_wide(n_rows, attention.softcap.is_some(), attention.slopes.is_some())
        {
            let mut wide = self.wide_prefill.iter().copied();
            wide.find(|wide| wide.tiles.takes(dim_k.max(dim_v)))
                .unwrap_or(prefill)
        } else {
            prefill
        };
        // The kernel for single tokens attends for the others and splits their contexts.
        let n_single = runs.n_leading_single;
        let seq_starts = runs.seq_starts.range(n_single..runs.seq_starts.len())?;
        let page_starts = step.page_starts.range(n_single..step.page_starts.len())?;
        let n_tiles = n_rows.div_ceil(prefill.tiles.rows());
        let n_seqs = seq_starts.len() - 1;
        let args = Args::new()
            .read(q.range(0..n_tokens * n_heads * dim_k)?)
            .write(output.range(0..n_tokens * n_heads * dim_v)?)
            .read(step.positions)
            .read(seq_starts)
            .read(page_starts)
            .read(step.pages)
            .read(kv.k)
            .read(kv.v)
            .read_or_null(attention.sinks.as_ref().map(Buffer::view))
            .read_or_null(attention.slopes.as_ref().map(Buffer::view))
            .float(attention.scale)
            .float(attention.softcap.unwrap_or(0.0))
            .count(window_of(attention))
            .count(usize::from(attention.is_chunked))
            .count(usize::from(!attention.is_causal))
            .count(n_heads)
            .count(n_kv_heads)
            .count(dim_k)
            .count(dim_v);
        let shape = LaunchShape::new([n_kv_heads, n_tiles, n_seqs], THREADS)
            .with_shared_bytes(prefill.tiles.shared_bytes());
        self.device
            .launch(prefill.kernel, shape, &with_types(args, kv.types))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_tokens_behind_a_long_context_attend_one_by_one() {
        let takes_runs = |n_tokens, n_blocks_x, context, window| {
            let visible = Visible {
                context,
                window,
                is_causal: true,
            };
            attends_by_runs(n_tokens, n_blocks_x, visible)
        };
        // A draft of four tokens, and a prompt.
        assert!(!takes_runs(5, 8, 32_768, 0));
        assert!(takes_runs(512, 8, 32_768, 0));
        // Drafts of as many sequences as fill the GPU.
        assert!(takes_runs(16 * 5, 8, 32_768, 0));
        // A single KV head has few thread blocks even with more tokens.
        assert!(!takes_runs(200, 1, 32_768, 0) && takes_runs(256, 1, 32_768, 0));
        // The visible context is short.
        assert!(takes_runs(2, 8, 64, 0) && !takes_runs(2, 8, 80, 0));
        assert!(takes_runs(2, 8, 32_768, 32) && !takes_runs(2, 8, 32_768, 1024));
    }

    #[test]
    fn every_tile_fits_the_smallest_multiprocessor() {
        let pairs = KvType::ALL.map(|keys| KvType::ALL.map(|values| [keys, values]));
        for types in (pairs.concat().into_iter()).filter(|types| crate::KvStore::takes(*types)) {
            for tiles in PrefillTiles::all(types) {
                // A thread block may request 99 KiB on compute capability 8.6 and 8.9.
                assert!(tiles.shared_bytes() <= 99 << 10, "{tiles:?}");
            }
        }
        let bytes = |types, dim| PrefillTiles::of(types, dim).map(PrefillTiles::shared_bytes);
        assert_eq!(bytes([KvType::F16; 2], 40), Some(18_432));
        assert_eq!(bytes([KvType::F16; 2], 256), Some(100_352));
        assert_eq!(bytes([KvType::F32; 2], 129), Some(84_480));
        assert_eq!(bytes([KvType::Q8_0; 2], 128), Some(2 * 16 * (144 + 8)));
        assert_eq!(bytes([KvType::F16; 2], 257), None);
    }

    #[test]
    fn plain_attention_of_many_rows_is_wide() {
        assert!(attends_wide(64, false, false) && !attends_wide(63, false, false));
        assert!(!attends_wide(64, true, false) && !attends_wide(64, false, true));
        let bytes: Vec<usize> = PrefillTiles::wide().map(PrefillTiles::shared_bytes).collect();
        assert_eq!(bytes, [33_792, 66_560]);
    }

    #[test]
    fn wide_heads_have_half_the_rows() {
        let rows = |dim| PrefillTiles::of([KvType::F16; 2], dim).map(PrefillTiles::rows);
        assert_eq!([rows(128), rows(129)], [Some(128), Some(64)]);
    }
}
