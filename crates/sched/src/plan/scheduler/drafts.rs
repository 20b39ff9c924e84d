//! Planning of drafts: which draft tokens a step computes, and where their keys, values and states go.
//!
//! Part of [`Scheduler`]. Invariants: a draft takes no page and no slot that another running sequence needs
//! in the same step; nothing written for a wrong draft token is ever read.

use std::ops::Range;

use tokenmill_backend::PAGE_TOKENS;

use crate::{
    arena::SeqId,
    draft::{
        acceptance::Acceptance,
        budget::{DraftBudget, DraftTimes},
        drafter::{Drafter, Speculation},
        tokens::{Class, Draft},
    },
    masks::text::Seen,
    plan::{
        scheduler::Scheduler,
        sequence::{Masking, Sequence, Work},
    },
};

/// Room taken by likely drafts of a step, so that it is not promised twice.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DraftPlaces {
    n_pages: usize,
    n_slots: usize,
}

/// A sequence for which the draft model may make a draft.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub(crate) seq: SeqId,
    /// Maximum length of the draft.
    pub(crate) max_draft: usize,
    /// Number of tokens that it may still generate.
    pub(crate) n_left: usize,
    /// Acceptance of its drafts so far.
    pub(crate) acceptance: Acceptance,
}

/// Returns the maximum length of a draft after the first `n_tokens` of the sequence, if these are all that it
/// will have by then.
pub(crate) fn max_draft_of(sequence: &Sequence, n_tokens: usize, max_draft: usize) -> usize {
    let n_left = match sequence.work {
        // One token is sampled after the draft's last.
        Work::Generate { .. } => sequence.end_len().saturating_sub(n_tokens + 1),
        Work::Logits { .. } | Work::Hidden { .. } => 0,
    };
    let until_snapshot = match sequence.state {
        // A page ends with a snapshot, and a row can take only one.
        Some(_) => n_tokens.next_multiple_of(PAGE_TOKENS) - n_tokens,
        None => usize::MAX,
    };
    max_draft.min(n_left).min(until_snapshot)
}

/// Returns how many times each row of a sequence's draft is computed.
pub(crate) fn n_costs_of(sequence: &Sequence) -> u64 {
    // After a wrong draft token, a recurrent state is computed again.
    if sequence.state.is_some() { 2 } else { 1 }
}

/// Chooses the draft of a sequence. Returns how many of its tokens pay, at most `max`, and their expected
/// gain; `None` if there is no gain.
fn choose(sequence: &mut Sequence, max: usize, looks_up: bool, budget: &DraftBudget) -> Option<(usize, u64)> {
    let n_costs = n_costs_of(sequence);
    let Sequence { tokens, drafter, .. } = sequence;
    let drafter = drafter.as_mut()?;
    let n_tokens = tokens.len();
    let draft = if sequence.masking == Masking::Off {
        drafter.draft_freely(tokens, looks_up, max);
        drafter.draft(n_tokens)
    } else {
        drafter.masked_draft(n_tokens)
    };
    let (len, gain) = drafter.best_len(draft?, max, n_costs, budget);
    (len > 0).then_some((len, gain))
}

impl Scheduler {
    /// Returns whether sequences may have drafts.
    pub(crate) fn speculates(&self) -> bool {
        self.config.speculation != Speculation::Off
    }

    /// Returns the budget for drafts in a step whose sequences get `shares` of its inputs. With prompts in the
    /// step there is none: prompt tokens use the step better.
    pub(crate) fn draft_budget(&self, shares: &[usize], times: Option<DraftTimes>) -> DraftBudget {
        let has_prompt = (self.running.iter().zip(shares)).any(|(&id, &share)| {
            let sequence = &self.sequences[id];
            share > 1 && sequence.n_planned + 1 < sequence.n_prompt
        });
        if has_prompt {
            return DraftBudget::NONE;
        }
        self.budget_of_rows(shares.iter().sum(), times)
    }

    /// Returns the budget for drafts in a future step of which only the running sequences are known.
    pub(crate) fn likely_budget(&self, times: Option<DraftTimes>) -> DraftBudget {
        self.budget_of_rows(self.running.len(), times)
    }

    fn budget_of_rows(&self, n_rows: usize, times: Option<DraftTimes>) -> DraftBudget {
        let n_left = self.config.max_step_tokens.saturating_sub(n_rows);
        match (self.config.speculation, times) {
            (Speculation::Off, _) | (Speculation::Auto { .. }, None) => DraftBudget::NONE,
            (Speculation::Auto { .. }, _) => DraftBudget::new(times, n_left, n_rows),
            _ => DraftBudget::new(None, n_left, n_rows),
        }
    }

    /// Plans the draft after the next `n_tokens` inputs of a sequence, and reserves room for it. Appends the
    /// tokens to `drafts` and returns their range.
    pub(crate) fn plan_draft(
        &mut self,
        id: SeqId,
        n_tokens: usize,
        n_logit_rows: usize,
        budget: &mut DraftBudget,
        drafts: &mut Vec<u32>,
    ) -> Range<u32> {
        let start = drafts.len();
        let nothing = start as u32..start as u32;
        let max_draft = self.config.speculation.max_draft().min(n_logit_rows);
        let looks_up = self.config.speculation.looks_up();
        let sequence = &mut self.sequences[id];
        let max_draft = max_draft_of(sequence, sequence.tokens.len(), max_draft);
        let is_decode = n_tokens == 1 && sequence.n_planned + 1 == sequence.tokens.len();
        if !is_decode || max_draft == 0 || budget.n_left == 0 {
            return nothing;
        }
        let n_costs = n_costs_of(sequence);
        let Some((len, gain)) = choose(sequence, max_draft, looks_up, budget) else {
            return nothing;
        };
        let fitting = len.min(self.grow_for_draft(id, len));
        if fitting == 0 || !self.has_spare(id) {
            return nothing;
        }
        budget.take(fitting, n_costs, gain * fitting as u64 / len as u64, 0);
        let Sequence { tokens, drafter, .. } = &self.sequences[id];
        let draft = drafter.as_ref().and_then(|drafter| drafter.draft(tokens.len()));
        drafts.extend_from_slice(&draft.expect("it was chosen").tokens[..fitting]);
        start as u32..drafts.len() as u32
    }

    /// Lists the sequences for which the draft model may make drafts, in rank order; none if there are
    /// prompts. A constrained sequence is listed only if its masks are `awaited` together with draft tokens.
    /// It gets at most `max_masked` draft tokens, as many as will have masks.
    pub(crate) fn draft_wants(
        &mut self,
        awaited: impl Fn(SeqId, &[u32]) -> bool,
        max_masked: usize,
        wants: &mut Vec<Want>,
    ) {
        wants.clear();
        let speculation = self.config.speculation;
        if self.has_prompts() || !speculation.asks_model() {
            return;
        }
        for &id in &self.running {
            let sequence = &mut self.sequences[id];
            let is_decode = match sequence.masking {
                Masking::Off => sequence.n_to_plan() == 1 && sequence.n_planned + 1 == sequence.tokens.len(),
                _ => sequence.only_misses_mask() && awaited(id, &sequence.tokens),
            };
            let n_tokens = sequence.tokens.len();
            let max_draft = max_draft_of(sequence, n_tokens, speculation.max_draft());
            let n_left = sequence.end_len().saturating_sub(n_tokens);
            let Some(drafter) = &mut sequence.drafter else {
                continue;
            };
            if !is_decode || max_draft == 0 || drafter.model_draft(n_tokens).is_some() {
                continue;
            }
            let acceptance = drafter.acceptance;
            // A look-up costs nothing.
            if speculation.looks_up()
                && let Some(found) = drafter.find(&sequence.tokens, max_draft)
                && acceptance.of(found.classes[0]) >= acceptance.of_model()
            {
                continue;
            }
            wants.push(Want {
                seq: id,
                max_draft,
                n_left,
                acceptance,
            });
        }
        wants.retain_mut(|want| {
            if self.sequences[want.seq].masking != Masking::Off {
                want.max_draft = want.max_draft.min(max_masked);
            }
            want.max_draft > 0
        });
    }

    /// Returns the acceptance rates that a new sequence begins with.
    pub(crate) fn acceptance(&self) -> &Acceptance {
        &self.acceptance
    }

    /// Sets whether steps output the hidden states of sequences that may have drafts.
    pub(crate) fn set_gives_hidden(&mut self, gives_hidden: bool) {
        self.gives_hidden = gives_hidden;
    }

    /// Returns the likely continuation of a constrained sequence, for which masks are worth computing:
    /// `expected` if its constraint has determined it, else the draft model's draft or a look-up's. Also
    /// returns the number of forced tokens to add.
    pub(crate) fn draft_to_mask(
        &mut self,
        id: SeqId,
        expected: Option<&[u32]>,
        max: usize,
        budget: &mut DraftBudget,
    ) -> (Draft, usize) {
        let speculation = self.config.speculation;
        let sequence = &mut self.sequences[id];
        let max = max_draft_of(sequence, sequence.tokens.len(), speculation.max_draft()).min(max);
        let n_costs = n_costs_of(sequence);
        let Sequence { tokens, drafter, .. } = sequence;
        let (mut draft, mut n_to_force) = (Draft::at(tokens.len()), 0);
        if let Some(drafter) = drafter.as_mut().filter(|_| max > 0 && budget.n_left > 0) {
            let of_forced = drafter.acceptance.of(Class::FORCED);
            let n_forced = budget.best_len(max, n_costs, |_| of_forced).0;
            let expected = expected.unwrap_or_default();
            for &id in expected {
                draft.push(id, Class::FORCED);
            }
            if expected.is_empty()
                && let Some(free) = drafter.draft_freely(tokens, speculation.looks_up(), max)
            {
                draft.clone_from(free);
            }
            let (len, gain) = drafter.best_len(&draft, max, n_costs, budget);
            budget.take(len, n_costs, gain, 0);
            draft.truncate(len);
            n_to_force = n_forced.saturating_sub(len);
        }
        draft.is_masked = true;
        (draft, n_to_force)
    }

    /// Records that a constraint refuses the draft token after the first tokens of `seen`. If the draft is
    /// already in a step, that step's result records it instead.
    pub(crate) fn note_refused(&mut self, seq: SeqId, seen: &Seen) {
        let shared = &mut self.acceptance;
        if let Some(sequence) = self.sequences.get_mut(seq)
            && sequence.n_pending == 0
            && let Some(drafter) = &mut sequence.drafter
        {
            drafter.note_refused(seen.at, seen.n_drafted, shared);
        }
    }

    /// Limits a sequence's draft to the first `n_masked` tokens of `seen`, which have masks.
    pub(crate) fn limit_masked(&mut self, seq: SeqId, seen: &Seen, n_masked: usize) {
        let Some(sequence) = self.sequences.get_mut(seq) else {
            return;
        };
        let mut draft = Draft::at(sequence.tokens.len());
        let Some(drafter) = &mut sequence.drafter else {
            return;
        };
        if let Some(ordered) = drafter.masked_draft(draft.at) {
            draft.classes.extend_from_slice(&ordered.classes);
        }
        // Tokens that the constraint announced count as forced, like those that it forces after a draft.
        draft.classes.truncate(seen.n_drafted);
        draft.tokens.extend(seen.tokens.iter().take(n_masked));
        draft.classes.resize(draft.tokens.len(), Class::FORCED);
        draft.is_masked = true;
        drafter.offer(draft);
    }

    /// Limits a sequence's draft to the first `n_masked` tokens.
    pub(crate) fn cut_masked(&mut self, seq: SeqId, n_masked: usize) {
        if let Some(drafter) = self.drafter_of(seq) {
            drafter.cut_masked(n_masked);
        }
    }

    /// Stores a draft for a sequence: the draft model's, or one whose masks are ordered.
    pub(crate) fn offer(&mut self, seq: SeqId, draft: Draft) {
        if let Some(drafter) = self.drafter_of(seq) {
            drafter.offer(draft);
        }
    }

    fn drafter_of(&mut self, seq: SeqId) -> Option<&mut Drafter> {
        self.sequences.get_mut(seq)?.drafter.as_mut()
    }

    /// Reserves a slot for the state after a draft, if the model has states. Returns whether the draft has
    /// everything it needs.
    fn has_spare(&mut self, id: SeqId) -> bool {
        let sequence = &mut self.sequences[id];
        if sequence.state.is_none() {
            return true;
        }
        sequence.spare = self.groups[0].pool.states.allocate();
        sequence.spare.is_some()
    }

    /// Extends a sequence's page tables for a draft after its next input, unless other running sequences may
    /// need the pages. Returns the number of draft tokens that fit.
    fn grow_for_draft(&mut self, id: SeqId, len: usize) -> usize {
        let n_inputs = self.n_mapped_inputs(id);
        let n_inputs = if n_inputs > len || !self.is_rich(len, 0) {
            n_inputs
        } else {
            self.grow(id, 1 + len)
        };
        n_inputs.saturating_sub(1)
    }

    /// Returns the number of draft tokens after a sequence's next input that are likely to fit, in pages and
    /// state slots, given the room in `taken` for other drafts of the step. Adds this one's room to `taken`.
    pub(crate) fn likely_place(&self, id: SeqId, len: usize, taken: &mut DraftPlaces) -> usize {
        let has_state = self.sequences[id].state.is_some();
        if has_state && self.groups[0].pool.states.n_available() <= taken.n_slots {
            return 0;
        }
        // Its next input gets a page in any case.
        let n_inputs = match self.n_mapped_inputs(id) {
            0 => PAGE_TOKENS,
            n_inputs => n_inputs,
        };
        let fitting = if n_inputs > len {
            len
        } else if self.is_rich(len, taken.n_pages) {
            taken.n_pages += (1 + len - n_inputs).div_ceil(PAGE_TOKENS);
            len
        } else {
            n_inputs - 1
        };
        taken.n_slots += usize::from(has_state && fitting > 0);
        fitting
    }

    /// Returns the number of inputs of a sequence that have pages and are not planned yet.
    fn n_mapped_inputs(&self, id: SeqId) -> usize {
        let sequence = &self.sequences[id];
        let n_mapped = (sequence.tables[..self.groups.len()].iter())
            .map(|pages| pages.len() * PAGE_TOKENS)
            .min()
            .unwrap_or(0);
        n_mapped - sequence.n_planned
    }

    /// Returns whether there are pages for a draft of `len` tokens that no other running sequence may need,
    /// besides `n_taken` promised ones.
    fn is_rich(&self, len: usize, n_taken: usize) -> bool {
        let n_needed = (1 + len).div_ceil(PAGE_TOKENS) + self.running.len() + n_taken;
        (self.groups.iter()).all(|group| group.pool.n_available() >= n_needed)
    }
}
