//! Drafting ahead of a step: the core asks the drafting model what comes next.
//!
//! A part of [`Core`] that stands apart because engines without such a model know none of it. Invariant: a guess is for a sequence
//! whose tokens are all known; it is part of the next step or of none.

use crate::{
    arena::SeqId,
    core::Core,
    draft_model::{DraftModel, Seat},
    drafting::Speculation,
    model_guess::Weighing,
    outcome::Outcome,
    plan::StepPlan,
};

impl Core {
    /// Takes a drafting model, which guesses from now on where the engine asks one.
    pub(crate) fn set_draft_model(&mut self, model: DraftModel) {
        // A pooled row is no token's.
        let limits = &self.scheduler.config().limits;
        self.scheduler.gives_hidden = model.hidden_width() == Some(limits.n_embd) && limits.pooling.is_none();
        self.tally.drafts_from_hidden = model.hidden_width().is_some();
        self.draft_model = Some(model);
    }

    /// Lets the drafting model guess for the sequences of the next step. Returns whether it computed anything.
    pub(crate) fn draft_ahead(&mut self, clock: &dyn Fn() -> u64) -> bool {
        let is_weighed = matches!(self.scheduler.config().speculation, Speculation::Auto { .. });
        let may_ask = !is_weighed || self.draft_ledger.allows();
        let Some(model) = (self.draft_model.as_mut()).filter(|model| may_ask && model.works()) else {
            return false;
        };
        self.scheduler.draft_wants(&mut self.wants);
        if self.wants.is_empty() {
            return false;
        }
        let n_decode = self.scheduler.n_decoding();
        let weighing = if is_weighed {
            let times = (self.board)
                .with_step_times(|times| Some((times.draft_times(n_decode)?, times.step_us(n_decode)?)));
            let Some((times, step_us)) = times else {
                return false;
            };
            Some(Weighing::new(times, step_us, n_decode))
        } else {
            None
        };
        let (scheduler, lanes) = (&self.scheduler, &self.lanes);
        let seats: Vec<Seat<'_>> = (self.wants.iter())
            .filter_map(|&want| {
                let lane = lanes[want.seq.slot()].as_ref()?;
                let sequence = &scheduler.sequences[want.seq];
                Some(Seat {
                    want,
                    tokens: &sequence.tokens,
                    uses_prefix_cache: sequence.uses_prefix_cache,
                    salt: sequence.salt,
                    sampling: lane.sampling.as_ref()?,
                })
            })
            .collect();
        let mut guesses = Vec::with_capacity(seats.len());
        let has_computed = model.guess(&seats, weighing, clock, &mut |seq, guess| {
            guesses.push((seq, guess));
        });
        let n_vocab = scheduler.config().limits.n_vocab as u32;
        for (seq, mut guess) in guesses {
            // A wider output of the drafting model means nothing here.
            let n_known = guess.tokens.iter().take_while(|&&id| id < n_vocab).count();
            guess.tokens.truncate(n_known);
            guess.classes.truncate(n_known);
            self.scheduler.offer(seq, guess);
        }
        has_computed
    }

    /// Takes in what a step gained by the drafting model, which took `ahead_us` for it.
    pub(crate) fn note_drafting(&mut self, plan: &StepPlan, took_us: u64, ahead_us: u64) {
        let n_decode = plan.n_decode_rows();
        if n_decode == 0 || plan.n_tokens() > n_decode + plan.drafts.len() {
            return;
        }
        if ahead_us == 0 {
            if plan.drafts.is_empty() {
                self.draft_ledger.note_plain(took_us);
            }
            return;
        }
        let Some(step_us) = self.board.with_step_times(|times| times.step_us(n_decode)) else {
            return;
        };
        let n_tokens = (self.outcomes.iter())
            .filter(|outcome| matches!(outcome, Outcome::Token { .. }))
            .count() as u64;
        // A pass that computes a prompt is weighed against the answer that follows.
        if !plan.drafts.is_empty() {
            let plain_us = step_us * n_tokens / n_decode as u64;
            self.draft_ledger
                .note_drafted(took_us + ahead_us, plain_us, step_us);
        }
    }

    /// Lets the drafting model forget a sequence that has ended.
    pub(crate) fn forget_drafts_of(&mut self, seq: SeqId) {
        if let Some(model) = &mut self.draft_model {
            model.forget(seq);
        }
    }
}
