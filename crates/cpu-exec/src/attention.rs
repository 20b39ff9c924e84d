//! [`attention`]: softmax(scale * q kᵀ) v over the pages of each sequence of a ragged batch.
//!
//! Invariant: a token's result depends on its query, its position and what the store holds for its sequence; the context
//! is walked in order of position.

use crate::{Host, KvStore, PAGE_TOKENS, Workspace, pool::SharedSlice, workspace::grown};

/// Which tokens a query sees at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// Itself and those before it.
    Causal,
    /// Every token of its sequence that is in the store after this step: an encoder.
    Bidirectional,
}

/// How far back a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// To the start of the sequence.
    Unlimited,
    /// The `n` newest positions, its own among them.
    Sliding(u32),
    /// The positions of its own chunk, when the sequence is cut at multiples of `n`.
    Chunked(u32),
}

/// What a layer's attention does.
#[derive(Clone, Copy, Debug)]
pub struct AttentionParams<'a> {
    /// Query heads; a multiple of the layer's key and value heads, which neighbouring query heads share.
    pub n_heads: usize,
    /// What scores are multiplied with, usually `1 / sqrt(key_dim)`.
    pub scale: f32,
    /// Which tokens are seen.
    pub mask: Mask,
    /// How far back.
    pub window: Window,
    /// Scores become `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// One more score for each query head, `[n_heads]`, that takes its share of the softmax and has no value.
    pub sinks: Option<&'a [f32]>,
}

/// Where the tokens of a step are: the arrays of a forward batch.
#[derive(Clone, Copy, Debug)]
pub struct AttentionBatch<'a> {
    /// Each token's position, `[n_tokens]`; consecutive within a sequence.
    pub positions: &'a [u32],
    /// Tokens of sequence `s` are `seq_starts[s]..seq_starts[s + 1]`.
    pub seq_starts: &'a [u32],
    /// Pages of sequence `s` are `pages[page_starts[s]..page_starts[s + 1]]`.
    pub page_starts: &'a [u32],
    /// Page tables, one after the other. Pages that no token of the step sees are never looked at.
    pub pages: &'a [u32],
}

/// Attends from every token of the batch to its sequence, whose keys and values (those of this step too) are in `store`.
///
/// `q`: `[n_tokens, n_heads, key_dim]`, `out`: `[n_tokens, n_heads, value_dim]`.
///
/// # Panics
/// When the shapes contradict each other or a page that is seen is outside the store.
pub fn attention(
    host: &Host,
    workspace: &mut Workspace,
    store: &KvStore,
    layer_idx: usize,
    q: &[f32],
    batch: &AttentionBatch<'_>,
    params: &AttentionParams<'_>,
    out: &mut [f32],
) {
    let shape = store.shape(layer_idx);
    let n_tokens = batch.positions.len();
    let n_heads = params.n_heads;
    assert!(
        n_heads.is_multiple_of(shape.n_kv_heads),
        "{n_heads} heads over {} KV heads",
        shape.n_kv_heads
    );
    assert_eq!(
        q.len(),
        n_tokens * n_heads * shape.key_dim,
        "queries of {n_tokens} tokens"
    );
    assert_eq!(
        out.len(),
        n_tokens * n_heads * shape.value_dim,
        "outputs of {n_tokens} tokens"
    );
    let group_len = n_heads / shape.n_kv_heads;
    let out = SharedSlice::new(out);
    for (seq_idx, tokens) in batch.seq_starts.windows(2).enumerate() {
        let tokens = tokens[0] as usize..tokens[1] as usize;
        let Some(last) = tokens.clone().next_back() else {
            continue;
        };
        let context_len = batch.positions[last] as usize + 1;
        let pages =
            &batch.pages[batch.page_starts[seq_idx] as usize..batch.page_starts[seq_idx + 1] as usize];
        let first = tokens.start;
        host.pool().run_with(
            &mut workspace.per_thread,
            tokens.len() * n_heads,
            |scratch, item_idx| {
                let (token_idx, head_idx) = (first + item_idx / n_heads, item_idx % n_heads);
                let seen = seen_positions(params, batch.positions[token_idx] as usize, context_len);
                let scratch = grown(scratch, seen.len() + shape.key_dim.max(shape.value_dim));
                let (scores, row) = scratch.split_at_mut(seen.len());
                let at = token_idx * n_heads + head_idx;
                let query = &q[at * shape.key_dim..][..shape.key_dim];
                let slot = |position: usize| {
                    pages[position / PAGE_TOKENS] as usize * PAGE_TOKENS + position % PAGE_TOKENS
                };
                for (score, position) in scores.iter_mut().zip(seen.clone()) {
                    let key = &mut row[..shape.key_dim];
                    store.read_key(layer_idx, head_idx / group_len, slot(position), key);
                    let product: f32 = query.iter().zip(key).map(|(q, k)| q * *k).sum();
                    *score = product * params.scale;
                    if let Some(cap) = params.soft_cap {
                        *score = cap * (*score / cap).tanh();
                    }
                }
                let sink = params.sinks.map(|sinks| sinks[head_idx]);
                let max = scores
                    .iter()
                    .copied()
                    .fold(sink.unwrap_or(f32::NEG_INFINITY), f32::max);
                let mut sum = sink.map_or(0.0, |sink| (sink - max).exp());
                for score in scores.iter_mut() {
                    *score = (*score - max).exp();
                    sum += *score;
                }
                // SAFETY: each item writes the output of its own token and head.
                let out = unsafe { out.part(at * shape.value_dim..(at + 1) * shape.value_dim) };
                out.fill(0.0);
                for (&weight, position) in scores.iter().zip(seen) {
                    let value = &mut row[..shape.value_dim];
                    store.read_value(layer_idx, head_idx / group_len, slot(position), value);
                    for (out, value) in out.iter_mut().zip(value) {
                        *out += weight * *value;
                    }
                }
                for out in out {
                    *out /= sum;
                }
            },
        );
    }
}

/// The positions that a query at `position` sees in a sequence of `context_len`.
fn seen_positions(
    params: &AttentionParams<'_>,
    position: usize,
    context_len: usize,
) -> std::ops::Range<usize> {
    let end = match params.mask {
        Mask::Causal => position + 1,
        Mask::Bidirectional => context_len,
    };
    let start = match params.window {
        Window::Unlimited => 0,
        Window::Sliding(n) => (position + 1).saturating_sub(n as usize),
        Window::Chunked(n) => position - position % n as usize,
    };
    start..end
}
