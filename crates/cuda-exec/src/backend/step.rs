//! [`StepInputs`]: the upload of a step's values.
//!
//! All of them are one array of words that is uploaded in one copy, from one of two pinned buffers, so that the host can write the next while the
//! device reads the last. Invariant: the start of each part of the array depends only on the step's shape, so a captured step finds it again.
//!
//! A step that decodes or verifies is padded to a bucket, so that few graphs serve all batches: a padding token has no position, is stored nowhere
//! and attends to nothing.

mod layout;

use tokenmill_backend::{
    BackendError, ExecutorLimits, ForwardBatch, PAGE_TOKENS, PageGroup, Phase, RowSet, SamplingMode,
    StepShape, TokenSource,
};

use crate::states::slot_record;

use self::layout::Layout;
use super::{
    places::{Places, TurningPositions},
    results::Results,
    sampling,
    shared_pages::{SharedPlan, SharedShape},
};

/// The position and the slot of padding.
pub(super) const NOWHERE: u32 = u32::MAX;
/// Marks a token that is a row sampled in the step before.
const SAMPLED_ROW: u32 = 1 << 31;
/// Pages that a context is padded to a power of two of.
const SPLIT_PAGES: usize = 16;

/// The inputs of a step on the device, and the staging memory that they go through.
pub(super) struct StepInputs {
    words: crate::Buffer<u32>,
    staging: [crate::Pinned<u32>; 2],
    n_steps: usize,
    limits: ExecutorLimits,
    layout: Layout,
    /// Page tables of the current step, cut to the contexts: those of the main group, then those of the windows'.
    pages: Vec<u32>,
    page_starts: Vec<u32>,
    /// The number of pages of the main group among them.
    n_main_pages: usize,
    output_rows: Vec<u32>,
    /// Whether each sequence has one token.
    has_single_run: bool,
    /// Number of leading sequences with one token each.
    n_leading_single: usize,
    /// Whether one of the rows may draw many tokens.
    has_many: bool,
    /// The pages that rows of the current step share.
    shared: Option<(SharedPlan, SharedShape)>,
    /// Positions by which the current step's tokens turn, and whether they see later tokens.
    places: Places,
    /// Whether the current step has rows in place of tokens.
    pub(super) has_input_rows: bool,
}

impl StepInputs {
    pub(super) fn new(device: &crate::Device, limits: &ExecutorLimits) -> Result<Self, crate::CudaExecError> {
        let n_words = Layout::max_words(limits);
        Ok(Self {
            words: device.alloc("step inputs", n_words)?,
            staging: [device.alloc_pinned(n_words)?, device.alloc_pinned(n_words)?],
            n_steps: 0,
            limits: limits.clone(),
            layout: Layout::default(),
            pages: Vec::new(),
            page_starts: Vec::new(),
            n_main_pages: 0,
            output_rows: Vec::new(),
            has_single_run: false,
            n_leading_single: 0,
            has_many: false,
            shared: None,
            places: Places::default(),
            has_input_rows: false,
        })
    }

    pub(super) fn device_bytes(limits: &ExecutorLimits) -> usize {
        crate::buffer_bytes::<u32>(Layout::max_words(limits))
    }

    /// Returns the mode in which the device samples a step.
    pub(super) fn device_mode(&self, batch: &ForwardBatch) -> SamplingMode {
        sampling::device_mode(batch, &self.limits)
    }

    /// Writes the values of a batch and queues their copy. The shape's pages are padded; with `pads`, its counts are too. With `shares`, the step
    /// reads pages that rows of a decode step share only once.
    pub(super) fn begin(
        &mut self,
        batch: &ForwardBatch,
        sampling: SamplingMode,
        pads: bool,
        shares: bool,
        results: &mut Results,
    ) -> Result<StepShape, BackendError> {
        self.collect_pages(batch);
        self.collect_rows(batch);
        let counted = StepShape {
            sampling,
            ..StepShape::of(batch)
        };
        let shape = self.padded(&counted, pads);
        let run_lens = || {
            batch
                .seq_starts
                .windows(2)
                .map(|pair| (pair[1] - pair[0]) as usize)
        };
        self.has_single_run = run_lens().any(|len| len == 1);
        self.n_leading_single = run_lens().take_while(|&len| len == 1).count();
        self.plan_shared(&shape, shares);
        self.places = Places::of(batch)?;
        self.has_input_rows = !batch.input_rows.is_empty();
        let shared = self.shared.as_ref();
        let of_shared = shared.map(|(_, shape)| *shape);
        let layout = Layout::of(&shape, &self.limits, of_shared, self.places);
        self.layout = layout;
        let staging = &mut self.staging[self.n_steps % 2];
        self.n_steps += 1;
        let words = staging.host()?;
        let mut n_words = layout.pages + self.pages.len();

        let part = |words: &mut [u32], start: usize, values: &[u32], padding: u32, len: usize| {
            words[start..start + values.len()].copy_from_slice(values);
            words[start + values.len()..start + len].fill(padding);
        };
        let n = layout.n_tokens;
        for (word, token) in words[..n].iter_mut().zip(&batch.tokens) {
            *word = match *token {
                TokenSource::Id(id) => id,
                // Looked up like any token, and then overwritten by the row.
                TokenSource::Row(_) => 0,
                TokenSource::SampledRow(row) => match results.sampled_on_host()? {
                    Some(sampled) => sampled[row as usize],
                    None => SAMPLED_ROW | row,
                },
            };
        }
        words[batch.n_tokens()..n].fill(0);
        let end = batch.n_tokens() as u32;
        part(words, layout.seq_starts, &batch.seq_starts, end, shape.n_seqs + 1);
        part(words, layout.positions, &batch.positions, NOWHERE, n);
        part(words, layout.slots, &batch.slots, NOWHERE, n);
        for seq_idx in 0..batch.n_seqs() {
            for token_idx in batch.tokens_of(seq_idx) {
                words[layout.seq_of + token_idx] = seq_idx as u32;
            }
        }
        words[layout.seq_of + batch.n_tokens()..layout.seq_starts].fill(0);
        let end = self.n_main_pages as u32;
        part(
            words,
            layout.page_starts,
            &self.page_starts,
            end,
            shape.n_seqs + 1,
        );
        if self.limits.window_group.is_some() {
            part(words, layout.window_slots, &batch.window_slots, NOWHERE, n);
            // The tables of this group follow those of the other, and are divided in the same way.
            let starts = self.page_starts.iter().map(|start| end + start);
            let padding = std::iter::repeat(2 * end);
            for (word, start) in words[layout.window_page_starts..layout.output_rows]
                .iter_mut()
                .zip(starts.chain(padding))
            {
                *word = start;
            }
        }
        part(words, layout.output_rows, &self.output_rows, 0, shape.n_outputs);
        for (index, row) in batch.logit_rows.iter().enumerate() {
            let output = self.output_rows.binary_search(row);
            words[layout.logits_of_outputs + index] = output.expect("a logit row is an output") as u32;
        }
        words[layout.logits_of_outputs + batch.logit_rows.len()..layout.states].fill(0);
        let records = words[layout.states..layout.records].chunks_exact_mut(crate::SLOT_RECORD_WORDS);
        for (seq_idx, record) in records.enumerate() {
            // A padding sequence has no token.
            record.copy_from_slice(&batch.states.get(seq_idx).map_or([NOWHERE; 4], |&state| {
                let first = batch.seq_starts[seq_idx];
                slot_record(state, first, batch.positions[first as usize])
            }));
        }
        if let Some((plan, shape)) = shared {
            let mut at = layout.shared;
            let mut next = |values: &[u32], len: usize| {
                part(words, at, values, 0, len);
                at += len;
            };
            next(
                plan.items.as_flattened(),
                shape.n_items * crate::SharedPages::ITEM_WORDS,
            );
            for values in [&plan.rows, &plan.tokens, &plan.n_records] {
                next(values, n);
            }
        }
        let starts_of_group = |group_idx: u32| {
            let starts = &self.page_starts;
            move |seq_idx: usize| group_idx * end + starts[seq_idx]
        };
        let page_starts = [0, 1].map(starts_of_group);
        self.places.write(
            batch,
            n,
            &page_starts[..self.limits.groups().count()],
            &mut words[layout.places..layout.pages],
        );
        words[layout.pages..n_words].copy_from_slice(&self.pages);
        self.has_many = false;
        if sampling == SamplingMode::Full {
            (n_words, self.has_many) = sampling::write_records(
                batch,
                self.limits.n_vocab,
                layout.records..layout.shared,
                SAMPLED_ROW,
                words,
                n_words,
            );
        }

        let target = self.words.view_mut().range(0..n_words)?;
        staging.upload(crate::Stream::Compute, 0..n_words, &target)?;
        Ok(shape)
    }

    /// Copies the page tables, each as far as its sequence's context.
    fn collect_pages(&mut self, batch: &ForwardBatch) {
        self.pages.clear();
        self.page_starts.clear();
        self.page_starts.push(0);
        for seq_idx in 0..batch.n_seqs() {
            let n_pages = batch.context_len(seq_idx).div_ceil(PAGE_TOKENS);
            self.pages.extend_from_slice(&batch.pages_of(seq_idx)[..n_pages]);
            self.page_starts.push(self.pages.len() as u32);
        }
        self.n_main_pages = self.pages.len();
        if self.limits.window_group.is_some() {
            for seq_idx in 0..batch.n_seqs() {
                let n_pages = batch.context_len(seq_idx).div_ceil(PAGE_TOKENS);
                let table = batch.table_of(seq_idx, PageGroup::Window);
                self.pages.extend_from_slice(&table[..n_pages]);
            }
        }
    }

    /// Plans which pages the rows of a decode step share.
    fn plan_shared(&mut self, shape: &StepShape, shares: bool) {
        self.shared = None;
        if shares && shape.phase == Phase::Decode {
            let starts = &self.page_starts;
            self.shared = SharedPlan::of(&self.pages[..self.n_main_pages], starts).map(|plan| {
                let shape = plan.shape(starts, shape);
                (plan, shape)
            });
        }
    }

    /// Returns the shape of the pages that rows of the current step share, if they share any.
    pub(super) fn shared_shape(&self) -> Option<SharedShape> {
        self.shared.as_ref().map(|(_, shape)| *shape)
    }

    fn padded_pages(&self, n_pages: usize) -> usize {
        let n_splits = n_pages.div_ceil(SPLIT_PAGES).max(1).next_power_of_two();
        (n_splits * SPLIT_PAGES).min(self.limits.n_ctx.div_ceil(PAGE_TOKENS))
    }

    /// Returns the shared pages on the device.
    fn shared_pages(&self, n_tokens: usize) -> Result<Option<crate::SharedPages<'_>>, BackendError> {
        let Some(shape) = self.shared_shape() else {
            return Ok(None);
        };
        let words = self.words.view();
        let rows = self.layout.shared + shape.n_items * crate::SharedPages::ITEM_WORDS;
        let of_tokens = |part: usize| words.range(rows + part * n_tokens..rows + (part + 1) * n_tokens);
        Ok(Some(crate::SharedPages {
            items: words.range(self.layout.shared..rows)?,
            rows: of_tokens(0)?,
            tokens: of_tokens(1)?,
            n_records_of: of_tokens(2)?,
            longest: shape.longest,
            n_records: shape.n_records,
            max_rest_pages: shape.max_rest_pages,
        }))
    }

    fn collect_rows(&mut self, batch: &ForwardBatch) {
        self.output_rows.clear();
        self.output_rows.extend_from_slice(&batch.logit_rows);
        self.output_rows.extend_from_slice(&batch.hidden_rows);
        self.output_rows.sort_unstable();
        self.output_rows.dedup();
    }

    /// Pads contexts and, with `pads`, a step that decodes or verifies to its bucket. Equal counts stay equal, since a program's variant depends on
    /// that.
    fn padded(&self, shape: &StepShape, pads: bool) -> StepShape {
        let longest = (self.page_starts.windows(2))
            .map(|pair| (pair[1] - pair[0]) as usize)
            .max()
            .unwrap_or(0);
        let max_pages = self.padded_pages(longest);
        let mut padded = StepShape { max_pages, ..*shape };
        if !pads || shape.phase == Phase::Mixed || shape.n_tokens == 0 {
            return padded;
        }
        if shape.phase == Phase::Verify {
            // Kernels of recurrent layers use the number of a padding sequence as that of its row.
            if self.limits.n_states > 0 {
                return padded;
            }
            // Attention computes each token separately.
            padded.longest = StepShape::MAX_VERIFIED;
        }
        let of_seqs = bucket(shape.n_seqs);
        let bucket = bucket(shape.n_tokens);
        let has_one_logit_row_each = shape.n_logits == shape.n_tokens;
        let fits = bucket <= self.limits.max_batch_tokens
            && (!has_one_logit_row_each || bucket <= self.limits.max_logit_rows);
        if fits {
            padded.n_tokens = bucket;
            padded.n_seqs = of_seqs;
            if shape.n_outputs == shape.n_tokens {
                padded.n_outputs = bucket;
            }
            if shape.n_hidden == shape.n_tokens {
                padded.n_hidden = bucket;
            }
            if has_one_logit_row_each {
                padded.n_logits = bucket;
            }
        }
        padded
    }

    /// Returns the largest step.
    pub(super) fn limits(&self) -> &ExecutorLimits {
        &self.limits
    }

    /// Returns the tokens whose output rows the current step computes, ascending and without padding.
    pub(super) fn output_rows(&self) -> &[u32] {
        &self.output_rows
    }

    /// Returns the pages of a group in the current step.
    pub(super) fn pages(&self, group: PageGroup) -> &[u32] {
        let (main, window) = self.pages.split_at(self.n_main_pages);
        match group {
            PageGroup::Main => main,
            PageGroup::Window => window,
        }
    }

    pub(super) fn tokens(&self, n_tokens: usize) -> Result<crate::View<'_, u32>, BackendError> {
        Ok(self.words.view().range(0..n_tokens)?)
    }

    pub(super) fn positions(&self, n_tokens: usize) -> Result<crate::View<'_, u32>, BackendError> {
        let positions = self.layout.positions;
        Ok(self.words.view().range(positions..positions + n_tokens)?)
    }

    /// Returns the positions of tokens, and the slots in which a group stores them.
    pub(super) fn places(
        &self,
        n_tokens: usize,
        group: PageGroup,
    ) -> Result<crate::StepPlaces<'_>, BackendError> {
        let slots = match group {
            PageGroup::Main => self.layout.slots,
            PageGroup::Window => self.layout.window_slots,
        };
        Ok(crate::StepPlaces {
            positions: self.positions(n_tokens)?,
            slots: self.words.view().range(slots..slots + n_tokens)?,
        })
    }

    /// Returns the arguments of attention over the pages of a group, and whether causal attention sees later tokens. Each token is then a
    /// sequence of its own, which ends with the last token that it sees.
    pub(super) fn attention(
        &self,
        shape: &StepShape,
        group: PageGroup,
        is_causal: bool,
    ) -> Result<(crate::AttentionStep<'_>, bool), BackendError> {
        let words = self.words.view();
        let layout = self.layout;
        let page_starts = match group {
            PageGroup::Main => layout.page_starts..layout.window_slots,
            PageGroup::Window => layout.window_page_starts..layout.output_rows,
        };
        let step = crate::AttentionStep {
            positions: words.range(layout.positions..layout.positions + shape.n_tokens)?,
            seq_of: words.range(layout.seq_of..layout.seq_of + shape.n_tokens)?,
            page_starts: words.range(page_starts)?,
            pages: words.range(layout.pages..words.len())?,
            max_pages: shape.max_pages,
            is_one_each: shape.phase == Phase::Decode,
            shared: match group {
                PageGroup::Main => self.shared_pages(shape.n_tokens)?,
                PageGroup::Window => None,
            },
            // A step that verifies is captured and has few tokens per sequence: they attend like the tokens of a decode step.
            runs: if shape.phase == Phase::Mixed {
                Some(crate::TokenRuns {
                    seq_starts: self.seq_starts()?,
                    longest: shape.longest,
                    has_single: self.has_single_run,
                    n_leading_single: self.n_leading_single,
                })
            } else {
                None
            },
        };
        if !is_causal {
            return Ok((step, false));
        }
        let group_idx = usize::from(group == PageGroup::Window);
        let seen = (self.places).attention(words.range(layout.places..layout.pages)?, group_idx, step)?;
        Ok(seen.map_or((step, false), |seen| (seen, true)))
    }

    /// Returns the positions by which rope turns the current step's tokens; `None` if they are the tokens' own.
    pub(super) fn turning(&self, n_tokens: usize) -> Result<Option<TurningPositions<'_>>, BackendError> {
        let words = self.words.view().range(self.layout.places..self.layout.pages)?;
        self.places.turning(words, n_tokens)
    }

    /// Returns the [`Places`] of the current step.
    pub(super) fn places_of_step(&self) -> Places {
        self.places
    }

    /// Offsets of the sequences in the tokens, `[S + 1]`.
    pub(super) fn seq_starts(&self) -> Result<crate::View<'_, u32>, BackendError> {
        let words = self.words.view();
        Ok(words.range(self.layout.seq_starts..self.layout.page_starts)?)
    }

    /// Returns the places of the sequences' recurrent states.
    pub(super) fn states(&self, shape: &StepShape) -> Result<crate::StateRuns<'_>, BackendError> {
        let words = self.words.view();
        Ok(crate::StateRuns {
            seq_starts: self.seq_starts()?,
            slots: words.range(self.layout.states..self.layout.records)?,
            n_seqs: shape.n_seqs,
            n_tokens: shape.n_tokens,
            positions: self.positions(shape.n_tokens)?,
            longest: shape.longest.max(1),
        })
    }

    /// Returns the sampling records of rows, and the words that they point into.
    pub(super) fn records(&self) -> Result<[crate::View<'_, u32>; 2], BackendError> {
        let words = self.words.view();
        Ok([words.range(self.layout.records..self.layout.shared)?, words])
    }

    /// Returns whether a row of the current step may draw [many tokens](crate::SampleRecord::draws_many).
    pub(super) fn has_many(&self) -> bool {
        self.has_many
    }

    /// Returns the row numbers of a gathering, and the number of rows that they choose from.
    pub(super) fn rows(
        &self,
        rows: RowSet,
        shape: &StepShape,
    ) -> Result<(crate::View<'_, u32>, usize), BackendError> {
        let words = self.words.view();
        let layout = self.layout;
        Ok(match rows {
            RowSet::Outputs => (
                words.range(layout.output_rows..layout.logits_of_outputs)?,
                shape.n_tokens,
            ),
            RowSet::LogitsOfOutputs => (
                words.range(layout.logits_of_outputs..layout.logits_of_outputs + shape.n_logits)?,
                shape.n_outputs,
            ),
        })
    }
}

/// Returns the number of rows, or of sequences, that a step is padded to: as many as one launch of a product takes at the same cost, and above 64 a
/// multiple of a quarter of the power of two below, so that large batches need few graphs.
pub(super) fn bucket(n_tokens: usize) -> usize {
    match n_tokens {
        0..=2 => n_tokens,
        3..=4 => 4,
        5..=64 => n_tokens.next_multiple_of(8),
        _ => n_tokens.next_multiple_of(1 << ((n_tokens - 1).ilog2() - 2)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_they_are_for_and_are_few() {
        let mut buckets: Vec<usize> = (1..=64).map(bucket).collect();
        assert!(
            (1..=64)
                .zip(&buckets)
                .all(|(n_tokens, &bucket)| n_tokens <= bucket)
        );
        buckets.dedup();
        assert_eq!(buckets, [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64]);
        assert_eq!(bucket(3), bucket(4));
        let mut large: Vec<usize> = (65..=1024).map(bucket).collect();
        assert!(
            (65..=1024)
                .zip(&large)
                .all(|(n_tokens, &bucket)| { n_tokens <= bucket && bucket < n_tokens + n_tokens / 4 + 1 })
        );
        large.dedup();
        assert_eq!(
            large,
            [
                80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024
            ]
        );
    }
}
