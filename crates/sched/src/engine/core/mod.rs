//! [`Core`]: the engine without its thread: scheduler, executor, and the event streams to callers.
//!
//! Each part of it is an owner whose fields only its own file sees: the lanes of the callers' sequences, the
//! steps in flight, masks, drafts, adapters, held prefixes and the page store. The files named like them have
//! their hooks in [`Core::step`]; `commands.rs` has the callers' commands, `step.rs` the way of one step.
//! Tests drive it step by step with their own clock. Invariant: results are committed in the order in which
//! steps were submitted.

mod adapters;
mod cause;
mod commands;
mod drafts;
mod flight;
mod forced_output;
#[cfg(test)]
mod inspection;
mod lane;
mod lanes;
mod masks;
mod pipeline;
mod prefill_progress;
mod prefixes;
mod publish;
mod step;
mod stopwatch;
mod store;

use tokenmill_backend::{Executor, ForwardBatch, StepError, StepOutput};

use crate::{
    engine::{
        board::{Board, Tally},
        core::{
            adapters::CoreAdapters, drafts::Drafts, flight::Flight, lanes::Lanes, masks::Masks,
            prefixes::Holds, store::StoreLink,
        },
    },
    pages::events::PageEventSender,
    params::EngineConfig,
    plan::{
        outcome::{Outcome, RowResult},
        scheduler::{Scheduler, SchedulerConfig},
    },
    queue::{gauge::QueueGauge, mailbox::Mailbox},
    sync::Arc,
};

pub(crate) struct Core {
    executor: Box<dyn Executor>,
    config: EngineConfig,
    scheduler: Scheduler,
    lanes: Lanes,
    flight: Flight,
    masks: Masks,
    drafts: Drafts,
    adapters: CoreAdapters,
    /// Prefixes being read or written.
    holds: Holds,
    /// The page store, if there is one.
    store: Option<Box<StoreLink>>,
    /// The failure after which the engine cannot continue.
    lost: Option<StepError>,

    // The published state.
    board: Arc<Board>,
    tally: Tally,
    queue: QueueGauge,
    /// The stream for changes of the prefix cache, if it has a reader.
    page_events: Option<PageEventSender>,

    // Buffers that steps reuse.
    batch: ForwardBatch,
    output: StepOutput,
    results: Vec<RowResult>,
    outcomes: Vec<Outcome>,
}

impl Core {
    pub(crate) fn new(
        executor: Box<dyn Executor>,
        config: EngineConfig,
        board: Arc<Board>,
        mailbox: Arc<Mailbox>,
    ) -> Self {
        let scheduler = Scheduler::new(SchedulerConfig {
            limits: executor.limits().clone(),
            max_running: config.max_running,
            max_step_tokens: config.max_step_tokens,
            model_salt: config.model_salt,
            speculation: config.speculation,
        });
        let core = Self {
            executor,
            scheduler,
            lanes: Lanes::default(),
            flight: Flight::default(),
            masks: Masks::new(),
            drafts: Drafts::default(),
            adapters: CoreAdapters::default(),
            holds: Holds::default(),
            store: None,
            lost: None,
            board,
            tally: Tally::default(),
            queue: QueueGauge::new(mailbox, config.max_queued),
            page_events: None,
            batch: ForwardBatch::default(),
            output: StepOutput::default(),
            results: Vec::new(),
            outcomes: Vec::new(),
            config,
        };
        core.board.publish(&core.scheduler, core.tally);
        core
    }

    /// Advances by one step: submits as many steps as may be in flight, then waits for the oldest. Returns
    /// whether there was a step, or anything else to do.
    pub(crate) fn step(&mut self, clock: &dyn Fn() -> u64) -> bool {
        self.expire(clock());
        self.end_late_fetches(clock());
        let has_uploaded = self.bring_adapters(clock);
        while self.has_room_for_step() && self.launch(clock) {}
        let has_retired = self.retire(clock);
        self.keep_idle_pages() || has_retired || has_uploaded
    }

    /// Returns whether another step may be submitted now.
    fn has_room_for_step(&mut self) -> bool {
        self.flight.len() < self.n_steps() && !self.waits_for_newest()
    }

    /// Returns the maximum number of steps in flight.
    fn n_steps(&self) -> usize {
        let wanted = self.config.steps_in_flight;
        wanted
            .unwrap_or_else(|| self.executor.steps_in_flight())
            .clamp(1, 2)
    }

    /// Returns whether there is nothing to do and nothing in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.scheduler.is_empty() && self.flight.is_empty() && self.holds.is_empty()
    }

    /// Returns the failure after which the engine cannot continue, if any.
    pub(crate) fn lost(&self) -> Option<&StepError> {
        self.lost.as_ref()
    }

    /// Returns the time at which a step next has a deadline to enforce.
    pub(crate) fn next_deadline_us(&self) -> Option<u64> {
        self.scheduler.next_deadline_us()
    }
}
