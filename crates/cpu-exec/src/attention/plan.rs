//! [`Plan`]: an attention cut into pieces of work, and the memory that they need.
//!
//! Everything here is integers. Invariant: the cuts of a step change no result, and a plan never needs more
//! than the [`AttentionScratch::sizes`] of the largest step, so that nothing grows after load.

use tokenmill_cpu_kernels::SPLIT_TOKENS;

use super::{Job, item_len, part_len};
use crate::{
    CpuExecError,
    kv::padded_dim,
    pool::Rect,
    workspace::{StepSizes, WorkspaceSizes, reserve},
};

/// Memory that an attention needs while it runs.
#[derive(Debug, Default)]
pub(crate) struct AttentionScratch {
    pub(super) plan: Plan,
    /// The parts of all splits, to be folded together.
    pub(super) parts: Vec<f32>,
}

impl AttentionScratch {
    /// Returns the largest sizes that any step needs.
    pub(crate) fn sizes(
        step: &StepSizes,
        n_heads: usize,
        n_kv_heads: usize,
        head_dim_k: usize,
        head_dim_v: usize,
    ) -> WorkspaceSizes {
        let group_len = group_len(n_heads, n_kv_heads);
        let many = block_tokens(usize::MAX, group_len);
        let block_tokens = many.max(MAX_SPLIT_TOKENS).min(step.max_tokens);
        let n_splits = step.n_ctx.div_ceil(SPLIT_TOKENS);
        let n_parts = if n_splits > 1 {
            let n_tokens = step
                .max_seqs
                .saturating_mul(MAX_SPLIT_TOKENS)
                .min(step.max_tokens);
            n_tokens
                .saturating_mul(n_heads)
                .saturating_mul(n_splits)
                .min(MAX_PARTS)
        } else {
            0
        };
        // Each sequence has at most one block of tokens that is not full.
        let n_blocks = step.max_tokens.min(step.max_tokens / many + step.max_seqs);
        WorkspaceSizes {
            // Queries may be padded to whole loads.
            thread_values: item_len(block_tokens * group_len, padded_dim(head_dim_k), head_dim_v),
            attention_items: n_blocks * (n_heads / group_len) + n_parts / group_len,
            attention_parts: n_parts * part_len(head_dim_v),
            ..WorkspaceSizes::default()
        }
    }

    /// The size in bytes of an item and of the rectangles that it writes to.
    pub(crate) const ITEM_BYTES: usize = size_of::<Item>() + 2 * size_of::<Rect>();

    /// Reserves memory so that no later step allocates.
    pub(crate) fn reserve(&mut self, sizes: &WorkspaceSizes) -> Result<(), CpuExecError> {
        let Self { plan, parts } = self;
        reserve(&mut plan.items, sizes.attention_items)?;
        reserve(&mut plan.outs, sizes.attention_items)?;
        reserve(&mut plan.parts, sizes.attention_items)?;
        reserve(parts, sizes.attention_parts)
    }

    /// Returns the number of bytes reserved.
    pub(crate) fn n_bytes(&self) -> usize {
        let Self { plan, parts } = self;
        plan.items.capacity() * size_of::<Item>()
            + (plan.outs.capacity() + plan.parts.capacity()) * size_of::<Rect>()
            + parts.capacity() * size_of::<f32>()
    }
}

/// The number of query rows in a block: many rows share the loads of keys and values, few rows keep their
/// scores in the cache.
const BLOCK_ROWS: usize = 32;

/// The maximum number of new tokens for which a sequence's context is cut. More tokens are work for all
/// threads as they are.
const MAX_SPLIT_TOKENS: usize = 8;

/// The maximum number of parts of a step: 512 splits of 128 heads. Sequences beyond it are not split; by then
/// there are enough sequences or heads for all threads.
const MAX_PARTS: usize = 1 << 16;

/// Returns the number of query heads of an item. These are all heads that share a key and value head, or some
/// of them if there are few KV heads, so that one token of a short context has work for all threads.
pub(super) fn group_len(n_heads: usize, n_kv_heads: usize) -> usize {
    /// The number of KV heads that are enough work by themselves.
    const ENOUGH_KV_HEADS: usize = 4;
    let n_sharing = (n_heads / n_kv_heads).max(1);
    if n_kv_heads >= ENOUGH_KV_HEADS || n_sharing <= MAX_GROUP_LEN {
        return n_sharing;
    }
    (MIN_GROUP_LEN..=MAX_GROUP_LEN)
        .rev()
        .find(|&len| n_sharing.is_multiple_of(len))
        .unwrap_or(n_sharing)
}

/// The minimum number of query heads of an item if other items share their keys; kernels take four rows at a
/// time.
const MIN_GROUP_LEN: usize = 4;
const MAX_GROUP_LEN: usize = 8;

/// Returns the number of tokens of a block in a sequence of `n_tokens` new ones.
fn block_tokens(n_tokens: usize, group_len: usize) -> usize {
    if n_tokens <= MAX_SPLIT_TOKENS {
        n_tokens
    } else {
        (BLOCK_ROWS / group_len).max(1)
    }
}

/// The pieces of work of a step, and the rectangles that each writes to.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) items: Vec<Item>,
    /// The outputs that each item completes, in `[n_tokens, n_heads * head_dim_v]`; empty for a split after
    /// the first.
    pub(super) outs: Vec<Rect>,
    /// The parts that each item writes, in `[n_parts, part_len]`; empty for an item that is not a split.
    pub(super) parts: Vec<Rect>,
    pub(super) n_parts: usize,
}

/// A piece of work: some consecutive tokens of a sequence, and a group of query heads that share a key and
/// value head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub(super) first_token: usize,
    pub(super) n_tokens: usize,
    pub(super) group_idx: usize,
    pub(super) seq_idx: usize,
    /// The first split that a token sees; `end_split` is the end of the splits seen.
    pub(super) first_split: usize,
    pub(super) end_split: usize,
    /// The split to compute; `None` for all splits, one after the other.
    pub(super) split: Option<usize>,
    /// The index of the item's first part; the item writes one part per row. All parts of a step are
    /// `[splits][groups that share keys][rows]`.
    pub(super) part_idx: usize,
}

impl Plan {
    /// Lists the items of a step in the order of tokens, KV heads, splits, and groups that share a KV head. A
    /// thread that reads a split for one group then has it in its cache for the next group.
    pub(super) fn make(&mut self, job: &Job<'_>) {
        let n_groups = job.params.n_heads / job.group_len;
        let n_sharing = job.n_sharing_groups();
        self.items.clear();
        self.outs.clear();
        self.parts.clear();
        self.n_parts = 0;
        for (seq_idx, tokens) in job.batch.seq_starts.windows(2).enumerate() {
            let tokens = tokens[0] as usize..tokens[1] as usize;
            if tokens.is_empty() {
                continue;
            }
            let block_len = block_tokens(tokens.len(), job.group_len);
            for first_token in tokens.clone().step_by(block_len) {
                let n_tokens = block_len.min(tokens.end - first_token);
                let seen = job.seen_by(seq_idx, first_token..first_token + n_tokens);
                let (first_split, end_split) = (seen.start / SPLIT_TOKENS, seen.end.div_ceil(SPLIT_TOKENS));
                let n_splits = end_split - first_split;
                let n_split_parts = n_splits * n_tokens * job.params.n_heads;
                let is_split = tokens.len() <= MAX_SPLIT_TOKENS
                    && n_splits > 1
                    && self.n_parts + n_split_parts <= MAX_PARTS;
                let item = |group_idx| Item {
                    first_token,
                    n_tokens,
                    group_idx,
                    seq_idx,
                    first_split,
                    end_split,
                    split: None,
                    part_idx: 0,
                };
                if !is_split {
                    (0..n_groups).for_each(|group_idx| self.push(job, item(group_idx)));
                    continue;
                }
                for first_group in (0..n_groups).step_by(n_sharing) {
                    for split in first_split..end_split {
                        for group_idx in first_group..first_group + n_sharing {
                            self.push(
                                job,
                                Item {
                                    split: Some(split),
                                    part_idx: self.n_parts,
                                    ..item(group_idx)
                                },
                            );
                        }
                    }
                }
            }
        }
    }

    fn push(&mut self, job: &Job<'_>, item: Item) {
        let (mut out, mut parts) = (Rect::default(), Rect::default());
        if item.split.is_none_or(|split| split == item.first_split) {
            let group_cols = job.group_len * job.head_dim_v;
            out = Rect {
                rows: item.first_token..item.first_token + item.n_tokens,
                cols: item.group_idx * group_cols..(item.group_idx + 1) * group_cols,
            };
        }
        if item.split.is_some() {
            parts = Rect {
                rows: item.part_idx..item.part_idx + job.n_rows(&item),
                cols: 0..job.part_len(),
            };
            self.n_parts = parts.rows.end;
        }
        self.items.push(item);
        self.outs.push(out);
        self.parts.push(parts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_that_share_one_key_head_are_cut_into_groups() {
        let check = |n_heads, n_kv_heads, expected| {
            assert_eq!(
                group_len(n_heads, n_kv_heads),
                expected,
                "{n_heads} over {n_kv_heads}"
            );
        };
        check(64, 8, 8);
        check(128, 4, 32);
        check(14, 2, 7);
        check(16, 1, 8);
        check(128, 1, 8);
        check(20, 1, 5);
        check(71, 1, 71);
        check(1, 1, 1);
    }
}
