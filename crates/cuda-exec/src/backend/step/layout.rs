//! [`Layout`]: the parts of the array in which the values of a step are uploaded.
//!
//! Invariant: the start of each part depends only on the step's shape, the shape of the pages that its rows share, and its [`Places`].
//! All three are part of a captured step's key.

use tokenmill_backend::{ExecutorLimits, PAGE_TOKENS, SamplingMode, StepShape};

use super::{
    super::{
        places::Places,
        sampling,
        shared_pages::{MAX_ITEMS, SharedShape},
    },
    bucket,
};

/// Holds the start of each part of the array.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Layout {
    pub(super) n_tokens: usize,
    pub(super) positions: usize,
    pub(super) slots: usize,
    pub(super) seq_of: usize,
    pub(super) seq_starts: usize,
    pub(super) page_starts: usize,
    pub(super) window_slots: usize,
    pub(super) window_page_starts: usize,
    pub(super) output_rows: usize,
    pub(super) logits_of_outputs: usize,
    pub(super) states: usize,
    pub(super) records: usize,
    /// Items of pages that rows share, then their rows, then for each token the number of its shared tokens and of their records.
    pub(super) shared: usize,
    /// Words of [`Places`].
    pub(super) places: usize,
    pub(super) pages: usize,
}

impl Layout {
    pub(super) fn of(
        shape: &StepShape,
        limits: &ExecutorLimits,
        shared: Option<SharedShape>,
        places: Places,
    ) -> Self {
        let n = shape.n_tokens;
        let seq_starts = 4 * n;
        let page_starts = seq_starts + shape.n_seqs + 1;
        let window_slots = page_starts + shape.n_seqs + 1;
        let (window_page_starts, output_rows) = if limits.window_group.is_some() {
            (window_slots + n, window_slots + n + shape.n_seqs + 1)
        } else {
            (window_slots, window_slots)
        };
        let logits_of_outputs = output_rows + shape.n_outputs;
        // A record of slots is loaded as one vector; the other records begin with a number of 64 bits.
        let states = (logits_of_outputs + shape.n_logits).next_multiple_of(crate::SLOT_RECORD_WORDS);
        let n_states = if limits.n_states > 0 { shape.n_seqs } else { 0 };
        let records = states + n_states * crate::SLOT_RECORD_WORDS;
        let n_records = if shape.sampling == SamplingMode::Full {
            shape.n_logits
        } else {
            0
        };
        let after_records = records + n_records * crate::SampleRecord::WORDS;
        let n_shared = shared.map_or(0, |shared| {
            shared.n_items * crate::SharedPages::ITEM_WORDS + 3 * n
        });
        Self {
            n_tokens: n,
            positions: n,
            slots: 2 * n,
            seq_of: 3 * n,
            seq_starts,
            page_starts,
            window_slots,
            window_page_starts,
            output_rows,
            logits_of_outputs,
            states,
            records,
            shared: after_records,
            places: after_records + n_shared,
            pages: after_records + n_shared + places.n_words(n, limits.groups().count()),
        }
    }

    /// Counts the words of the largest step.
    pub(super) fn max_words(limits: &ExecutorLimits) -> usize {
        let max_pages = limits.max_batch_seqs * limits.n_ctx.div_ceil(PAGE_TOKENS);
        // A padded decode step has a record for each token of its bucket.
        let n_states = if limits.n_states > 0 {
            bucket(limits.max_batch_seqs)
        } else {
            0
        };
        let n_groups = limits.groups().count();
        (8 + 2 * n_groups) * limits.max_batch_tokens
            + MAX_ITEMS * crate::SharedPages::ITEM_WORDS
            + Places::max_words(limits.max_batch_tokens, n_groups)
            + 4
            + n_groups
            + n_states * crate::SLOT_RECORD_WORDS
            + limits.max_logit_rows * (1 + crate::SampleRecord::WORDS)
            + n_groups * max_pages
            + sampling::max_data_words(limits)
    }
}
