//! [`attention`]: softmax(scale * q kᵀ) v over the pages of each sequence of a ragged batch.
//!
//! The context is cut into *splits* of 256 positions. A split is attended to by itself, with its own maximum
//! and sum, and splits are folded together in order. For one sequence's newest token, all threads share the
//! work, a split and a head each. Many tokens are computed in blocks that pass through the splits one after
//! the other, so that each load serves many rows. Query heads that share keys and values are rows of one
//! block.
//!
//! Invariant: a token's result depends on its query, its position and the stored keys and values of its
//! sequence. Splits are at fixed positions and both ways perform the same operations, so the result does not
//! depend on how a step was cut into work.

mod plan;

use std::ops::Range;

pub(crate) use plan::AttentionScratch;
use plan::{Item, group_len};

use tokenmill_backend::{Attention, KvType, PAGE_TOKENS};
use tokenmill_cpu_kernels::{
    E4M3_PAGES, F16_PAGES, F32_PAGES, PageOps, Q4_0_PAGES, Q8_0_PAGES, Q8_0_ROWS, SPLIT_PAGES, SPLIT_TOKENS,
    SplitPages, rotate, softmax,
};

use crate::{
    Host, KvStore, Workspace,
    kv::padded_dim,
    pool::{Patch, Patches},
    thread_scratch::grown,
};

const _: () = assert!(
    SPLIT_TOKENS == SPLIT_PAGES * PAGE_TOKENS,
    "kernels take the pages of the store"
);

/// Returns the kernels for pages of a type; `has_values_in_keys` selects those for rows that hold keys and
/// values.
fn page_ops(ty: KvType, has_values_in_keys: bool) -> &'static PageOps {
    match ty {
        KvType::F32 => &F32_PAGES,
        KvType::F16 => &F16_PAGES,
        KvType::Q8_0 if has_values_in_keys => &Q8_0_ROWS,
        KvType::Q8_0 => &Q8_0_PAGES,
        KvType::E4M3 => &E4M3_PAGES,
        KvType::Q4_0 => &Q4_0_PAGES,
    }
}

/// The places of a step's tokens: the arrays of a forward batch.
#[derive(Clone, Copy, Debug)]
pub struct AttentionBatch<'a> {
    /// The position of each token, `[n_tokens]`; consecutive within a sequence.
    pub positions: &'a [u32],
    /// Tokens of sequence `s` are `seq_starts[s]..seq_starts[s + 1]`.
    pub seq_starts: &'a [u32],
    /// The last position that each token sees in causal attention, `[n_tokens]`; empty if each token sees up
    /// to itself.
    pub last_seen: &'a [u32],
    /// The first and the last position that each token sees in layers with a window, `[n_tokens]`; empty if
    /// the window alone decides.
    pub window_seen: &'a [[u32; 2]],
    /// Pages of sequence `s` are `pages[page_starts[s]..page_starts[s + 1]]`.
    pub page_starts: &'a [u32],
    /// The page tables, one after the other. Pages that no token of the step sees are never read.
    pub pages: &'a [u32],
}

/// Attends from every token of the batch to its sequence. The keys and values in `store` include those of
/// this step.
///
/// `q`: `[n_tokens, n_heads, head_dim_k]`, `out`: `[n_tokens, n_heads, head_dim_v]`.
///
/// # Panics
/// If the shapes contradict each other or a token sees a page outside the store.
pub fn attention(
    host: &Host,
    workspace: &mut Workspace,
    store: &KvStore,
    q: &[f32],
    batch: &AttentionBatch<'_>,
    params: &Attention<&[f32]>,
    out: &mut [f32],
) {
    let layer_idx = params.layer_idx;
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
        n_tokens * n_heads * shape.head_dim_k,
        "queries of {n_tokens} tokens"
    );
    assert_eq!(
        out.len(),
        n_tokens * n_heads * shape.head_dim_v,
        "outputs of {n_tokens} tokens"
    );
    let (key_type, value_type) = store.types(layer_idx);
    let job = Job {
        host,
        store,
        layer_idx,
        q,
        batch,
        params,
        head_dim_k: shape.head_dim_k,
        head_dim_v: shape.head_dim_v,
        has_values_in_keys: shape.has_values_in_keys,
        group_len: group_len(n_heads, shape.n_kv_heads),
        key_ops: page_ops(key_type, shape.has_values_in_keys),
        value_ops: page_ops(value_type, shape.has_values_in_keys),
        key_rotation: key_type.is_rotated().then(|| shape.key_rotation()),
        value_rotation: value_type.is_rotated().then(|| shape.value_rotation()),
    };
    let Workspace {
        per_thread,
        attention: AttentionScratch { plan, parts },
        ..
    } = workspace;
    plan.make(&job);
    let part_len = job.part_len();
    let parts = grown(parts, plan.n_parts * part_len);
    let out_cols = n_heads * shape.head_dim_v;
    {
        let outs = Patches::new(out, out_cols, &plan.outs);
        let parts = Patches::new(parts, part_len, &plan.parts);
        host.pool().for_each_part_with(
            per_thread,
            (outs, parts),
            |scratch, item_idx, (mut out, mut parts)| {
                let scratch = &mut scratch.values;
                let item = &plan.items[item_idx];
                match item.split {
                    None => job.attend(item, scratch, &mut out),
                    Some(split) => job.attend_to_split(item, split, scratch, parts.all()),
                }
            },
        );
    }
    if plan.n_parts > 0 {
        let parts = &*parts;
        let outs = Patches::new(out, out_cols, &plan.outs);
        host.pool()
            .for_each_part_with(per_thread, outs, |scratch, item_idx, mut out| {
                let scratch = &mut scratch.values;
                let item = &plan.items[item_idx];
                if item.split == Some(item.first_split) {
                    job.fold_splits(item, parts, scratch, &mut out);
                }
            });
    }
}

/// The number of values at the head of a part: the maximum of its scores and the sum of its weights.
const PART_HEAD: usize = 2;

/// Returns the length of the part that a split yields for a row.
fn part_len(head_dim_v: usize) -> usize {
    PART_HEAD + padded_dim(head_dim_v)
}

/// Returns the length of the queries of some rows and their scores for one split.
fn block_len(n_rows: usize, head_dim_k: usize) -> usize {
    n_rows * (head_dim_k + SPLIT_TOKENS)
}

/// Returns the length of the scratch of an item that attends to all splits.
fn item_len(n_rows: usize, head_dim_k: usize, head_dim_v: usize) -> usize {
    2 * n_rows * part_len(head_dim_v) + block_len(n_rows, head_dim_k)
}

/// The number of rows whose values are summed together.
const VALUE_ROWS: usize = 8;

/// The arguments of [`attention`] and the values derived from them.
struct Job<'a> {
    host: &'a Host,
    store: &'a KvStore,
    layer_idx: usize,
    q: &'a [f32],
    batch: &'a AttentionBatch<'a>,
    params: &'a Attention<&'a [f32]>,
    head_dim_k: usize,
    head_dim_v: usize,
    has_values_in_keys: bool,
    /// The number of query heads of an item, which share a key and value head.
    group_len: usize,
    key_ops: &'static PageOps,
    value_ops: &'static PageOps,
    /// The number of columns of a query that are rotated together, as in the stored keys.
    key_rotation: Option<usize>,
    /// The number of columns of an output that are rotated back together.
    value_rotation: Option<usize>,
}

impl Job<'_> {
    /// Returns the positions that a token of a sequence sees.
    fn seen_by_token(&self, seq_idx: usize, token_idx: usize) -> Range<usize> {
        let position = self.batch.positions[token_idx] as usize;
        let last = if self.params.is_causal {
            (self.batch.last_seen.get(token_idx)).map_or(position, |&last| last as usize)
        } else {
            self.batch.positions[self.batch.seq_starts[seq_idx + 1] as usize - 1] as usize
        };
        let window_seen = self.batch.window_seen.get(token_idx);
        match (self.params.window, window_seen) {
            (Some(_), Some(&[first, last])) => first as usize..last as usize + 1,
            (Some(window), None) if self.params.is_chunked => position - position % window..last + 1,
            (window, _) => seen_positions(window, position, last),
        }
    }

    /// Returns the positions that at least one of the tokens sees.
    fn seen_by(&self, seq_idx: usize, tokens: Range<usize>) -> Range<usize> {
        let seen = |token_idx| self.seen_by_token(seq_idx, token_idx);
        // Both ends ascend with the position.
        seen(tokens.start).start..seen(tokens.end - 1).end
    }

    /// Returns the key and value head of an item's query heads.
    fn kv_head(&self, item: &Item) -> usize {
        item.group_idx / self.n_sharing_groups()
    }

    /// Returns the number of groups of query heads that share a key and value head.
    fn n_sharing_groups(&self) -> usize {
        let n_kv_heads = self.store.shape(self.layer_idx).n_kv_heads;
        self.params.n_heads / n_kv_heads / self.group_len
    }

    fn n_rows(&self, item: &Item) -> usize {
        item.n_tokens * self.group_len
    }

    /// Returns the length of the part that a split yields for a row.
    fn part_len(&self) -> usize {
        part_len(self.head_dim_v)
    }

    /// Returns the output of a row within the output of its item.
    fn output<'o>(&self, item_out: &'o mut Patch<'_, f32>, row_idx: usize) -> &'o mut [f32] {
        let head_cols = row_idx % self.group_len * self.head_dim_v;
        &mut item_out.row(row_idx / self.group_len)[head_cols..head_cols + self.head_dim_v]
    }

    /// Attends to all splits, one after the other.
    fn attend(&self, item: &Item, scratch: &mut Vec<f32>, out: &mut Patch<'_, f32>) {
        let n_rows = self.n_rows(item);
        let part_len = self.part_len();
        let scratch = grown(scratch, item_len(n_rows, self.query_dim(), self.head_dim_v));
        let (folded, scratch) = scratch.split_at_mut(n_rows * part_len);
        let (parts, scratch) = scratch.split_at_mut(n_rows * part_len);
        self.gather_queries(item, scratch);
        for split in item.first_split..item.end_split {
            let target = if split == item.first_split {
                &mut *folded
            } else {
                &mut *parts
            };
            self.attend_rows(item, split, scratch, target);
            if split > item.first_split {
                let parts = parts.chunks_exact(part_len);
                for (folded, part) in folded.chunks_exact_mut(part_len).zip(parts) {
                    fold(folded, part);
                }
            }
        }
        for (row_idx, folded) in folded.chunks_exact_mut(part_len).enumerate() {
            self.finish(item, row_idx, folded, self.output(out, row_idx));
        }
    }

    /// Attends to one split and writes one part per row to `parts`.
    fn attend_to_split(&self, item: &Item, split: usize, scratch: &mut Vec<f32>, parts: &mut [f32]) {
        let scratch = grown(scratch, self.block_len(self.n_rows(item)));
        self.gather_queries(item, scratch);
        self.attend_rows(item, split, scratch, parts);
    }

    /// Folds the parts of all splits together, as [`Self::attend`] does.
    fn fold_splits(&self, item: &Item, parts: &[f32], scratch: &mut Vec<f32>, out: &mut Patch<'_, f32>) {
        let n_rows = self.n_rows(item);
        let part_len = self.part_len();
        let split_len = self.n_sharing_groups() * n_rows;
        let folded = grown(scratch, part_len);
        for row_idx in 0..n_rows {
            for split_idx in 0..item.end_split - item.first_split {
                let part = &parts[(item.part_idx + split_idx * split_len + row_idx) * part_len..][..part_len];
                if split_idx == 0 {
                    folded.copy_from_slice(part);
                } else {
                    fold(folded, part);
                }
            }
            self.finish(item, row_idx, folded, self.output(out, row_idx));
        }
    }

    /// Returns the length of the scratch that [`Self::attend_rows`] needs for its queries and scores.
    fn block_len(&self, n_rows: usize) -> usize {
        block_len(n_rows, self.query_dim())
    }

    /// Returns the length of a query as the kernels read it: padded to whole loads if keys are stored row by row.
    fn query_dim(&self) -> usize {
        if self.has_values_in_keys {
            padded_dim(self.head_dim_k)
        } else {
            self.head_dim_k
        }
    }

    /// Copies the queries of an item to the start of `scratch`, row after row, as the kernels read them.
    fn gather_queries(&self, item: &Item, scratch: &mut [f32]) {
        let (head_dim, query_dim) = (self.head_dim_k, self.query_dim());
        let group_dim = self.group_len * head_dim;
        for (i, rows) in scratch
            .chunks_exact_mut(self.group_len * query_dim)
            .take(item.n_tokens)
            .enumerate()
        {
            let token_start = (item.first_token + i) * self.params.n_heads * head_dim;
            let group = &self.q[token_start + item.group_idx * group_dim..][..group_dim];
            if query_dim == head_dim {
                rows.copy_from_slice(group);
            } else {
                for (row, query) in rows.chunks_exact_mut(query_dim).zip(group.chunks_exact(head_dim)) {
                    row[..head_dim].copy_from_slice(query);
                    row[head_dim..].fill(0.0);
                }
            }
            if let Some(block) = self.key_rotation {
                for row in rows.chunks_exact_mut(query_dim) {
                    rotate(self.host.features(), &mut row[..head_dim], block);
                }
            }
            self.key_ops
                .prepare_queries(self.host.features(), rows, query_dim);
        }
    }

    /// Writes the part that one split yields for each row. `scratch` starts with the queries.
    fn attend_rows(&self, item: &Item, split: usize, scratch: &mut [f32], parts: &mut [f32]) {
        let n_rows = self.n_rows(item);
        let (features, padded_dim) = (self.host.features(), padded_dim(self.head_dim_v));
        let part_len = self.part_len();
        let (queries, weights) = scratch.split_at_mut(n_rows * self.query_dim());

        // The pages that a row sees; positions are counted from the first of these pages.
        let tokens = item.first_token..item.first_token + item.n_tokens;
        let all = self.seen_by(item.seq_idx, tokens);
        let start = all.start.max(split * SPLIT_TOKENS) / PAGE_TOKENS;
        let end = all.end.min((split + 1) * SPLIT_TOKENS).div_ceil(PAGE_TOKENS);
        let sequence_pages = &self.batch.pages[self.batch.page_starts[item.seq_idx] as usize
            ..self.batch.page_starts[item.seq_idx + 1] as usize];
        let table = &sequence_pages[start..end];
        let (first_position, n_positions) = (start * PAGE_TOKENS, table.len() * PAGE_TOKENS);
        let seen = |row_idx: usize| {
            let token_idx = item.first_token + row_idx / self.group_len;
            let seen = self.seen_by_token(item.seq_idx, token_idx);
            let end = seen.end.min(first_position + n_positions).max(first_position) - first_position;
            seen.start.clamp(first_position, first_position + end) - first_position..end
        };

        let (mut keys, mut values): ([&[u8]; SPLIT_PAGES], [&[u8]; SPLIT_PAGES]) = Default::default();
        for ((key, value), &id) in keys.iter_mut().zip(&mut values).zip(table) {
            *key = self.store.key_page(self.layer_idx, self.kv_head(item), id);
            *value = self.store.value_page(self.layer_idx, self.kv_head(item), id);
        }
        let (keys, values) = (&keys[..table.len()], &values[..table.len()]);
        // The keys of the next split, which this thread most likely reads next.
        let mut keys_behind: [&[u8]; SPLIT_PAGES] = Default::default();
        let pages_behind = &sequence_pages[end..all.end.div_ceil(PAGE_TOKENS).min(end + SPLIT_PAGES)];
        for (key, &id) in keys_behind.iter_mut().zip(pages_behind) {
            *key = self.store.key_page(self.layer_idx, self.kv_head(item), id);
        }
        let keys_behind = &keys_behind[..pages_behind.len()];
        // Few rows at a time keep their scores in the first-level cache; latent rows are so long that all
        // queries share one pass over them.
        let (query_dim, chunk_rows, row_dim) = if self.has_values_in_keys {
            (self.query_dim(), n_rows, self.query_dim())
        } else {
            (self.head_dim_k, VALUE_ROWS, padded_dim)
        };
        for first_row in (0..n_rows).step_by(chunk_rows) {
            let rows = first_row..n_rows.min(first_row + chunk_rows);
            let queries = &queries[rows.start * query_dim..rows.end * query_dim];
            let weights = &mut weights[..rows.len() * SPLIT_TOKENS];
            // The first rows prefetch the pages that come next; the other rows find them in the cache.
            let is_first = first_row == 0;
            if self.has_values_in_keys {
                self.key_ops
                    .row_scores(features, queries, query_dim, SplitPages::only(keys), weights);
            } else {
                let keys = SplitPages {
                    pages: keys,
                    next: if is_first { values } else { &[] },
                };
                self.key_ops.scores(features, queries, query_dim, keys, weights);
            }
            let values = SplitPages {
                pages: values,
                next: if is_first && !self.has_values_in_keys {
                    keys_behind
                } else {
                    &[]
                },
            };
            let parts = &mut parts[rows.start * part_len..rows.end * part_len];
            self.weigh(
                item,
                rows.clone(),
                &seen,
                (first_position, n_positions),
                weights,
                parts,
            );
            for first in (0..rows.len()).step_by(VALUE_ROWS) {
                let chunk = first..rows.len().min(first + VALUE_ROWS);
                let ranges: [Range<usize>; VALUE_ROWS] = std::array::from_fn(|i| {
                    if i < chunk.len() {
                        seen(first_row + first + i)
                    } else {
                        0..0
                    }
                });
                self.value_ops.add_values(
                    features,
                    &weights[chunk.start * SPLIT_TOKENS..chunk.end * SPLIT_TOKENS],
                    values,
                    &ranges[..chunk.len()],
                    [padded_dim, row_dim],
                    &mut parts[chunk.start * part_len + PART_HEAD..chunk.end * part_len],
                    part_len,
                );
            }
        }
    }

    /// Turns the scores of some rows into weights and begins their parts. Positions are counted from the
    /// first of the pages.
    fn weigh(
        &self,
        item: &Item,
        rows: Range<usize>,
        seen: &impl Fn(usize) -> Range<usize>,
        (first_position, n_positions): (usize, usize),
        weights: &mut [f32],
        parts: &mut [f32],
    ) {
        for (row_idx, (part, weights)) in
            rows.zip((parts.chunks_exact_mut(self.part_len())).zip(weights.chunks_exact_mut(SPLIT_TOKENS)))
        {
            let seen = seen(row_idx);
            let (max, sum) = if seen.is_empty() {
                (f32::NEG_INFINITY, 0.0)
            } else {
                let scores = &mut weights[..n_positions];
                if let Some(slopes) = self.params.slopes {
                    let head = item.group_idx * self.group_len + row_idx % self.group_len;
                    let token_idx = item.first_token + row_idx / self.group_len;
                    let distance_of_first = (self.batch.positions[token_idx] as f32) - first_position as f32;
                    // The softmax applies the scale to the scores.
                    let slope = slopes[head] / self.params.scale;
                    for (i, score) in scores.iter_mut().enumerate() {
                        *score -= slope * (distance_of_first - i as f32).abs();
                    }
                }
                let Attention { scale, softcap, .. } = *self.params;
                softmax(self.host.features(), scores, seen, scale, softcap)
            };
            part[..PART_HEAD].copy_from_slice(&[max, sum]);
            part[PART_HEAD..].fill(0.0);
        }
    }

    /// Adds the sink, which has a weight but no value, and divides by the sum of the weights.
    fn finish(&self, item: &Item, row_idx: usize, folded: &mut [f32], out: &mut [f32]) {
        let (head, values) = folded.split_at_mut(PART_HEAD);
        let mut sum = head[1];
        let mut factor = 1.0;
        if let Some(sinks) = self.params.sinks {
            let sink = sinks[item.group_idx * self.group_len + row_idx % self.group_len];
            let max = head[0].max(sink);
            factor = (head[0] - max).exp();
            sum = sum * factor + (sink - max).exp();
        }
        for (out, value) in out.iter_mut().zip(values) {
            *out = *value * factor / sum;
        }
        if let Some(block) = self.value_rotation {
            rotate(self.host.features(), out, block);
        }
    }
}

/// Folds a part into the folded parts of earlier splits.
fn fold(folded: &mut [f32], part: &[f32]) {
    let (head, values) = folded.split_at_mut(PART_HEAD);
    let (part_head, part_values) = part.split_at(PART_HEAD);
    let (&[max, sum], &[part_max, part_sum]) = (&*head, part_head) else {
        unreachable!("the head of a part is a maximum and a sum");
    };
    if part_sum == 0.0 {
        return;
    }
    if sum == 0.0 {
        folded.copy_from_slice(part);
        return;
    }
    let new_max = max.max(part_max);
    let (factor, part_factor) = ((max - new_max).exp(), (part_max - new_max).exp());
    head.copy_from_slice(&[new_max, sum * factor + part_sum * part_factor]);
    for (value, part) in values.iter_mut().zip(part_values) {
        *value = *value * factor + *part * part_factor;
    }
}

/// Returns the positions up to `last` that a query at `position` sees.
fn seen_positions(window: Option<usize>, position: usize, last: usize) -> Range<usize> {
    match window {
        None => 0..last + 1,
        Some(window) => (position + 1).saturating_sub(window)..(last + 1).min(position + window),
    }
}
