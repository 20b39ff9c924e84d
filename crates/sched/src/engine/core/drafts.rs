//! Drafting ahead of a step: the core asks the draft model for the next tokens.
//!
//! Part of [`Core`], for engines with a draft model. Invariant: a draft is for a sequence whose tokens are
//! all known; it is part of the next step or of none.

use crate::{
    arena::SeqId,
    draft::{
        drafter::{DraftCounters, Speculation},
        model_draft::Weighing,
        times::MAX_STEP_DRAFTS,
    },
    draft_model::{DraftModel, Seat, pass_times::Passes},
    engine::core::Core,
    plan::{sequence::Masking, step_plan::StepPlan},
};

impl Core {
    /// Sets the draft model, which is used from now on if the configuration asks for it.
    pub(crate) fn set_draft_model(&mut self, model: DraftModel) {
        self.tally.drafts_from_hidden = model.hidden_width().is_some();
        self.draft_model = Some(model);
        self.choose_hidden();
    }

    /// Makes steps output hidden states if the draft model reads them.
    fn choose_hidden(&mut self) {
        let limits = &self.scheduler.config().limits;
        self.scheduler.gives_hidden = self.draft_model.as_ref().is_some_and(|model| {
            // A pooled row belongs to no token.
            let has_its_width = model.hidden_width() == Some(limits.n_embd) && limits.pooling.is_none();
            has_its_width && model.keeps_hidden()
        });
    }

    /// Tells the draft model that a sequence of `n_tokens` tokens is about to begin.
    pub(crate) fn expect_drafts(&mut self, n_tokens: usize) {
        if let Some(model) = &mut self.draft_model {
            model.expect(n_tokens);
            self.choose_hidden();
        }
    }

    /// Returns whether the draft model may make drafts before the next step, so that masks wait for them.
    pub(crate) fn may_draft_ahead(&self) -> bool {
        let speculation = self.scheduler.config().speculation;
        let is_weighed = matches!(speculation, Speculation::Auto { .. });
        (self.draft_model.as_ref()).is_some_and(|model| {
            let may_guess = model.works() && speculation.asks_model();
            may_guess && !(is_weighed && (!self.draft_ledger.allows() || model.is_resting()))
        })
    }

    /// Makes drafts for the sequences of the next step with the draft model. Returns whether it computed
    /// anything.
    pub(crate) fn draft_ahead(&mut self, clock: &dyn Fn() -> u64) -> bool {
        let is_weighed = matches!(self.scheduler.config().speculation, Speculation::Auto { .. });
        let n_decode = self.scheduler.n_decoding() + self.n_unordered();
        let max_masked = self.max_ahead();
        let Some(model) = (self.draft_model.as_mut()).filter(|model| model.works()) else {
            return false;
        };
        if is_weighed && (!self.draft_ledger.allows() || model.rests(n_decode)) {
            return false;
        }
        let begun_us = clock();
        let lanes = &self.lanes;
        let awaited = |seq: SeqId, known: &[u32]| {
            let lane = lanes[seq.slot()].as_ref();
            lane.is_some_and(|lane| lane.unordered.is_some() && lane.expected_behind(known).is_none())
        };
        self.scheduler.draft_wants(awaited, &mut self.wants);
        // Drafts of a constrained sequence are at most as long as the masks that it will get.
        let sequences = &self.scheduler.sequences;
        self.wants.retain_mut(|want| {
            if sequences[want.seq].masking != Masking::Off {
                want.max_draft = want.max_draft.min(max_masked);
            }
            want.max_draft > 0
        });
        if self.wants.is_empty() {
            return false;
        }
        let weighing = if is_weighed {
            let times = (self.board)
                .with_step_times(|times| Some((times.draft_times(n_decode)?, times.step_us(n_decode)?)));
            let Some((times, step_us)) = times else {
                return false;
            };
            let of_new = &self.scheduler.model_acceptance;
            Some(Weighing::new(times, step_us, n_decode, of_new))
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
                    n_generated: sequence.n_generated(),
                    uses_prefix_cache: sequence.uses_prefix_cache,
                    salt: sequence.salt,
                    sampling: lane.sampling.as_ref()?,
                })
            })
            .collect();
        let mut guesses = Vec::with_capacity(seats.len());
        let passes = model.guess(&seats, weighing, clock, &mut |seq, guess| {
            guesses.push((seq, guess));
        });
        let n_vocab = scheduler.config().limits.n_vocab as u32;
        for (seq, mut guess) in guesses {
            // Tokens of the draft model beyond the vocabulary have no meaning here.
            let n_known = guess.tokens.iter().take_while(|&&id| id < n_vocab).count();
            guess.tokens.truncate(n_known);
            guess.classes.truncate(n_known);
            self.scheduler.offer(seq, guess);
        }
        if let Some(weighing) = weighing {
            let took_us = clock().saturating_sub(begun_us);
            let (ledger, step_us) = (&mut self.draft_ledger, weighing.step_us);
            match passes {
                Some(Passes { prompt_us }) => {
                    ledger.note_passes(took_us.saturating_sub(prompt_us), prompt_us, step_us);
                }
                None => ledger.note_asking(took_us, step_us),
            }
        }
        self.choose_hidden();
        passes.is_some()
    }

    /// Records a step's gain from the draft model; `before` are the draft counters when the step began.
    pub(crate) fn note_drafting(&mut self, plan: &StepPlan, took_us: u64, before: &DraftCounters) {
        let n_decode = plan.n_decode_rows();
        if n_decode == 0 {
            return;
        }
        // With prompts in the step, their time cannot be told from that of drafts.
        let has_prompts = plan.n_tokens() > n_decode + plan.drafts.len();
        let of_model = &self.scheduler.counters().model_drafts;
        let n_drafted = (of_model.draft_tokens - before.draft_tokens) as usize;
        let n_accepted = of_model.accepted_tokens - before.accepted_tokens;
        if n_drafted == 0 {
            if !has_prompts {
                self.draft_ledger.note_plain(took_us);
            }
            return;
        }
        // Drafts from look-ups and constraints would be verified without the draft model too.
        let n_others = plan.drafts.len().saturating_sub(n_drafted).min(MAX_STEP_DRAFTS);
        let measured = self.board.with_step_times(|times| {
            let step_us = times.step_us(n_decode)?;
            let part = match n_others {
                0 => 256,
                _ => u64::from(times.draft_times(n_decode)?.0[n_others]),
            };
            let took_us = if has_prompts {
                let n_drafts = plan.drafts.len().min(MAX_STEP_DRAFTS);
                step_us * u64::from(times.draft_times(n_decode)?.0[n_drafts]) / 256
            } else {
                took_us
            };
            Some((step_us, step_us * part / 256, took_us))
        });
        if let Some((step_us, without_us, took_us)) = measured {
            let plain_us = without_us + step_us * n_accepted / n_decode as u64;
            self.draft_ledger.note_drafted(took_us, plain_us, step_us);
        }
    }

    /// Makes the draft model drop a sequence that has ended.
    pub(crate) fn forget_drafts_of(&mut self, seq: SeqId) {
        if let Some(model) = &mut self.draft_model {
            model.forget(seq);
        }
    }
}
