//! [`ForwardBatch`]: one step's work for any number of sequences, flat and ragged.
//!
//! The scheduler builds it and every backend reads it. Invariant: it holds plain numbers only; no tensor, no
//! device, no clock.

use std::{ops::Range, sync::Arc};

use crate::{AdapterId, PageGroup, RowMask, SamplingParams};

/// Number of tokens in one page of KV memory.
pub const PAGE_TOKENS: usize = 16;

/// The source of an input token's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// The id is known when the batch is built.
    Id(u32),
    /// The id is the token sampled in this logit row of the previous step. It lets the host plan step `n + 1`
    /// while the device still runs step `n`.
    SampledRow(u32),
    /// There is no token: the input is this row of [`ForwardBatch::input_rows`], used unscaled in place of an
    /// embedding.
    Row(u32),
}

/// Selects the output of one logit row.
#[derive(Clone, Debug)]
pub enum RowOutput {
    /// The raw logits, `[n_vocab]` f32, read back to the host.
    Logits,
    /// A token sampled on the device; only its id and the requested log-probabilities are returned.
    Sample(SampleRow),
}

/// The sampling record of one logit row.
///
/// The random number that picks the token is a function of `params.seed` and the position that the token will
/// take (`positions[row] + 1`) only; so a token depends neither on its batch nor on earlier draws.
#[derive(Clone, Debug)]
pub struct SampleRow {
    /// Sampling parameters.
    pub params: Arc<SamplingParams>,
    /// The sequence's tokens so far that penalties count, oldest first, as a range of
    /// [`ForwardBatch::history`]. Empty if `params` has no penalty. A token from [`TokenSource::SampledRow`]
    /// is not included; the executor appends it.
    pub history: Range<u32>,
    /// Number of prompt tokens at the start of that range; the presence and frequency penalties do not count
    /// them.
    pub n_prompt: u32,
    /// The tokens that may be picked.
    pub mask: RowMask,
}

/// One step's work: prefill chunks and decode tokens of many sequences, concatenated.
///
/// With `T` tokens, `S` sequences, `L` logit rows and `H` hidden rows:
///
/// | field | shape | meaning |
/// |---|---|---|
/// | `tokens` | `[T]` | input tokens, sequence after sequence |
/// | `positions` | `[T]` | each token's position in its sequence |
/// | `slots` | `[T]` | the slot of each K and V: `page * PAGE_TOKENS + position % PAGE_TOKENS`; all differ |
/// | `seq_starts` | `[S + 1]` | tokens of sequence `s` are `seq_starts[s]..seq_starts[s + 1]` |
/// | `page_starts` | `[S + 1]` | pages of sequence `s` are `pages[page_starts[s]..page_starts[s + 1]]` |
/// | `pages` | ragged | entry `p` of a sequence holds its positions `p * PAGE_TOKENS ..` |
/// | `window_slots` | `[T]` | as `slots`, for the separate group of layers with a window; empty if there is none |
/// | `window_pages` | ragged | as `pages`, for that group |
/// | `logit_rows` | `[L]` | token indices with requested logits, ascending |
/// | `outputs` | `[L]` | output of each logit row |
/// | `hidden_rows` | `[H]` | token indices with requested final hidden states, ascending |
/// | `states` | `[S]` | the slots of each sequence's recurrent state; empty for a model without one |
/// | `adapters` | up to `[S]` | each sequence's adapter; missing entries mean none |
/// | `hidden_inputs` | `[T, n_embd]` or empty | the hidden state of the token before each, for networks that read it too |
/// | `input_rows` | `[R, input_width]` | non-token inputs, such as an image's |
/// | `rope_positions` | `[T]` or empty | rope positions: time, row and column; if empty, all equal `positions` |
/// | `last_seen` | `[T]` or empty | the last position that each token sees; if empty, each sees up to its own |
/// | `window_seen` | `[T]` or empty | first and last position that each token sees in layers with a window; if empty, the window applies |
///
/// The page table is ragged rather than padded: one long sequence among short ones costs nothing.
/// Positions within a sequence are consecutive. Buffers are reused from step to step with [`ForwardBatch::clear`].
#[derive(Clone, Debug, Default)]
pub struct ForwardBatch {
    /// Input tokens, `[T]`.
    pub tokens: Vec<TokenSource>,
    /// Positions, `[T]`.
    pub positions: Vec<u32>,
    /// KV slots, `[T]`.
    pub slots: Vec<u32>,
    /// Offsets of the sequences in `tokens`, `[S + 1]` (empty if there is no sequence).
    pub seq_starts: Vec<u32>,
    /// Offsets of the sequences in `pages`, `[S + 1]` (empty if there is no sequence).
    pub page_starts: Vec<u32>,
    /// Page tables of all sequences, concatenated.
    pub pages: Vec<u32>,
    /// KV slots of the group [`PageGroup::Window`], `[T]`; empty if there is only one group.
    pub window_slots: Vec<u32>,
    /// Page tables of the group [`PageGroup::Window`], with the offsets of `pages`; empty if there is only
    /// one group.
    pub window_pages: Vec<u32>,
    /// Token indices with requested logits, `[L]`.
    pub logit_rows: Vec<u32>,
    /// Output of each logit row, `[L]`.
    pub outputs: Vec<RowOutput>,
    /// Token indices with requested hidden states (after the final norm), `[H]`.
    pub hidden_rows: Vec<u32>,
    /// The slots of each sequence's recurrent state, `[S]`; empty for a model without recurrent layers.
    pub states: Vec<SeqState>,
    /// Adapter of each sequence, `[S]` or fewer; missing entries mean none.
    pub adapters: Vec<Option<AdapterId>>,
    /// Non-token inputs, `[R, input_width]`; [`TokenSource::Row`] refers to them. Only some executors accept
    /// any.
    pub input_rows: Vec<f32>,
    /// The hidden state of the token before each input, `[T, n_embd]`, for networks that predict from it;
    /// empty for all others ([`Executor::reads_hidden`](crate::Executor::reads_hidden)).
    pub hidden_inputs: Vec<f32>,
    /// Width of a non-token input: the hidden width, once for the embedding that it replaces, and once for
    /// each layer after which it is added to the stream.
    pub input_width: usize,
    /// Rope positions, `[T]`: time, row and column; empty if all three are the token's position.
    pub rope_positions: Vec<[u32; 3]>,
    /// The last position that each token sees if attention is causal, `[T]`; empty if each sees up to its
    /// own. It never decreases within a sequence, and is in this step: rows that see each other, such as an
    /// image's, come in one step.
    pub last_seen: Vec<u32>,
    /// The first and the last position that each token sees in layers with a window, `[T]`; empty if the
    /// layer's window applies. Neither decreases within a sequence, and the token's own position is included.
    pub window_seen: Vec<[u32; 2]>,
    /// Penalty histories, to which [`SampleRow::history`] refers.
    pub history: Vec<u32>,
    /// Vocabulary masks, to which [`RowMask::Words`] refers.
    pub mask_words: Vec<u32>,
}

/// A sequence's recurrent state in a step: slots of the pool of states.
///
/// A sequence whose first token is at position 0 begins with a zero state, and `from` is ignored. No slot is
/// written twice in a step, and no written slot is read by another sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeqState {
    /// The slot of the state before this step: the sequence's own slot, or a snapshot to continue from.
    pub from: u32,
    /// The slot for the state after the sequence's last token of this step.
    pub to: u32,
    /// A snapshot to keep.
    pub save: Option<StateSave>,
}

/// A snapshot of a sequence's state between two of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSave {
    /// Number of tokens that the state has seen, from position 0 on; the last of them is in this step.
    pub n_tokens: u32,
    /// The slot for the snapshot.
    pub slot: u32,
}

impl SeqState {
    /// Returns the state of a sequence that stays in its slot and keeps no snapshot.
    pub fn own(slot: u32) -> Self {
        Self {
            from: slot,
            to: slot,
            save: None,
        }
    }
}

impl ForwardBatch {
    /// The entry of `pages` for a page that fell out of the attention window and was freed.
    pub const UNMAPPED_PAGE: u32 = u32::MAX;

    /// Clears the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.slots.clear();
        self.seq_starts.clear();
        self.page_starts.clear();
        self.pages.clear();
        self.window_slots.clear();
        self.window_pages.clear();
        self.logit_rows.clear();
        self.outputs.clear();
        self.hidden_rows.clear();
        self.states.clear();
        self.adapters.clear();
        self.input_rows.clear();
        self.hidden_inputs.clear();
        self.input_width = 0;
        self.rope_positions.clear();
        self.last_seen.clear();
        self.window_seen.clear();
        self.history.clear();
        self.mask_words.clear();
    }

    /// Copies `other` into the batch and keeps its memory.
    pub fn copy_from(&mut self, other: &Self) {
        let Self {
            tokens,
            positions,
            slots,
            seq_starts,
            page_starts,
            pages,
            window_slots,
            window_pages,
            logit_rows,
            outputs,
            hidden_rows,
            states,
            adapters,
            input_rows,
            hidden_inputs,
            input_width,
            rope_positions,
            last_seen,
            window_seen,
            history,
            mask_words,
        } = self;
        tokens.clone_from(&other.tokens);
        positions.clone_from(&other.positions);
        slots.clone_from(&other.slots);
        seq_starts.clone_from(&other.seq_starts);
        page_starts.clone_from(&other.page_starts);
        pages.clone_from(&other.pages);
        window_slots.clone_from(&other.window_slots);
        window_pages.clone_from(&other.window_pages);
        logit_rows.clone_from(&other.logit_rows);
        outputs.clone_from(&other.outputs);
        hidden_rows.clone_from(&other.hidden_rows);
        states.clone_from(&other.states);
        adapters.clone_from(&other.adapters);
        input_rows.clone_from(&other.input_rows);
        hidden_inputs.clone_from(&other.hidden_inputs);
        *input_width = other.input_width;
        rope_positions.clone_from(&other.rope_positions);
        last_seen.clone_from(&other.last_seen);
        window_seen.clone_from(&other.window_seen);
        history.clone_from(&other.history);
        mask_words.clone_from(&other.mask_words);
    }

    /// Appends a sequence: its next tokens, the position of the first of them, and its page table, which must
    /// cover the last of them.
    ///
    /// # Panics
    /// If `pages` does not cover a token's position: the caller allocates pages before it plans tokens.
    pub fn push_sequence(
        &mut self,
        tokens: impl IntoIterator<Item = TokenSource>,
        first_position: u32,
        pages: &[u32],
    ) {
        if self.seq_starts.is_empty() {
            self.seq_starts.push(0);
            self.page_starts.push(0);
        }
        for (position, token) in (first_position..).zip(tokens) {
            self.tokens.push(token);
            self.positions.push(position);
            self.slots.push(slot_of(pages, position));
        }
        if !self.last_seen.is_empty() {
            let n_known = self.last_seen.len();
            (self.last_seen).extend_from_slice(&self.positions[n_known..]);
        }
        if !self.rope_positions.is_empty() {
            self.take_rope_positions();
        }
        self.pages.extend_from_slice(pages);
        self.seq_starts.push(self.tokens.len() as u32);
        self.page_starts.push(self.pages.len() as u32);
    }

    /// Sets the newest sequence's pages in the separate group of layers with a window: as many as
    /// [`Self::push_sequence`] was given.
    ///
    /// # Panics
    /// If there is no sequence, or the table has another length.
    pub fn push_window_pages(&mut self, pages: &[u32]) {
        let newest = self.n_seqs().checked_sub(1).expect("a batch with a sequence");
        assert_eq!(pages.len(), self.pages_of(newest).len(), "pages of both groups");
        let positions = &self.positions[self.tokens_of(newest)];
        self.window_slots
            .extend(positions.iter().map(|&position| slot_of(pages, position)));
        self.window_pages.extend_from_slice(pages);
    }

    /// Sets the newest sequence's adapter.
    pub fn set_adapter(&mut self, adapter: Option<AdapterId>) {
        if adapter.is_some() {
            self.adapters.resize(self.n_seqs().saturating_sub(1), None);
            self.adapters.push(adapter);
        }
    }

    /// Makes the newest sequence's tokens in a range of positions see each other, as far as they are in this
    /// step.
    ///
    /// # Panics
    /// If there is no sequence.
    pub fn see_each_other(&mut self, positions: Range<u32>) {
        let newest = self.n_seqs().checked_sub(1).expect("a batch with a sequence");
        let n_known = self.last_seen.len();
        (self.last_seen).extend_from_slice(&self.positions[n_known..]);
        for token_idx in self.tokens_of(newest) {
            if positions.contains(&self.positions[token_idx]) {
                self.last_seen[token_idx] = positions.end - 1;
            }
        }
    }

    /// Sets the rope positions of the newest sequence's tokens: `position` returns time, row and column.
    ///
    /// # Panics
    /// If there is no sequence.
    pub fn turn_by(&mut self, mut position: impl FnMut(u32) -> [u32; 3]) {
        let newest = self.n_seqs().checked_sub(1).expect("a batch with a sequence");
        self.take_rope_positions();
        for token_idx in self.tokens_of(newest) {
            self.rope_positions[token_idx] = position(self.positions[token_idx]);
        }
    }

    /// Sets tokens without rope positions to their own positions.
    fn take_rope_positions(&mut self) {
        let n_known = self.rope_positions.len();
        let own = self.positions[n_known..].iter().map(|&position| [position; 3]);
        self.rope_positions.extend(own);
    }

    /// Requests the output of the newest token; call it after [`Self::push_sequence`].
    ///
    /// # Panics
    /// If the batch holds no token.
    pub fn want_last(&mut self, output: RowOutput) {
        let row = self.tokens.len().checked_sub(1).expect("a batch with a token");
        self.logit_rows.push(row as u32);
        self.outputs.push(output);
    }

    /// Returns the number of input tokens, `T`.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the number of sequences, `S`.
    pub fn n_seqs(&self) -> usize {
        self.seq_starts.len().saturating_sub(1)
    }

    /// Returns the token indices of sequence `seq_idx`.
    pub fn tokens_of(&self, seq_idx: usize) -> Range<usize> {
        self.seq_starts[seq_idx] as usize..self.seq_starts[seq_idx + 1] as usize
    }

    /// Returns the page table of sequence `seq_idx`.
    pub fn pages_of(&self, seq_idx: usize) -> &[u32] {
        self.table_of(seq_idx, PageGroup::Main)
    }

    /// Returns the KV slots of a group, `[T]`.
    pub fn slots_in(&self, group: PageGroup) -> &[u32] {
        match group {
            PageGroup::Main => &self.slots,
            PageGroup::Window => &self.window_slots,
        }
    }

    /// Returns the page tables of a group, concatenated with the offsets in [`Self::page_starts`].
    pub fn pages_in(&self, group: PageGroup) -> &[u32] {
        match group {
            PageGroup::Main => &self.pages,
            PageGroup::Window => &self.window_pages,
        }
    }

    /// Returns the page table of sequence `seq_idx` in a group.
    pub fn table_of(&self, seq_idx: usize, group: PageGroup) -> &[u32] {
        &self.pages_in(group)[self.page_starts[seq_idx] as usize..self.page_starts[seq_idx + 1] as usize]
    }

    /// Returns the number of tokens that sequence `seq_idx` has in the KV store after the step.
    pub fn context_len(&self, seq_idx: usize) -> usize {
        self.tokens_of(seq_idx)
            .next_back()
            .map_or(0, |last| self.positions[last] as usize + 1)
    }
}

/// Returns the slot of a position, given the sequence's page table.
fn slot_of(pages: &[u32], position: u32) -> u32 {
    let page = pages[position as usize / PAGE_TOKENS];
    page.wrapping_mul(PAGE_TOKENS as u32)
        .wrapping_add(position % PAGE_TOKENS as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_sequence_places_tokens_in_their_pages() {
        let mut batch = ForwardBatch::default();
        batch.push_sequence((0..18).map(TokenSource::Id), 0, &[3, 5]);
        batch.push_sequence([TokenSource::Id(7)], 16, &[1, 2]);
        assert_eq!(batch.slots[0], 3 * 16);
        assert_eq!(batch.slots[17], 5 * 16 + 1);
        assert_eq!(batch.slots[18], 2 * 16);
        assert_eq!((batch.context_len(0), batch.context_len(1)), (18, 17));
        batch.clear();
        batch.push_sequence([TokenSource::Id(7)], 33, &[9, 8, 7]);
        batch.push_window_pages(&[ForwardBatch::UNMAPPED_PAGE, 1, 0]);
        assert_eq!((batch.slots[0], batch.window_slots[0]), (7 * 16 + 1, 1));
        assert_eq!(
            batch.table_of(0, PageGroup::Window),
            [ForwardBatch::UNMAPPED_PAGE, 1, 0]
        );
    }
}
