//! [`Totals`]: the counts of a simulation.
//!
//! It decides nothing: it shows whether the cases covered their subjects.

use super::{Caller, Core};

/// The counts of a simulation.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) cases: u64,
    pub(super) requests: u64,
    pub(super) samples: u64,
    pub(super) requests_of_several_samples: u64,
    pub(super) callers_that_cancel_or_leave: u64,
    pub(super) samples_finished: u64,
    pub(super) samples_failed: u64,
    pub(super) cases_with_a_lost_device: u64,
    pub(super) steps: u64,
    pub(super) failed_steps: u64,
    pub(super) generated_tokens: u64,
    pub(super) cached_prompt_tokens: u64,
    pub(super) preemptions: u64,
    pub(super) evictions: u64,
    pub(super) host_hits: u64,
    pub(super) copies_on_write: u64,
    pub(super) drafts: u64,
    pub(super) draft_tokens: u64,
    pub(super) accepted_tokens: u64,
    pub(super) draft_tokens_of_models: u64,
    pub(super) accepted_tokens_of_models: u64,
    /// The hidden states that a layer of the model itself read, and the unknown ones.
    pub(super) hidden_states: std::sync::Arc<[std::sync::atomic::AtomicUsize; 2]>,
    pub(super) context_shifts: u64,
    pub(super) times_page_events_were_behind: u64,
}

impl Totals {
    pub(super) fn add(&mut self, callers: &[Caller], core: &Core) {
        let (scheduler, pool) = (core.scheduler().counters(), core.scheduler().pool().counters());
        let count = |of: &dyn Fn(&Caller) -> bool| callers.iter().filter(|&caller| of(caller)).count() as u64;
        self.cases += 1;
        self.requests += callers.len() as u64;
        self.samples += callers
            .iter()
            .map(|caller| u64::from(caller.n_samples()))
            .sum::<u64>();
        self.requests_of_several_samples += count(&|caller| caller.n_samples() > 1);
        self.callers_that_cancel_or_leave +=
            count(&|caller| caller.cancels_after.is_some() || caller.leaves_after.is_some());
        self.samples_finished += core.tally().finished;
        self.samples_failed += core.tally().failed;
        self.cases_with_a_lost_device += u64::from(core.lost().is_some());
        self.steps += scheduler.steps;
        self.failed_steps += core.tally().failed_steps;
        self.generated_tokens += core.tally().generated_tokens;
        self.cached_prompt_tokens += scheduler.cached_tokens;
        self.preemptions += scheduler.preemptions;
        self.evictions += pool.evictions;
        self.host_hits += pool.host_hits;
        self.copies_on_write += pool.duplicates;
        self.drafts += scheduler.drafts.drafts;
        self.draft_tokens += scheduler.drafts.draft_tokens;
        self.accepted_tokens += scheduler.drafts.accepted_tokens;
        self.draft_tokens_of_models += scheduler.model_drafts.draft_tokens;
        self.accepted_tokens_of_models += scheduler.model_drafts.accepted_tokens;
        self.context_shifts += scheduler.context_shifts;
    }
}
