//! Paged attention: the parts that all of its kernels share, and the choice of kernel for a token. Kernels: `attention_decode.cu`; those for
//! runs of tokens are in `attention_prefill`.

use std::ops::Range;

use tokenmill_backend::{Attention, AttentionShape, PAGE_TOKENS};

use super::{
    Ops, QuantizedMut, SharedPages,
    attention_decode::{DecodePlan, THREADS, Visible, longest_partial_len, partial_len},
    attention_prefill::attends_by_runs,
    check_multiple, latent, with_types,
};
use crate::{
    Args, Buffer, CudaExecError, Device, LaunchShape, Stream, View, ViewMut,
    driver::MAX_COUNT,
    error::Result,
    kv::{KvLayer, check_head_dims},
};

/// Limit of the bytes of partial results of a launch; a longer step is divided into several launches.
const MAX_PARTIAL_BYTES: usize = 64 << 20;
/// The same for latent rows, whose partial results are wide and cover all heads: 15 tokens of 128 heads with the longest context.
const MAX_LATENT_PARTIAL_BYTES: usize = 256 << 20;

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
    /// Whether each token is its sequence's only one in the step, so that none reads what another stores.
    pub is_one_each: bool,
    /// Describes sequences with several tokens each, for the kernels that take them as runs.
    pub runs: Option<TokenRuns<'a>>,
    /// The pages of a step with one token per sequence that several sequences read once.
    pub shared: Option<SharedPages<'a>>,
}

impl AttentionStep<'_> {
    /// Returns the number of splits of the longest context in attention over latent rows.
    pub(super) fn latent_splits(&self, n_heads: usize) -> usize {
        latent::n_splits(self.max_pages * PAGE_TOKENS, n_heads)
    }
}

/// The tokens of sequences with several tokens.
#[derive(Clone, Copy, Debug)]
pub struct TokenRuns<'a> {
    /// Offsets of the sequences in the tokens, `[S + 1]`. Positions within a sequence are consecutive.
    pub seq_starts: View<'a, u32>,
    /// Tokens of the longest run.
    pub longest: usize,
    /// Whether a run has one token.
    pub has_single: bool,
    /// Number of leading sequences with one token each: those that decode next to prompts.
    pub n_leading_single: usize,
}

/// Memory for partial results and counters, shared by all layers.
#[derive(Debug)]
pub struct AttentionScratch {
    pub(super) partial: Buffer<f32>,
    pub(super) counters: Buffer<u32>,
}

/// The scratch memory that a network's attention needs, as the maximum over its layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScratchNeeds {
    /// Numbers of a token's partial results.
    token_len: usize,
    /// The same for latent rows.
    latent_len: usize,
    /// Query heads.
    n_heads: usize,
}

impl ScratchNeeds {
    /// Returns the needs of layers of these shapes, with contexts of up to `max_pages` pages. The flag of a
    /// shape says whether it has latent rows.
    pub fn of(layers: impl Iterator<Item = (AttentionShape, bool)>, max_pages: usize) -> Self {
        let none = Self {
            token_len: 1,
            latent_len: 0,
            n_heads: 1,
        };
        layers.fold(none, |most, (shape, is_latent)| {
            let (n_heads, max_tokens) = (shape.n_heads, max_pages * PAGE_TOKENS);
            let token_len = longest_partial_len(n_heads, shape.n_kv_heads, shape.head_dim_v, max_tokens);
            let latent_len = if is_latent {
                n_heads * latent::n_splits(max_tokens, n_heads) * (shape.head_dim_v + 2)
            } else {
                0
            };
            Self {
                token_len: most.token_len.max(token_len),
                latent_len: most.latent_len.max(latent_len),
                n_heads: most.n_heads.max(n_heads),
            }
        })
    }
}

impl AttentionScratch {
    /// Allocates for steps of up to `max_tokens` tokens and `max_seqs` sequences.
    ///
    /// # Errors
    /// A [`CudaExecError`](crate::CudaExecError): `OutOfMemory`, `Unsupported` if a head is too wide, or the driver's.
    pub fn new(device: &Device, max_tokens: usize, max_seqs: usize, needs: ScratchNeeds) -> Result<Self> {
        let [n_partial, n_counters] = Self::lens(max_tokens, max_seqs, needs);
        let mut counters = device.alloc("attention", n_counters)?;
        device.zero(Stream::Compute, &counters.view_mut())?;
        Ok(Self {
            partial: device.alloc("attention", n_partial)?,
            counters,
        })
    }

    /// Returns the device memory of such scratch.
    pub fn device_bytes(max_tokens: usize, max_seqs: usize, needs: ScratchNeeds) -> usize {
        let [n_partial, n_counters] = Self::lens(max_tokens, max_seqs, needs);
        crate::driver::buffer_bytes::<f32>(n_partial) + crate::driver::buffer_bytes::<u32>(n_counters)
    }

    fn lens(max_tokens: usize, max_seqs: usize, needs: ScratchNeeds) -> [usize; 2] {
        let ScratchNeeds {
            token_len,
            latent_len,
            n_heads,
        } = needs;
        let bounded =
            |n_rows: usize, len: usize, max_bytes: usize| (n_rows * len).min((max_bytes / 4).max(len));
        // Over latent rows only sequences with one token in the step have partial results.
        let latent = bounded(max_seqs.min(max_tokens), latent_len, MAX_LATENT_PARTIAL_BYTES);
        [
            bounded(max_tokens, token_len, MAX_PARTIAL_BYTES).max(latent),
            max_tokens * n_heads,
        ]
    }
}

/// Returns the window as kernels take it; 0 for none. A window that reaches beyond every position counts as none.
pub(super) fn window_of(attention: &Attention<Buffer<f32>>) -> usize {
    attention.window.unwrap_or(0).min(MAX_COUNT)
}

/// Returns the largest number of positions that a token of a step sees.
pub(super) fn visible_of(attention: &Attention<Buffer<f32>>, step: &AttentionStep<'_>) -> Visible {
    Visible {
        context: step.max_pages * PAGE_TOKENS,
        window: window_of(attention),
        is_causal: attention.is_causal,
    }
}

impl Ops {
    /// Computes attention of each token's query to its sequence's stored keys and values, up to its own
    /// position if it is causal: `q: [T, n_heads, dim_k]`, `output: [T, n_heads, dim_v]`. The output is
    /// quantized too on request: a row is a token, or a head of a token if the values are part of the keys,
    /// since a matrix of each head reads it.
    ///
    /// # Errors
    /// A [`CudaExecError`](crate::CudaExecError): `Unsupported` if a head is too wide, `Bounds`, or the
    /// driver's.
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
        let KvLayer { types, shape, .. } = kv;
        let (dim_k, dim_v, n_kv_heads) = (shape.head_dim_k, shape.head_dim_v, shape.n_kv_heads);
        check_head_dims(dim_k, dim_v)?;
        check_multiple("the number of heads", attention.n_heads, n_kv_heads)?;
        let n_heads = attention.n_heads;
        for of_heads in [&attention.sinks, &attention.slopes].into_iter().flatten() {
            of_heads.view().range(0..n_heads)?;
        }
        if shape.has_values_in_keys {
            let is_done =
                self.latent_attention(attention, step, kv, q, &mut output, &mut quantized, scratch)?;
            if is_done {
                return Ok(());
            }
        }
        if let (Some(plan), Some(shared)) = (
            self.shared_plan(attention, step, shape, types, scratch),
            &step.shared,
        ) {
            return self.shared_attention(plan, attention, step, shared, kv, q, output, quantized, scratch);
        }
        let mut heads_quantized = None;
        if shape.has_values_in_keys {
            heads_quantized = quantized.take();
        }
        let n_tokens = step.positions.len();
        let visible = visible_of(attention, step);
        let n_blocks_x = DecodePlan::of(n_heads, shape, types, visible).n_blocks_x;
        let prefill = (self.prefill_of(types, dim_k.max(dim_v)))
            .filter(|_| !shape.has_values_in_keys && !self.is_batch_invariant);
        let of_runs = (step.runs.zip(prefill))
            .filter(|(runs, _)| attends_by_runs(n_tokens - runs.n_leading_single, n_blocks_x, visible));
        if let Some((runs, prefill)) = of_runs {
            let singles = 0..runs.n_leading_single;
            self.attention_of_tokens(attention, step, singles, kv, q, output.reborrow(), None, scratch)?;
            self.attention_of_runs(prefill, attention, step, runs, kv, q, output.reborrow())?;
            return match quantized {
                Some(rows) => {
                    let width = n_heads * dim_v;
                    self.quantize(step.positions.len(), width, output.as_view(), rows)
                }
                None => Ok(()),
            };
        }
        self.attention_of_tokens(
            attention,
            step,
            0..n_tokens,
            kv,
            q,
            output.reborrow(),
            quantized,
            scratch,
        )?;
        match heads_quantized {
            Some(rows) => self.quantize(n_tokens * n_heads, dim_v, output.as_view(), rows),
            None => Ok(()),
        }
    }

    /// Attends as [`Self::attention`] does causally, for tokens that see later ones, such as those of an image. In `step` each token is a
    /// sequence of its own, which ends with the last token that it sees.
    ///
    /// # Errors
    /// As [`Self::attention`]; `Unsupported` if the keys hold the values.
    pub fn attention_of_seen(
        &self,
        attention: &Attention<Buffer<f32>>,
        step: &AttentionStep<'_>,
        kv: KvLayer<'_>,
        q: View<'_, f32>,
        output: ViewMut<'_, f32>,
        quantized: Option<QuantizedMut<'_>>,
        scratch: &mut AttentionScratch,
    ) -> Result<()> {
        check_head_dims(kv.shape.head_dim_k, kv.shape.head_dim_v)?;
        check_multiple("the number of heads", attention.n_heads, kv.shape.n_kv_heads)?;
        if kv.shape.has_values_in_keys {
            return Err(CudaExecError::Unsupported {
                feature: "latent attention of tokens that see later ones".to_owned(),
            });
        }
        let both_ways = Attention {
            is_causal: false,
            ..attention.map(Buffer::alias)
        };
        let tokens = 0..step.positions.len();
        self.attention_of_tokens(&both_ways, step, tokens, kv, q, output, quantized, scratch)
    }

    /// Computes the same as [`Self::attention`] for some tokens, one by one.
    fn attention_of_tokens(
        &self,
        attention: &Attention<Buffer<f32>>,
        step: &AttentionStep<'_>,
        tokens: Range<usize>,
        kv: KvLayer<'_>,
        q: View<'_, f32>,
        mut output: ViewMut<'_, f32>,
        mut quantized: Option<QuantizedMut<'_>>,
        scratch: &mut AttentionScratch,
    ) -> Result<()> {
        let KvLayer { types, shape, k, v } = kv;
        let (dim_k, dim_v, n_kv_heads) = (shape.head_dim_k, shape.head_dim_v, shape.n_kv_heads);
        let n_heads = attention.n_heads;
        // A sequence of one token sees only itself, whatever the direction.
        let seq_starts = (step.runs.filter(|_| !attention.is_causal)).map(|runs| runs.seq_starts);
        let plan = DecodePlan::of(n_heads, shape, types, visible_of(attention, step));
        let n_blocks_x = plan.n_blocks_x;
        let kernel = self.store_kernels(types)?.attention[plan.variant];
        let stride_v = if shape.has_values_in_keys { dim_k } else { dim_v }.next_multiple_of(8);
        let token_len = partial_len(n_heads, plan.n_splits, dim_v);
        let n_at_once = (scratch.partial.len() / token_len).clamp(1, self.max_grid_rows);
        let out_width = n_heads * dim_v;
        for first in tokens.clone().step_by(n_at_once) {
            let end = (first + n_at_once).min(tokens.end);
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
                .count(window_of(attention))
                .count(n_heads)
                .count(n_kv_heads)
                .count(dim_k)
                .count(dim_v)
                .count(stride_v)
                .count(usize::from(attention.is_chunked))
                .count(plan.heads)
                .count(plan.split_bits as usize)
                .count(plan.columns[0])
                .count(plan.columns[1])
                .count(plan.n_stages)
                .count(plan.warp_tokens)
                .write(scratch.partial.view_mut().range(0..n_here * token_len)?)
                .write(scratch.counters.view_mut().range(0..n_here * n_blocks_x)?);
            let shape = LaunchShape::new([n_blocks_x, plan.n_splits, n_here], THREADS)
                .with_shared_bytes(plan.shared_bytes);
            self.device.launch(kernel, shape, &with_types(args, types))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_holds_what_any_layer_needs() {
        let shape = |n_heads, head_dim_v| AttentionShape {
            n_heads,
            n_kv_heads: n_heads,
            head_dim_k: head_dim_v,
            head_dim_v,
        };
        let needs = |layers: &[(AttentionShape, bool)], max_pages| {
            let needs = ScratchNeeds::of(layers.iter().copied(), max_pages);
            [needs.token_len, needs.latent_len, needs.n_heads]
        };
        // The widest results and the most heads are in different layers.
        let layers = [(shape(8, 512), false), (shape(32, 64), false)];
        // 256 positions by 64.
        assert_eq!(needs(&layers, 16), [8 * 4 * 516, 0, 32]);
        // Latent rows have longer splits: 1024 positions by 128, and by 64.
        assert_eq!(
            needs(&[(shape(16, 512), true)], 64),
            [16 * 16 * 516, 16 * 8 * 514, 16]
        );
        assert_eq!(needs(&[(shape(16, 512), false)], 64), [16 * 16 * 516, 0, 16]);
    }
}
