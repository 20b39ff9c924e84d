//! [`ForwardBatch`]: one step's work for any number of sequences, flat and ragged.
//!
//! It is separate from the executor because the scheduler builds it and every backend reads it. Invariant: it holds
//! plain numbers only; no tensor, no device, no clock.

use std::{ops::Range, sync::Arc};

use crate::{AdapterId, PageGroup, RowMask, SamplingParams};

/// Tokens in one page of KV memory.
pub const PAGE_TOKENS: usize = 16;

/// Where an input token's id comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// The id is known when the batch is built.
    Id(u32),
    /// The id is the one sampled in this logit row of the step submitted before this one. It lets the host plan step
    /// `n + 1` while the device still runs step `n`.
    SampledRow(u32),
    /// There is no token: the input is this row of [`ForwardBatch::input_rows`], as it is, in the place of an embedding.
    Row(u32),
}

/// Selects the output of one logit row.
#[derive(Clone, Debug)]
pub enum RowOutput {
    /// The raw logits, `[n_vocab]` f32, read back to the host.
    Logits,
    /// A token sampled where the logits are; only the id and the asked-for log-probabilities come back.
    Sample(SampleRow),
}

/// The sampling record of one logit row.
///
/// The random number that picks the token is a function of `params.seed` and the position the token will take
/// (`positions[row] + 1`), nothing else; so a token depends neither on its batch nor on earlier draws.
#[derive(Clone, Debug)]
pub struct SampleRow {
    /// Sampling parameters.
    pub params: Arc<SamplingParams>,
    /// The sequence's tokens so far that penalties look at, oldest first, as a range of [`ForwardBatch::history`].
    /// Empty when `params` has no penalty. A token that comes from [`TokenSource::SampledRow`] is not in it; the
    /// executor appends it.
    pub history: Range<u32>,
    /// How many tokens at the start of that range are prompt tokens; the presence and frequency penalties do not count them.
    pub n_prompt: u32,
    /// The tokens that it may pick.
    pub mask: RowMask,
}

/// One step's work: prefill chunks and decode tokens of many sequences, one after the other.
///
/// With `T` tokens, `S` sequences, `L` logit rows and `H` hidden rows:
///
/// | field | shape | meaning |
/// |---|---|---|
/// | `tokens` | `[T]` | input tokens, sequence after sequence |
/// | `positions` | `[T]` | each token's position in its sequence |
/// | `slots` | `[T]` | where its K and V are stored: `page * PAGE_TOKENS + position % PAGE_TOKENS`; all differ |
/// | `seq_starts` | `[S + 1]` | tokens of sequence `s` are `seq_starts[s]..seq_starts[s + 1]` |
/// | `page_starts` | `[S + 1]` | pages of sequence `s` are `pages[page_starts[s]..page_starts[s + 1]]` |
/// | `pages` | ragged | entry `p` of a sequence holds its positions `p * PAGE_TOKENS ..` |
/// | `window_slots` | `[T]` | as `slots`, of the layers with a window where these are a group of their own; else empty |
/// | `window_pages` | ragged | as `pages`, likewise |
/// | `logit_rows` | `[L]` | token indices whose logits are wanted, ascending |
/// | `outputs` | `[L]` | output of each logit row |
/// | `hidden_rows` | `[H]` | token indices whose final hidden state is wanted, ascending |
/// | `states` | `[S]` | where each sequence's recurrent state is; empty for a model without one |
/// | `adapters` | up to `[S]` | each sequence's adapter; sequences after the end have none |
/// | `hidden_inputs` | `[T, n_embd]` or empty | the hidden state of the token before each, for networks that read it too |
/// | `input_rows` | `[R, input_width]` | inputs that are no tokens, such as an image's |
/// | `rope_positions` | `[T]` or empty | the positions that rope turns by: time, row and column; where it is empty, all are `positions` |
/// | `last_seen` | `[T]` or empty | the last position that each token sees; where it is empty, each sees up to its own |
/// | `window_seen` | `[T]` or empty | the first and last positions that each token sees in layers with a window; where it is empty, the window says |
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
    /// Offsets of the sequences in `tokens`, `[S + 1]` (empty when there is no sequence).
    pub seq_starts: Vec<u32>,
    /// Offsets of the sequences in `pages`, `[S + 1]` (empty when there is no sequence).
    pub page_starts: Vec<u32>,
    /// Page tables of all sequences, one after the other.
    pub pages: Vec<u32>,
    /// KV slots of the group [`PageGroup::Window`], `[T]`; empty where there is one group.
    pub window_slots: Vec<u32>,
    /// Page tables of the group [`PageGroup::Window`], divided as `pages` are; empty where there is one group.
    pub window_pages: Vec<u32>,
    /// Token indices whose logits are wanted, `[L]`.
    pub logit_rows: Vec<u32>,
    /// Output of each logit row, `[L]`.
    pub outputs: Vec<RowOutput>,
    /// Token indices whose hidden state (after the final norm) is wanted, `[H]`.
    pub hidden_rows: Vec<u32>,
    /// Where each sequence's recurrent state is, `[S]`; empty for a model without recurrent layers.
    pub states: Vec<SeqState>,
    /// Adapter of each sequence, `[S]` or fewer; sequences after the end have none.
    pub adapters: Vec<Option<AdapterId>>,
    /// Inputs that are no tokens, `[R, input_width]`; [`TokenSource::Row`] names them. Only executors that say so take any.
    pub input_rows: Vec<f32>,
    /// The hidden state of the token before each input, `[T, n_embd]`, for networks that guess from it; empty for all others
    /// ([`Executor::reads_hidden`](crate::Executor::reads_hidden)).
    pub hidden_inputs: Vec<f32>,
    /// Width of an input that is not a token: the width of a hidden state, once for the embedding that it replaces, and once for each layer
    /// after which it is added to the stream.
    pub input_width: usize,
    /// The positions that rope turns by, `[T]`: time, row and column; empty where all three are the token's position.
    pub rope_positions: Vec<[u32; 3]>,
    /// The last position that each token sees where attention is causal, `[T]`; empty where each sees up to its own. It never
    /// falls within a sequence, and lies in this step: rows that see each other, such as an image's, come in one step.
    pub last_seen: Vec<u32>,
    /// The first and the last position that each token sees in layers with a window, `[T]`; empty where the layer's window says.
    /// Neither falls within a sequence, and the token's own position is among them.
    pub window_seen: Vec<[u32; 2]>,
    /// Penalty histories that [`SampleRow::history`] points into.
    pub history: Vec<u32>,
    /// Vocabulary masks that [`RowMask::Words`] points into.
    pub mask_words: Vec<u32>,
}

/// Where a sequence's recurrent state is in a step: slots of the pool of states.
///
/// A sequence whose first token is at position 0 begins with a state of zeros, and `from` is not looked at. No slot is
/// written twice in a step, and none is written that another sequence reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeqState {
    /// The state after the tokens before this step: the sequence's own slot, or a snapshot that it continues from.
    pub from: u32,
    /// Takes the state after the sequence's last token of this step.
    pub to: u32,
    /// A snapshot to keep.
    pub save: Option<StateSave>,
}

/// A snapshot of a sequence's state between two of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSave {
    /// Tokens of the sequence, from position 0 on, that the state has seen; the last of them is in this step.
    pub n_tokens: u32,
    /// Takes the snapshot.
    pub slot: u32,
}

impl SeqState {
    /// A sequence that stays in its slot and keeps no snapshot.
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

    /// Empties the batch and keeps its memory.
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

    /// Becomes equal to `other` and keeps its memory.
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

    /// Appends a sequence: its next tokens, the position of the first of them, and its page table, which must reach
    /// to the last of them.
    ///
    /// # Panics
    /// Where `pages` does not cover a token's position: the caller allocates pages before it plans tokens.
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

    /// Gives the newest sequence its pages of the layers with a window, where these are a group of their own: as many as
    /// [`Self::push_sequence`] was given.
    ///
    /// # Panics
    /// Where there is no sequence, or the table has another length.
    pub fn push_window_pages(&mut self, pages: &[u32]) {
        let newest = self.n_seqs().checked_sub(1).expect("a batch with a sequence");
        assert_eq!(pages.len(), self.pages_of(newest).len(), "pages of both groups");
        let positions = &self.positions[self.tokens_of(newest)];
        self.window_slots
            .extend(positions.iter().map(|&position| slot_of(pages, position)));
        self.window_pages.extend_from_slice(pages);
    }

    /// Gives the newest sequence an adapter, or none.
    pub fn set_adapter(&mut self, adapter: Option<AdapterId>) {
        if adapter.is_some() {
            self.adapters.resize(self.n_seqs().saturating_sub(1), None);
            self.adapters.push(adapter);
        }
    }

    /// Lets the newest sequence's tokens of a range of positions see each other, where they are in this step.
    ///
    /// # Panics
    /// Where there is no sequence.
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

    /// Lets rope turn the newest sequence's tokens by other positions than their own: `position` gives time, row and column.
    ///
    /// # Panics
    /// Where there is no sequence.
    pub fn turn_by(&mut self, mut position: impl FnMut(u32) -> [u32; 3]) {
        let newest = self.n_seqs().checked_sub(1).expect("a batch with a sequence");
        self.take_rope_positions();
        for token_idx in self.tokens_of(newest) {
            self.rope_positions[token_idx] = position(self.positions[token_idx]);
        }
    }

    /// Gives those tokens their own positions whose rope positions are not known yet.
    fn take_rope_positions(&mut self) {
        let n_known = self.rope_positions.len();
        let own = self.positions[n_known..].iter().map(|&position| [position; 3]);
        self.rope_positions.extend(own);
    }

    /// Asks for the logits of the newest token; call it after [`Self::push_sequence`].
    ///
    /// # Panics
    /// When the batch holds no token.
    pub fn want_last(&mut self, output: RowOutput) {
        let row = self.tokens.len().checked_sub(1).expect("a batch with a token");
        self.logit_rows.push(row as u32);
        self.outputs.push(output);
    }

    /// Number of input tokens, `T`.
    pub fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Number of sequences, `S`.
    pub fn n_seqs(&self) -> usize {
        self.seq_starts.len().saturating_sub(1)
    }

    /// Token indices of sequence `seq_idx`.
    pub fn tokens_of(&self, seq_idx: usize) -> Range<usize> {
        self.seq_starts[seq_idx] as usize..self.seq_starts[seq_idx + 1] as usize
    }

    /// The page table of sequence `seq_idx`.
    pub fn pages_of(&self, seq_idx: usize) -> &[u32] {
        self.table_of(seq_idx, PageGroup::Main)
    }

    /// KV slots of a group, `[T]`.
    pub fn slots_in(&self, group: PageGroup) -> &[u32] {
        match group {
            PageGroup::Main => &self.slots,
            PageGroup::Window => &self.window_slots,
        }
    }

    /// Page tables of a group, which [`Self::page_starts`] divides.
    pub fn pages_in(&self, group: PageGroup) -> &[u32] {
        match group {
            PageGroup::Main => &self.pages,
            PageGroup::Window => &self.window_pages,
        }
    }

    /// The page table of sequence `seq_idx` in a group.
    pub fn table_of(&self, seq_idx: usize, group: PageGroup) -> &[u32] {
        &self.pages_in(group)[self.page_starts[seq_idx] as usize..self.page_starts[seq_idx + 1] as usize]
    }

    /// Tokens that sequence `seq_idx` has in the KV store once the step is done.
    pub fn context_len(&self, seq_idx: usize) -> usize {
        self.tokens_of(seq_idx)
            .next_back()
            .map_or(0, |last| self.positions[last] as usize + 1)
    }
}

/// The slot of a position, given the sequence's page table.
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
