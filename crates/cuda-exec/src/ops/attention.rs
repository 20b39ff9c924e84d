//! Paged attention. Kernels: `attention_decode.cu`, and `attention_prefill.cu` for runs of tokens.

use tokenmill_backend::{Attention, KvType, PAGE_TOKENS};

use super::{Ops, QuantizedMut, check_multiple, kv_code};
use crate::{
    Args, Buffer, Device, Kernel, LaunchShape, Stream, View, ViewMut,
    error::Result,
    kv::{KvLayer, check_head_dims},
};

/// Positions of the context that one thread block attends to.
const SPLIT_TOKENS: usize = 256;
/// Query heads of one thread block, by kernel.
const HEADS_OF_KERNEL: [usize; 4] = [1, 2, 4, 8];
/// Bytes of partial results that a launch may write; a longer step is cut into several launches.
const MAX_PARTIAL_BYTES: usize = 64 << 20;

/// The sequences of a step's tokens.
#[derive(Clone, Copy, Debug)]
pub struct AttentionStep<'a> {
    /// Position of each token, `[T]`; `u32::MAX` for padding.
    pub positions: View<'a, u32>,
    /// Sequence of each token, `[T]`.
    pub seq_of: View<'a, u32>,
    /// Offsets of the sequences in `pages`, `[S + 1]`.
    pub page_starts: View<'a, u32>,
    /// Page tables.
    pub pages: View<'a, u32>,
    /// Pages of the longest context.
    pub max_pages: usize,
    /// Where sequences have several tokens each, for the kernels that take them as runs.
    pub runs: Option<TokenRuns<'a>>,
}

/// The tokens of sequences that have several.
#[derive(Clone, Copy, Debug)]
pub struct TokenRuns<'a> {
    /// Offsets of the sequences in the tokens, `[S + 1]`. Positions within a sequence are consecutive.
    pub seq_starts: View<'a, u32>,
    /// Tokens of the longest run.
    pub longest: usize,
}

/// Partial results and counters, shared by all layers.
#[derive(Debug)]
pub struct AttentionScratch {
    partial: Buffer<f32>,
    counters: Buffer<u32>,
}

impl AttentionScratch {
    /// Allocates for steps of up to `max_tokens` tokens and contexts of up to `max_pages` pages.
    ///
    /// # Errors
    /// A [`CudaExecError`](crate::CudaExecError): `OutOfMemory`, `Unsupported` where a head is too wide, or the driver's.
    pub fn new(
        device: &Device,
        max_tokens: usize,
        max_pages: usize,
        n_heads: usize,
        dim_v: usize,
    ) -> Result<Self> {
        let [n_partial, n_counters] = Self::lens(max_tokens, max_pages, n_heads, dim_v);
        let mut counters = device.alloc("attention", n_counters)?;
        device.zero(Stream::Compute, &counters.view_mut())?;
        Ok(Self {
            partial: device.alloc("attention", n_partial)?,
            counters,
        })
    }

    /// Device memory of such scratch.
    pub fn device_bytes(max_tokens: usize, max_pages: usize, n_heads: usize, dim_v: usize) -> usize {
        let [n_partial, n_counters] = Self::lens(max_tokens, max_pages, n_heads, dim_v);
        crate::driver::buffer_bytes::<f32>(n_partial) + crate::driver::buffer_bytes::<u32>(n_counters)
    }

    fn lens(max_tokens: usize, max_pages: usize, n_heads: usize, dim_v: usize) -> [usize; 2] {
        let token_len = n_heads * n_splits(max_pages) * (dim_v + 2);
        [
            (max_tokens * token_len).min((MAX_PARTIAL_BYTES / 4).max(token_len)),
            max_tokens * n_heads,
        ]
    }
}

fn n_splits(max_pages: usize) -> usize {
    (max_pages * PAGE_TOKENS).div_ceil(SPLIT_TOKENS).max(1)
}

/// Query rows of a thread block of the kernels for runs: tokens times the query heads that share a KV head.
const PREFILL_ROWS: usize = 128;
/// Its threads.
const PREFILL_THREADS: u32 = 256;
/// Positions of a tile of keys or values.
const PREFILL_TILE: usize = 64;
/// Widest heads of those kernels.
const PREFILL_HEAD_DIMS: [usize; 2] = [64, 128];

/// Dynamic shared memory of the kernel for heads of up to `dim` values: a tile of keys and one of values, their
/// half-precision rows padded.
fn prefill_shared_bytes(dim: usize) -> usize {
    2 * PREFILL_TILE * (dim + 8) * 2
}

pub(super) fn load_prefill(device: &Device) -> Result<[Kernel; 2]> {
    let [narrow, wide] = PREFILL_HEAD_DIMS;
    let load = |dim: usize| {
        device.kernel_with_shared_bytes(
            "attention_prefill",
            &format!("attention_prefill_d{dim}"),
            prefill_shared_bytes(dim),
        )
    };
    Ok([load(narrow)?, load(wide)?])
}

/// Whether the kernels for runs take heads of this shape: they read half precision only, and do not quantize their output.
fn takes_runs(kv_type: KvType, dim_k: usize, dim_v: usize) -> bool {
    kv_type == KvType::F16 && dim_k.max(dim_v) <= PREFILL_HEAD_DIMS[1]
}

impl Ops {
    /// Attends as [`Self::attention`] does, on tensor cores: a thread block takes many tokens of a sequence.
    fn attention_of_runs(
        &self,
        attention: &Attention<Buffer<f32>>,
        step: &AttentionStep<'_>,
        runs: TokenRuns<'_>,
        kv: KvLayer<'_>,
        q: View<'_, f32>,
        output: ViewMut<'_, f32>,
    ) -> Result<()> {
        let (dim_k, dim_v) = (kv.shape.head_dim_k, kv.shape.head_dim_v);
        let variant = usize::from(dim_k.max(dim_v) > PREFILL_HEAD_DIMS[0]);
        let (n_heads, n_tokens) = (attention.n_heads, step.positions.len());
        let n_kv_heads = kv.shape.n_kv_heads;
        let n_tiles = (runs.longest * (n_heads / n_kv_heads)).div_ceil(PREFILL_ROWS);
        let n_seqs = runs.seq_starts.len() - 1;
        let args = Args::new()
            .read(q.range(0..n_tokens * n_heads * dim_k)?)
            .write(output.range(0..n_tokens * n_heads * dim_v)?)
            .read(step.positions)
            .read(runs.seq_starts)
            .read(step.page_starts)
            .read(step.pages)
            .read(kv.k)
            .read(kv.v)
            .read_or_null(attention.sinks.as_ref().map(Buffer::view))
            .read_or_null(attention.slopes.as_ref().map(Buffer::view))
            .float(attention.scale)
            .float(attention.softcap.unwrap_or(0.0))
            .count(attention.window.unwrap_or(0))
            .count(usize::from(!attention.is_causal))
            .count(n_heads)
            .count(n_kv_heads)
            .count(dim_k)
            .count(dim_v);
        let shape = LaunchShape::new([n_kv_heads, n_tiles, n_seqs], PREFILL_THREADS)
            .with_shared_bytes(prefill_shared_bytes(PREFILL_HEAD_DIMS[variant]));
        self.device.launch(self.attention_prefill[variant], shape, &args)
    }

    /// Attends from each token's query to its sequence's stored keys and values, up to its own position where it is causal:
    /// `q: [T, n_heads, dim_k]`, `output: [T, n_heads, dim_v]`, quantized too where asked.
    ///
    /// # Errors
    /// A [`CudaExecError`](crate::CudaExecError): `Unsupported` where a head is too wide, `Bounds`, or the driver's.
    pub fn attention(
        &self,
        attention: &Attention<Buffer<f32>>,
        step: &AttentionStep<'_>,
        kv: KvLayer<'_>,
        q: View<'_, f32>,
        mut output: ViewMut<'_, f32>,
        mut quantized: Option<QuantizedMut<'_>>,
        scratch: &mut AttentionScratch,
    ) -> Result<()> {
        let KvLayer { ty, shape, k, v } = kv;
        let (dim_k, dim_v, n_kv_heads) = (shape.head_dim_k, shape.head_dim_v, shape.n_kv_heads);
        check_head_dims(dim_k, dim_v)?;
        check_multiple("the number of heads", attention.n_heads, n_kv_heads)?;
        let n_heads = attention.n_heads;
        for of_heads in [&attention.sinks, &attention.slopes].into_iter().flatten() {
            of_heads.view().range(0..n_heads)?;
        }
        if let Some(runs) = step.runs.filter(|_| takes_runs(ty, dim_k, dim_v)) {
            self.attention_of_runs(attention, step, runs, kv, q, output.reborrow())?;
            return match quantized {
                Some(rows) => {
                    let width = n_heads * dim_v;
                    self.quantize(step.positions.len(), width, output.as_view(), rows)
                }
                None => Ok(()),
            };
        }
        // A sequence of one token sees itself alone, whatever the direction.
        let seq_starts = (step.runs.filter(|_| !attention.is_causal)).map(|runs| runs.seq_starts);
        let group = n_heads / n_kv_heads;
        let variant = (HEADS_OF_KERNEL.iter())
            .position(|&heads| heads >= group)
            .unwrap_or(HEADS_OF_KERNEL.len() - 1);
        let heads = HEADS_OF_KERNEL[variant];
        let kernel = self.attention[kv_code(ty)][variant];
        let n_blocks_x = n_kv_heads * group.div_ceil(heads);
        let n_splits = n_splits(step.max_pages);
        let row = |dim: usize| dim.next_multiple_of(8);
        let shared_bytes = 4 * heads * (SPLIT_TOKENS + row(dim_k)).max(4 * row(dim_v));
        let n_tokens = step.positions.len();
        let token_len = n_heads * n_splits * (dim_v + 2);
        // A grid has at most 65535 thread blocks along z.
        let n_at_once = (scratch.partial.len() / token_len).clamp(1, 65535);
        let out_width = n_heads * dim_v;
        for first in (0..n_tokens).step_by(n_at_once) {
            let end = (first + n_at_once).min(n_tokens);
            let n_here = end - first;
            let rows = match &mut quantized {
                Some(rows) => Some(rows.reborrow().rows(first, n_here, out_width)?),
                None => None,
            };
            let (bytes, scales) = QuantizedMut::split(rows);
            let q_width = n_heads * dim_k;
            let args = Args::new()
                .read(q.range(first * q_width..end * q_width)?)
                .write(output.reborrow().range(first * out_width..end * out_width)?)
                .write_or_null(bytes)
                .write_or_null(scales)
                .read(step.positions.range(first..end)?)
                .read(step.seq_of.range(first..end)?)
                .read_or_null(seq_starts)
                .read(step.page_starts)
                .read(step.pages)
                .read(k)
                .read(v)
                .read_or_null(attention.sinks.as_ref().map(Buffer::view))
                .read_or_null(attention.slopes.as_ref().map(Buffer::view))
                .float(attention.scale)
                .float(attention.softcap.unwrap_or(0.0))
                .count(attention.window.unwrap_or(0))
                .count(n_heads)
                .count(n_kv_heads)
                .count(dim_k)
                .count(dim_v)
                .write(scratch.partial.view_mut().range(0..n_here * token_len)?)
                .write(scratch.counters.view_mut().range(0..n_here * n_blocks_x)?);
            let shape = LaunchShape::new([n_blocks_x, n_splits, n_here], 128).with_shared_bytes(shared_bytes);
            self.device.launch(kernel, shape, &args)?;
        }
        Ok(())
    }
}
