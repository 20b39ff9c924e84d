//! Planning of drafts: which guesses a step computes, and where their keys, values and states go.
//!
//! A part of [`Scheduler`] that stands apart because steps without drafts know none of it. Invariants: a draft takes no page and no slot that
//! another running sequence needs in the same step; nothing that a wrong guess wrote is read.

use std::ops::Range;

use tokenmill_backend::PAGE_TOKENS;

use crate::{
    arena::SeqId,
    drafting::{DraftRoom, DraftTimes, Speculation},
    ngram::{Match, followed_by},
    scheduler::Scheduler,
    sequence::{Sequence, Work},
};

/// A draft that is worth having, not yet written.
#[derive(Clone, Copy, Debug)]
struct Choice {
    found: Match,
    len: usize,
    gain: u64,
}

/// Chooses the draft of a sequence, of `max_draft` tokens at most.
fn choose(sequence: &mut Sequence, max_draft: usize, room: &DraftRoom) -> Option<Choice> {
    let (Some(drafter), Work::Generate { max_len, .. }) = (&mut sequence.drafter, &sequence.work) else {
        return None;
    };
    let tokens = &sequence.tokens;
    // One token is sampled behind the last of the draft.
    let max = max_draft.min(max_len - tokens.len() - 1);
    let found = drafter.find(tokens)?;
    let acceptance = drafter.acceptance;
    // Behind a wrong guess a recurrent state is computed again.
    let n_costs = if sequence.state.is_some() { 2 } else { 1 };
    let (len, gain) = room.best_len(max, n_costs, |offset| acceptance.of(found.len + offset));
    (len > 0).then_some(Choice { found, len, gain })
}

impl Scheduler {
    /// Whether sequences of this model guess tokens ahead.
    pub(crate) fn speculates(&self) -> bool {
        self.config.speculation != Speculation::Off
    }

    /// Room for the drafts of a step whose sequences have been given `shares` of inputs. Next to prompts there is none: their
    /// tokens use the step better.
    pub(crate) fn draft_room(&self, shares: &[usize], times: Option<DraftTimes>) -> DraftRoom {
        let has_prompt = (self.running.iter().zip(shares)).any(|(&id, &share)| {
            let sequence = &self.sequences[id];
            share > 1 && sequence.n_planned + 1 < sequence.n_prompt
        });
        if !self.speculates() || has_prompt {
            return DraftRoom::NONE;
        }
        let n_rows: usize = shares.iter().sum();
        let n_left = self.config.max_step_tokens.saturating_sub(n_rows);
        match (self.config.speculation, times) {
            (Speculation::Ngram { .. }, _) => DraftRoom::new(None, n_left, n_rows),
            (_, Some(_)) => DraftRoom::new(times, n_left, n_rows),
            _ => DraftRoom::NONE,
        }
    }

    /// Guesses what follows the next `n_tokens` inputs of a sequence, and gets the guesses a place where there is room. Appends them to
    /// `drafts` and returns where they are.
    pub(crate) fn plan_draft(
        &mut self,
        id: SeqId,
        n_tokens: usize,
        n_logit_rows: usize,
        room: &mut DraftRoom,
        drafts: &mut Vec<u32>,
    ) -> Range<u32> {
        let start = drafts.len();
        let nothing = start as u32..start as u32;
        let max_draft = self.config.speculation.max_draft().min(n_logit_rows);
        let sequence = &mut self.sequences[id];
        let max_draft = match sequence.state {
            // A page ends with a snapshot, which a row has one of.
            Some(_) => {
                max_draft.min(sequence.tokens.len().next_multiple_of(PAGE_TOKENS) - sequence.tokens.len())
            }
            None => max_draft,
        };
        let is_decode = n_tokens == 1 && sequence.n_planned + 1 == sequence.tokens.len();
        if !is_decode || max_draft == 0 || room.n_left == 0 {
            return nothing;
        }
        let Some(Choice { found, len, gain }) = choose(sequence, max_draft, room) else {
            return nothing;
        };
        let fitting = len.min(self.grow_for_draft(id, len));
        if fitting == 0 || !self.has_spare(id) {
            return nothing;
        }
        room.take(fitting, gain * fitting as u64 / len as u64);
        let tokens = &self.sequences[id].tokens;
        for offset in 0..fitting {
            let id = followed_by(tokens, found, offset, &drafts[start..]);
            drafts.push(id);
        }
        start as u32..drafts.len() as u32
    }

    /// Gets a slot for the state after a draft, where the model has states. Returns whether the draft has all it needs.
    fn has_spare(&mut self, id: SeqId) -> bool {
        let sequence = &mut self.sequences[id];
        if sequence.state.is_none() {
            return true;
        }
        sequence.spare = self.groups[0].pool.states.allocate();
        sequence.spare.is_some()
    }

    /// Extends a sequence's page tables for a draft behind its next input, unless other running sequences may need the pages. Returns
    /// for how many tokens of the draft there is room.
    fn grow_for_draft(&mut self, id: SeqId, len: usize) -> usize {
        let sequence = &self.sequences[id];
        let n_mapped = (sequence.tables[..self.groups.len()].iter())
            .map(|pages| pages.len() * PAGE_TOKENS)
            .min()
            .unwrap_or(0);
        let n_inputs = n_mapped - sequence.n_planned;
        let n_pages = (1 + len).div_ceil(PAGE_TOKENS);
        let is_rich =
            (self.groups.iter()).all(|group| group.pool.n_available() >= n_pages + self.running.len());
        let n_inputs = if n_inputs > len || !is_rich {
            n_inputs
        } else {
            self.grow(id, 1 + len)
        };
        n_inputs.saturating_sub(1)
    }
}
