//! Planning of drafts: which guesses a step computes, and where their keys, values and states go.
//!
//! A part of [`Scheduler`] that stands apart because steps without drafts know none of it. Invariants: a draft takes no page and no slot that
//! another running sequence needs in the same step; nothing that a wrong guess wrote is read.

use std::ops::Range;

use tokenmill_backend::PAGE_TOKENS;

use crate::{
    arena::SeqId,
    draft_room::DraftRoom,
    draft_times::DraftTimes,
    drafting::{Drafter, MaskedGuess, Origin, Speculation},
    look_up::Found,
    masked_text::Seen,
    model_guess::{ModelAcceptance, ModelGuess},
    scheduler::Scheduler,
    sequence::{Masking, Sequence, Work},
};

/// A draft that is worth having, not yet written.
#[derive(Clone, Copy, Debug)]
struct Choice {
    source: Source,
    len: usize,
    gain: u64,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    /// What was said before.
    Found(Found),
    /// What the drafting model expects.
    Model,
    /// What there are masks for.
    Masked,
}

/// What likely drafts of a step take, so that further ones are not promised the same.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DraftPlaces {
    n_pages: usize,
    n_slots: usize,
}

/// A sequence whose next tokens a drafting model may guess.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub(crate) seq: SeqId,
    /// Tokens that a draft may have.
    pub(crate) max_draft: usize,
    /// Tokens that it may still generate.
    pub(crate) n_left: usize,
    /// How its guesses fared so far.
    pub(crate) acceptance: ModelAcceptance,
}

/// Tokens that a draft behind the first `n_tokens` of the sequence, which are all that it will have then, may have.
pub(crate) fn max_draft_of(sequence: &Sequence, n_tokens: usize, max_draft: usize) -> usize {
    let n_left = match sequence.work {
        // One token is sampled behind the last of the draft.
        Work::Generate { .. } => sequence.end_len().saturating_sub(n_tokens + 1),
        Work::Logits { .. } | Work::Hidden { .. } => 0,
    };
    let until_snapshot = match sequence.state {
        // A page ends with a snapshot, which a row has one of.
        Some(_) => n_tokens.next_multiple_of(PAGE_TOKENS) - n_tokens,
        None => usize::MAX,
    };
    max_draft.min(n_left).min(until_snapshot)
}

/// Chooses the draft of a sequence, of `max` tokens at most.
fn choose(sequence: &mut Sequence, max: usize, looks_up: bool, room: &DraftRoom) -> Option<Choice> {
    let drafter = sequence.drafter.as_mut()?;
    // Behind a wrong guess a recurrent state is computed again.
    let n_costs = if sequence.state.is_some() { 2 } else { 1 };
    let tokens = &sequence.tokens;
    let (source, (len, gain)) = if sequence.masking != Masking::Off {
        let guess = drafter.masked_guess(tokens.len())?;
        let likelihood = |offset| drafter.likelihood(guess, offset);
        (
            Source::Masked,
            room.best_len(max.min(guess.tokens.len()), n_costs, likelihood),
        )
    } else if let Some(guess) = drafter.model_guess(tokens.len()) {
        let (max, acceptance) = (max.min(guess.tokens.len()), &drafter.model_acceptance);
        let likelihood = |offset: usize| acceptance.of(guess.classes[offset]);
        (Source::Model, room.best_len(max, n_costs, likelihood))
    } else {
        let found = looks_up.then(|| drafter.find(tokens)).flatten()?;
        let acceptance = drafter.acceptance;
        let max = max.min(drafter.look_up().n_following(found));
        let likelihood = |offset| acceptance.of(found, offset);
        (Source::Found(found), room.best_len(max, n_costs, likelihood))
    };
    (len > 0).then_some(Choice { source, len, gain })
}

/// Guesses what follows the tokens of a constrained sequence, `max` of them at most, as if it were not.
fn guess_freely(drafter: &mut Drafter, tokens: &[u32], looks_up: bool, max: usize, guess: &mut MaskedGuess) {
    if let Some(of_model) = drafter.take_model_guess(tokens.len()) {
        guess.tokens = of_model.tokens;
        guess.origin = Origin::Model(of_model.classes);
    } else if let Some(found) = looks_up.then(|| drafter.find(tokens)).flatten() {
        let look_up = drafter.look_up();
        for offset in 0..max.min(look_up.n_following(found)) {
            let next = look_up.followed_by(tokens, found, offset, &guess.tokens);
            guess.tokens.push(next);
        }
        guess.origin = Origin::LookUp(found);
    }
    guess.n_guessed = guess.tokens.len();
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
            (Speculation::Ngram { .. } | Speculation::Draft { .. } | Speculation::Mtp { .. }, _) => {
                DraftRoom::new(None, n_left, n_rows)
            }
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
        let looks_up = self.config.speculation.looks_up();
        let sequence = &mut self.sequences[id];
        let max_draft = max_draft_of(sequence, sequence.tokens.len(), max_draft);
        let is_decode = n_tokens == 1 && sequence.n_planned + 1 == sequence.tokens.len();
        if !is_decode || max_draft == 0 || room.n_left == 0 {
            return nothing;
        }
        let Some(Choice { source, len, gain }) = choose(sequence, max_draft, looks_up, room) else {
            return nothing;
        };
        let fitting = len.min(self.grow_for_draft(id, len));
        if fitting == 0 || !self.has_spare(id) {
            return nothing;
        }
        room.take(fitting, gain * fitting as u64 / len as u64);
        let Sequence { tokens, drafter, .. } = &self.sequences[id];
        match source {
            Source::Found(found) => {
                let look_up = drafter.as_ref().expect("it was chosen").look_up();
                for offset in 0..fitting {
                    let id = look_up.followed_by(tokens, found, offset, &drafts[start..]);
                    drafts.push(id);
                }
            }
            Source::Model => {
                let guess = drafter
                    .as_ref()
                    .and_then(|drafter| drafter.model_guess(tokens.len()));
                drafts.extend_from_slice(&guess.expect("it was chosen").tokens[..fitting]);
            }
            Source::Masked => {
                let guess = drafter
                    .as_ref()
                    .and_then(|drafter| drafter.masked_guess(tokens.len()));
                drafts.extend_from_slice(&guess.expect("it was chosen").tokens[..fitting]);
            }
        }
        start as u32..drafts.len() as u32
    }

    /// Lists the sequences whose next tokens a drafting model may guess, in the order of rank. Next to prompts there are none. Of those that
    /// are constrained they are the ones whose masks are `awaited` with guesses.
    pub(crate) fn draft_wants(&mut self, awaited: impl Fn(SeqId, &[u32]) -> bool, wants: &mut Vec<Want>) {
        wants.clear();
        let speculation = self.config.speculation;
        let has_prompt = self.running.iter().any(|&id| self.sequences[id].n_to_plan() > 1);
        if has_prompt || !speculation.asks_model() {
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
            if !is_decode || max_draft == 0 || drafter.model_guess(n_tokens).is_some() {
                continue;
            }
            // A look-up costs nothing.
            let found = speculation
                .looks_up()
                .then(|| drafter.find(&sequence.tokens))
                .flatten();
            let acceptance = drafter.model_acceptance;
            if found.is_some_and(|found| drafter.acceptance.of(found, 0) >= acceptance.of_any()) {
                continue;
            }
            wants.push(Want {
                seq: id,
                max_draft,
                n_left,
                acceptance,
            });
        }
    }

    /// Room for the drafts of a step of which nothing is known but that it has a row for each running sequence.
    pub(crate) fn likely_room(&self, times: Option<DraftTimes>) -> DraftRoom {
        let n_rows = self.running.len();
        let n_left = self.config.max_step_tokens.saturating_sub(n_rows);
        match (self.config.speculation, times) {
            (Speculation::Off, _) | (Speculation::Auto { .. }, None) => DraftRoom::NONE,
            (Speculation::Auto { .. }, _) => DraftRoom::new(times, n_left, n_rows),
            _ => DraftRoom::new(None, n_left, n_rows),
        }
    }

    /// What a constrained sequence is likely to continue with, of which masks are worth having: `expected` behind its tokens, where its
    /// constraint has said so, else what a drafting model or a look-up says. And how many tokens that the constraint forces are.
    pub(crate) fn guess_to_mask(
        &mut self,
        id: SeqId,
        expected: Option<&[u32]>,
        max: usize,
        room: &mut DraftRoom,
    ) -> (MaskedGuess, usize) {
        let speculation = self.config.speculation;
        let sequence = &mut self.sequences[id];
        let max = max_draft_of(sequence, sequence.tokens.len(), speculation.max_draft()).min(max);
        let n_costs = if sequence.state.is_some() { 2 } else { 1 };
        let Sequence { tokens, drafter, .. } = sequence;
        let mut guess = MaskedGuess {
            at: tokens.len(),
            ..MaskedGuess::default()
        };
        let Some(drafter) = drafter.as_mut().filter(|_| max > 0 && room.n_left > 0) else {
            return (guess, 0);
        };
        let of_forced = drafter.acceptance.of_forced();
        let n_forced = room.best_len(max, n_costs, |_| of_forced).0;
        match expected.filter(|expected| !expected.is_empty()) {
            Some(expected) => guess.tokens.extend_from_slice(expected),
            None => guess_freely(drafter, tokens, speculation.looks_up(), max, &mut guess),
        }
        let (len, gain) = room.best_len(max.min(guess.tokens.len()), n_costs, |offset| {
            drafter.likelihood(&guess, offset)
        });
        room.take(len, gain);
        guess.tokens.truncate(len);
        guess.n_guessed = guess.n_guessed.min(len);
        (guess, n_forced.saturating_sub(len))
    }

    /// Takes in that a constraint refuses what was guessed behind the first tokens of `seen`. Where the guess is part of a step already, its
    /// result says so.
    pub(crate) fn note_refused(&mut self, seq: SeqId, seen: &Seen) {
        let shared = &mut self.model_acceptance;
        if let Some(sequence) = self.sequences.get_mut(seq)
            && sequence.n_pending == 0
            && let Some(drafter) = &mut sequence.drafter
        {
            drafter.note_refused(seen.at, seen.n_guessed, shared);
        }
    }

    /// Leaves of what was guessed for a sequence the first `n_masked` tokens of `seen`, which have masks.
    pub(crate) fn limit_masked(&mut self, seq: SeqId, seen: &Seen, n_masked: usize) {
        let Some(sequence) = self.sequences.get_mut(seq) else {
            return;
        };
        let at = sequence.tokens.len();
        let Some(drafter) = &mut sequence.drafter else {
            return;
        };
        // What a constraint had said to come it forces, as what it forces behind a guess.
        let origin = drafter.masked_guess(at).map(|guess| guess.origin.clone());
        let origin = origin.unwrap_or_default();
        drafter.offer_masked(MaskedGuess {
            at,
            tokens: seen.tokens[..n_masked.min(seen.tokens.len())].to_vec(),
            n_guessed: if origin == Origin::Constraint {
                0
            } else {
                seen.n_guessed
            },
            origin,
        });
    }

    /// Leaves of what was guessed for a sequence the first `n_masked` tokens.
    pub(crate) fn cut_masked(&mut self, seq: SeqId, n_masked: usize) {
        let drafter = (self.sequences.get_mut(seq)).and_then(|sequence| sequence.drafter.as_mut());
        if let Some(drafter) = drafter {
            drafter.cut_masked(n_masked);
        }
    }

    /// Takes what there are masks for.
    pub(crate) fn offer_masked(&mut self, seq: SeqId, guess: MaskedGuess) {
        let drafter = (self.sequences.get_mut(seq)).and_then(|sequence| sequence.drafter.as_mut());
        if let Some(drafter) = drafter {
            drafter.offer_masked(guess);
        }
    }

    /// Takes what a drafting model expects of a sequence.
    pub(crate) fn offer(&mut self, seq: SeqId, guess: ModelGuess) {
        let drafter = (self.sequences.get_mut(seq)).and_then(|sequence| sequence.drafter.as_mut());
        if let Some(drafter) = drafter {
            drafter.offer(guess);
        }
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
        let n_inputs = self.n_mapped_inputs(id);
        let n_inputs = if n_inputs > len || !self.is_rich(len, 0) {
            n_inputs
        } else {
            self.grow(id, 1 + len)
        };
        n_inputs.saturating_sub(1)
    }

    /// For how many tokens of a draft behind a sequence's next input there is likely to be room, in pages and in slots for states, once the
    /// other drafts of the step have taken `taken`. Adds what this one takes.
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

    /// Inputs of a sequence that are not planned yet and have pages.
    fn n_mapped_inputs(&self, id: SeqId) -> usize {
        let sequence = &self.sequences[id];
        let n_mapped = (sequence.tables[..self.groups.len()].iter())
            .map(|pages| pages.len() * PAGE_TOKENS)
            .min()
            .unwrap_or(0);
        n_mapped - sequence.n_planned
    }

    /// Whether there are pages for a draft of `len` tokens that no other running sequence may need, where `n_taken` are promised.
    fn is_rich(&self, len: usize, n_taken: usize) -> bool {
        let n_needed = (1 + len).div_ceil(PAGE_TOKENS) + self.running.len() + n_taken;
        (self.groups.iter()).all(|group| group.pool.n_available() >= n_needed)
    }
}
