//! Drafting ahead of a step: the core asks the draft model for the next tokens.
//!
//! Part of [`Core`], for engines with a draft model. Invariant: a draft is for a sequence whose tokens are
//! all known; it is part of the next step or of none.

use crate::{
    arena::SeqId,
    draft::{
        budget::{DraftBudget, DraftTimes, MAX_STEP_DRAFTS},
        drafter::{DraftCounters, Speculation},
    },
    draft_model::{DraftModel, Seat, worth::WeighedStep},
    engine::{
        board::{Board, Tally},
        core::Core,
    },
    plan::{scheduler::drafts::Want, step_plan::StepPlan},
};

/// The draft model, if there is one.
#[derive(Default)]
pub(super) struct Drafts {
    model: Option<DraftModel>,
    /// The sequences that it is asked about; a buffer that steps reuse.
    wants: Vec<Want>,
}

impl Drafts {
    /// Makes the draft model drop a sequence that has ended.
    pub(super) fn forget(&mut self, seq: SeqId) {
        if let Some(model) = &mut self.model {
            model.forget(seq);
        }
    }

    /// Gives the draft model the hidden states after a sequence's inputs from `first` on.
    pub(super) fn take_hidden(&mut self, seq: SeqId, first: usize, states: &[f32]) {
        if let Some(model) = &mut self.model {
            model.take_hidden(seq, first, states);
        }
    }

    /// Writes the failures of the draft model into a tally.
    pub(super) fn count_failures(&self, tally: &mut Tally) {
        if let Some(model) = &self.model {
            tally.failed_draft_rows = model.failed_rows();
            tally.has_draft_failed = !model.works();
        }
    }

    /// Returns whether there is a draft model.
    pub(super) fn has_model(&self) -> bool {
        self.model.is_some()
    }

    /// Returns the draft model.
    #[cfg(test)]
    pub(super) fn model(&self) -> Option<&DraftModel> {
        self.model.as_ref()
    }

    /// Returns the draft model, to book gains and losses.
    #[cfg(test)]
    pub(super) fn model_mut(&mut self) -> Option<&mut DraftModel> {
        self.model.as_mut()
    }
}

/// Returns the times of steps of `n_decode` sequences with drafts, and that of one without, in microseconds;
/// `None` until they were measured.
fn measured_times(board: &Board, n_decode: usize) -> Option<(DraftTimes, u64)> {
    board.with_step_times(|times| Some((times.draft_times(n_decode)?, times.step_us(n_decode)?.max(1))))
}

impl Core {
    /// Sets the draft model, which is used from now on if the configuration asks for it.
    pub(crate) fn set_draft_model(&mut self, model: DraftModel) {
        self.tally.drafts_from_hidden = model.hidden_width().is_some();
        self.drafts.model = Some(model);
        self.choose_hidden();
    }

    /// Makes steps output hidden states if the draft model reads them.
    fn choose_hidden(&mut self) {
        let limits = &self.scheduler.config().limits;
        let gives_hidden = self.drafts.model.as_ref().is_some_and(|model| {
            // A pooled row belongs to no token.
            let has_its_width = model.hidden_width() == Some(limits.n_embd) && limits.pooling.is_none();
            has_its_width && model.keeps_hidden()
        });
        self.scheduler.set_gives_hidden(gives_hidden);
    }

    /// Tells the draft model that a sequence of `n_tokens` tokens is about to begin.
    pub(super) fn expect_drafts(&mut self, n_tokens: usize) {
        if let Some(model) = &mut self.drafts.model {
            model.expect(n_tokens);
            self.choose_hidden();
        }
    }

    /// Returns whether the draft model may make drafts before the next step, so that masks wait for them.
    pub(super) fn may_draft_ahead(&self) -> bool {
        let speculation = self.scheduler.config().speculation;
        let is_weighed = matches!(speculation, Speculation::Auto { .. });
        (self.drafts.model.as_ref()).is_some_and(|model| {
            let may_draft = model.works() && speculation.asks_model();
            may_draft && !(is_weighed && model.ledger().expects_none())
        })
    }

    /// Makes drafts for the sequences of the next step with the draft model. Returns whether it computed
    /// anything.
    pub(super) fn draft_ahead(&mut self, clock: &dyn Fn() -> u64) -> bool {
        let is_weighed = matches!(self.scheduler.config().speculation, Speculation::Auto { .. });
        let n_decode = self.scheduler.n_decoding() + self.n_unordered();
        let max_masked = self.max_ahead();
        let Some(model) = (self.drafts.model.as_mut()).filter(|model| model.works()) else {
            return false;
        };
        if is_weighed && model.ledger().rests(n_decode) {
            return false;
        }
        let begun_us = clock();
        let lanes = &self.lanes;
        let awaited = |seq: SeqId, known: &[u32]| {
            let lane = lanes.get(seq);
            lane.is_some_and(|lane| lane.unordered.is_some() && lane.expected_behind(known).is_none())
        };
        self.scheduler
            .draft_wants(awaited, max_masked, &mut self.drafts.wants);
        if self.drafts.wants.is_empty() {
            return false;
        }
        let step = if is_weighed {
            let Some((times, step_us)) = measured_times(&self.board, n_decode) else {
                return false;
            };
            Some(WeighedStep {
                budget: DraftBudget::new(Some(times), usize::MAX, n_decode),
                n_rows: n_decode,
                step_us,
                of_new: self.scheduler.acceptance().of_model(),
            })
        } else {
            None
        };
        let (scheduler, lanes) = (&self.scheduler, &self.lanes);
        let seats: Vec<Seat<'_>> = (self.drafts.wants.iter())
            .filter_map(|&want| {
                let lane = lanes.get(want.seq)?;
                let (uses_prefix_cache, salt) = scheduler.cache_domain(want.seq)?;
                Some(Seat {
                    want,
                    tokens: scheduler.tokens_of(want.seq)?,
                    n_generated: scheduler.n_generated(want.seq),
                    uses_prefix_cache,
                    salt,
                    sampling: lane.sampling.as_ref()?,
                })
            })
            .collect();
        let mut drafts = Vec::with_capacity(seats.len());
        let prompt_us = model.draft(&seats, step, clock, &mut |seq, draft| {
            drafts.push((seq, draft));
        });
        let n_vocab = scheduler.config().limits.n_vocab as u32;
        for (seq, mut draft) in drafts {
            // Tokens of the draft model beyond the vocabulary have no meaning here.
            draft.truncate(draft.tokens.iter().take_while(|&&id| id < n_vocab).count());
            self.scheduler.offer(seq, draft);
        }
        if let Some(step) = step {
            let took_us = clock().saturating_sub(begun_us);
            let ledger = model.ledger_mut();
            match prompt_us {
                Some(prompt_us) => {
                    ledger.note_passes(took_us.saturating_sub(prompt_us), prompt_us, step.step_us);
                }
                None => ledger.note_asking(took_us, step.step_us),
            }
        }
        self.choose_hidden();
        prompt_us.is_some()
    }

    /// Records a step's gain from the draft model; `before` are the draft counters when the step began.
    pub(crate) fn note_drafting(&mut self, plan: &StepPlan, took_us: u64, before: &DraftCounters) {
        let n_decode = plan.n_decode_rows();
        let Some(model) = self.drafts.model.as_mut().filter(|_| n_decode > 0) else {
            return;
        };
        // With prompts in the step, their time cannot be told from that of drafts.
        let has_prompts = plan.n_tokens() > n_decode + plan.drafts.len();
        let of_model = &self.scheduler.counters().model_drafts;
        let n_drafted = (of_model.draft_tokens - before.draft_tokens) as usize;
        let n_accepted = of_model.accepted_tokens - before.accepted_tokens;
        if n_drafted == 0 {
            if !has_prompts {
                model.ledger_mut().note_plain(took_us);
            }
            return;
        }
        if let Some((DraftTimes(times), step_us)) = measured_times(&self.board, n_decode) {
            let us_with = |n_drafts: usize| step_us * u64::from(times[n_drafts.min(MAX_STEP_DRAFTS)]) / 256;
            let took_us = if has_prompts {
                us_with(plan.drafts.len())
            } else {
                took_us
            };
            // Drafts from look-ups and constraints would be verified without the draft model too.
            let n_others = plan.drafts.len().saturating_sub(n_drafted);
            let plain_us = us_with(n_others) + step_us * n_accepted / n_decode as u64;
            model.ledger_mut().note_drafted(took_us, plain_us, step_us);
        }
    }
}
