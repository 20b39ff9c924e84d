//! The gain of a draft model, in times of the test's own: it is used if it pays, and costs next to nothing if
//! it does not.
//!
//! The tests drive [`Core`] with executors that advance a clock, so that times are exact.

use tokenmill_backend::{Executor, ExecutorLimits};
use tokenmill_testkit::fake_executor::{FakeExecutor, Faults, HiddenReader, limits, prompt};

use crate::{
    arena::Arena,
    draft::drafter::Speculation,
    draft_model::DraftModel,
    engine::{board::Board, core::Core, generation::Generation},
    masks::constraint::{ConstraintFailure, ConstraintSource, TokenConstraint},
    params::{EngineConfig, GenerateParams},
    plan::step_plan::{PlannedOutput, PlannedRow, StepPlan},
    queue::{
        mailbox::{Admission, Mailbox, QueueLimits},
        submission::{Job, Submission},
    },
    sync::{Arc, AtomicU64, Ordering, channel::channel},
};

const N_VOCAB: usize = 4096;
const N_PROMPT: usize = 50;
const N_GENERATED: usize = 600;

/// Runs `n_seqs` answers and returns the engine's time in microseconds and the accepted tokens of model
/// drafts. A step takes 1000 and 40 more for each row after the first; a pass of the draft model takes
/// `pass_us`, and 8 more.
fn run(n_seqs: usize, speculation: Speculation, draft: Option<(ExecutorLimits, u64)>) -> (u64, u64) {
    let (took_us, core) = run_with(n_seqs, speculation, draft, Faults::default());
    (took_us, core.scheduler().counters().model_drafts.accepted_tokens)
}

/// Does the same as [`run`] with faults of the draft model; returns the engine in its final state.
fn run_with(
    n_seqs: usize,
    speculation: Speculation,
    draft: Option<(ExecutorLimits, u64)>,
    draft_faults: Faults,
) -> (u64, Core) {
    let mut timed = Timed::start(speculation, draft, draft_faults);
    let mut generations: Vec<Generation> = (0..n_seqs)
        .map(|seq_idx| timed.submit(seq_idx as u64, N_GENERATED, None))
        .collect();
    while !timed.core.is_empty() {
        timed.step();
        for generation in &mut generations {
            while generation.try_next().is_some() {}
        }
    }
    (timed.clock.load(Ordering::Relaxed), timed.core)
}

/// An engine, and the clock that its executors advance.
pub(crate) struct Timed {
    pub(crate) core: Core,
    clock: Arc<AtomicU64>,
    /// The extra time of a pass that follows a step of the model, as if threads had slept in between, in
    /// microseconds.
    wake_us: Arc<AtomicU64>,
    /// The number of hidden states that the model returned.
    n_hidden: Arc<AtomicU64>,
    mailbox: Arc<Mailbox>,
}

impl Timed {
    fn start(speculation: Speculation, draft: Option<(ExecutorLimits, u64)>, draft_faults: Faults) -> Self {
        Self::start_with(speculation, draft, draft_faults, HiddenReader::Nothing)
    }

    /// Does the same as [`Self::start`], with a draft model that reads hidden states.
    fn start_with(
        speculation: Speculation,
        draft: Option<(ExecutorLimits, u64)>,
        draft_faults: Faults,
        hidden: HiddenReader,
    ) -> Self {
        let [clock, wake_us, n_hidden, n_awake] = std::array::from_fn(|_| Arc::new(AtomicU64::new(0)));
        let executor = |limits: ExecutorLimits, faults: Faults, [step_us, row_us]: [u64; 2], drafts: bool| {
            let [clock, wake_us, n_hidden, n_awake] = [&clock, &wake_us, &n_hidden, &n_awake].map(Arc::clone);
            let mut executor = FakeExecutor::with_faults(limits, faults);
            executor.on_step = Box::new(move |batch| {
                let is_awake = n_awake.swap(u64::from(drafts), Ordering::Relaxed) == 1;
                let waking_us = if drafts && !is_awake {
                    wake_us.load(Ordering::Relaxed)
                } else {
                    0
                };
                let us = waking_us + step_us + row_us * (batch.n_tokens() as u64 - 1);
                clock.fetch_add(us, Ordering::Relaxed);
                if !drafts {
                    n_hidden.fetch_add(batch.hidden_rows.len() as u64, Ordering::Relaxed);
                }
            });
            executor
        };
        let of_model = ExecutorLimits {
            n_vocab: N_VOCAB,
            max_logit_rows: 80,
            ..limits(400)
        };
        let config = EngineConfig {
            speculation,
            ..EngineConfig::default()
        };
        let of_model = executor(of_model, Faults::default(), [1000, 40], false);
        let mut timed = Self {
            wake_us: Arc::clone(&wake_us),
            n_hidden: Arc::clone(&n_hidden),
            ..Self::of(Box::new(of_model), config, Arc::clone(&clock))
        };
        if let Some((limits, pass_us)) = draft {
            let mut executor = executor(limits, draft_faults, [pass_us, 8], true);
            executor.hidden = hidden;
            timed.core.set_draft_model(DraftModel::new(Box::new(executor), 0));
        }
        timed
    }

    /// An engine whose executor advances this clock.
    pub(crate) fn of(executor: Box<dyn Executor>, config: EngineConfig, clock: Arc<AtomicU64>) -> Self {
        let mailbox = Mailbox::new(QueueLimits {
            max_queued: usize::MAX,
            max_queued_tokens: usize::MAX,
        });
        let board = Arc::new(Board::default());
        Self {
            core: Core::new(executor, config, board, Arc::clone(&mailbox)),
            clock,
            wake_us: Arc::new(AtomicU64::new(0)),
            n_hidden: Arc::new(AtomicU64::new(0)),
            mailbox,
        }
    }

    pub(crate) fn clock(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.clock)
    }

    pub(crate) fn now_us(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Gives an answer; returns how many of the model's drafts' tokens were accepted in it.
    fn answer(&mut self, own: u64, n_generated: usize) -> u64 {
        let before = self.core.scheduler().counters().model_drafts.accepted_tokens;
        let mut generation = self.submit(own, n_generated, None);
        while !self.core.is_empty() {
            self.step();
            while generation.try_next().is_some() {}
        }
        self.core.scheduler().counters().model_drafts.accepted_tokens - before
    }

    pub(crate) fn submit(
        &mut self,
        own: u64,
        n_generated: usize,
        constraint: Option<ConstraintSource>,
    ) -> Generation {
        let (events, receiver) = channel(n_generated + 1);
        let tokens = prompt(1, own, 0, N_PROMPT);
        let params = GenerateParams {
            constraint,
            ..GenerateParams::default()
        };
        let job = Job::Generate {
            params,
            max_len: N_PROMPT + n_generated,
            context_shift: None,
        };
        let request = self
            .mailbox
            .submit(1, N_PROMPT, None, Admission::Bounded, |request| Submission {
                request,
                tokens,
                sampling_key: job.sampling_key(),
                job,
                events,
                submitted_us: 0,
            });
        let mut commands = Vec::new();
        self.mailbox.take(&mut commands);
        for command in commands {
            self.core.obey(command, 0);
        }
        Generation::new(request.unwrap(), 1, receiver, Arc::clone(&self.mailbox))
    }

    pub(crate) fn step(&mut self) {
        self.core.step(&|| self.clock.load(Ordering::Relaxed));
    }

    /// A step for which all masks are there, however long they take by other clocks.
    pub(crate) fn step_with_masks(&mut self) {
        while self.core.mask_workers().n_results() < self.core.mask_workers().n_open() {
            std::thread::yield_now();
        }
        self.step();
    }
}

/// A drafting model that knows what the model says, or, with a window, knows little of it.
fn draft(window: Option<usize>) -> ExecutorLimits {
    ExecutorLimits {
        n_vocab: N_VOCAB,
        kv_window: window,
        ..limits(400)
    }
}

const AUTO: Speculation = Speculation::Auto { max_draft: 16 };

#[test]
fn a_draft_that_is_right_and_fast_is_used() {
    for (n_seqs, at_least) in [(1, 250), (2, 180)] {
        let (plain, _) = run(n_seqs, AUTO, None);
        let (drafted, n_accepted) = run(n_seqs, AUTO, Some((draft(None), 100)));
        let percent = plain * 100 / drafted;
        assert!(percent >= at_least, "{n_seqs} sequences: {percent} %");
        assert!(n_accepted > 300 * n_seqs as u64, "{n_accepted}");
    }
}

#[test]
fn a_draft_that_does_not_pay_costs_next_to_nothing() {
    for n_seqs in [1, 4] {
        let (plain, _) = run(n_seqs, AUTO, None);
        let of_other_tokens = ExecutorLimits {
            n_vocab: 1 << 20,
            ..draft(None)
        };
        for (name, limits, pass_us) in [
            ("it is as slow as the model", draft(None), 1000),
            ("it is wrong", draft(Some(3)), 100),
            ("it is wrong and slow", draft(Some(3)), 1500),
            ("most that it says is no token of the model", of_other_tokens, 100),
        ] {
            let (drafted, _) = run(n_seqs, AUTO, Some((limits, pass_us)));
            let permille = drafted * 1000 / plain;
            eprintln!("{n_seqs} sequences, {name}: {permille}");
            assert!(permille <= 1030, "{n_seqs} sequences, {name}: {permille} of 1000");
        }
    }
}

#[test]
fn passes_that_take_longer_than_two_steps_count_as_long_as_they_take() {
    let speculation = Speculation::Auto { max_draft: 3 };
    let mut timed = Timed::start(speculation, Some((draft(None), 10)), Faults::default());
    let mut generation = timed.submit(0, 3600, None);
    let mut n_tokens = 0;
    let mut run_to = |timed: &mut Timed, end: usize| {
        while n_tokens < end {
            timed.step();
            while generation.try_next().is_some() {
                n_tokens += 1;
            }
        }
    };
    run_to(&mut timed, 600);
    assert!(timed.core.draft_ledger().allows());
    assert!(
        timed.now_us() < 400_000,
        "drafts of three tokens, which are right: {} us",
        timed.now_us()
    );
    // The averages of passes do not show this case: the first pass of each draft takes long, the two others
    // do not.
    timed.wake_us.store(6000, Ordering::Relaxed);
    let begun_us = timed.now_us();
    run_to(&mut timed, 3600);
    let permille = (timed.now_us() - begun_us) / 3000;
    eprintln!("{permille} of 1000");
    assert!(permille <= 1040, "{permille} of 1000");
}

#[test]
fn gains_count_beside_prompts_too() {
    let mut timed = Timed::start(AUTO, Some((draft(None), 100)), Faults::default());
    timed.answer(0, 300);
    let core = &mut timed.core;
    while core.draft_ledger().allows() {
        core.draft_ledger().note_passes(1_000_000, 0, 1000);
    }
    let seq = Arena::new().insert(());
    let row = |n_tokens, draft| PlannedRow {
        seq,
        stay: 1,
        first_position: 50,
        n_tokens,
        pending_row: None,
        draft,
        output: PlannedOutput::Sample,
        first_logit_row: 0,
        gives_hidden: false,
        state: None,
    };
    // A draft of four tokens, all of which are right, next to 30 tokens of another sequence's prompt, which make the step long.
    let plan = StepPlan {
        rows: vec![row(5, 0..4), row(30, 4..4)],
        drafts: vec![1; 4],
        ..StepPlan::default()
    };
    let mut before = core.scheduler().counters().model_drafts;
    before.draft_tokens -= 4;
    before.accepted_tokens -= 4;
    let mut n_steps = 0;
    while !core.draft_ledger().allows() && n_steps < 1_000_000 {
        core.note_drafting(&plan, 50_000, &before);
        n_steps += 1;
    }
    assert!(core.draft_ledger().allows(), "{n_steps} steps that gained");
    // The same prompt next to a draft that was wrong is not a gain.
    before.accepted_tokens += 4;
    for _ in 0..100 {
        core.note_drafting(&plan, 50_000, &before);
    }
    assert!(!core.draft_ledger().allows());
}

#[test]
fn hidden_states_are_kept_only_where_drafts_may_be_made_of_them() {
    // One token at a time, so that each pass follows a step.
    let layer = |window| {
        let (draft, speculation) = (Some((draft(window), 100)), Speculation::Auto { max_draft: 1 });
        Timed::start_with(speculation, draft, Faults::default(), HiddenReader::Any)
    };
    let mut right = layer(None);
    let mut wrong = layer(Some(3));
    for own in 0..40 {
        right.answer(own, 250);
        wrong.answer(own, 250);
    }
    let before = wrong.n_hidden.swap(0, Ordering::Relaxed);
    assert!(before > 2000, "{before} states, as long as there is hope");
    for own in 40..80 {
        wrong.answer(own, 250);
    }
    let n_hidden = |timed: &Timed| timed.n_hidden.load(Ordering::Relaxed);
    eprintln!("{} and {} states", n_hidden(&right), n_hidden(&wrong));
    // Each answer has 300 inputs.
    assert!(n_hidden(&right) >= 40 * 299, "{}", n_hidden(&right));
    assert!(n_hidden(&wrong) < 40 * 100, "{}", n_hidden(&wrong));
    // A layer that is slow for a while is found to pay again.
    right.wake_us.store(1000, Ordering::Relaxed);
    let slow: u64 = (80..110).map(|own| right.answer(own, 250)).sum();
    right.n_hidden.store(0, Ordering::Relaxed);
    right.answer(110, 250);
    assert!(
        slow < 3000 && n_hidden(&right) < 150,
        "{slow} {}",
        n_hidden(&right)
    );
    right.wake_us.store(0, Ordering::Relaxed);
    let fast: u64 = (111..231).map(|own| right.answer(own, 250)).sum();
    assert!(fast > 1000, "{fast}");
}

/// Allows one token at each place.
struct Forced(u32);

impl TokenConstraint for Forced {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintFailure> {
        words.fill(0);
        words[0] = 1 << (self.0 % 32);
        Ok(())
    }

    fn commit(&mut self, _: u32) -> Result<(), ConstraintFailure> {
        self.0 += 1;
        Ok(())
    }

    fn is_done(&self) -> bool {
        false
    }

    fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintFailure> {
        self.0 -= n_tokens as u32;
        Ok(())
    }
}

#[test]
fn drafts_of_others_neither_keep_the_ledger_closed_nor_fill_it() {
    // Forced text repeats itself, so that it is looked up later: a draft in each step. Either the draft model
    // is right, but drafts did not pay lately; or it is wrong.
    for (window, is_right) in [(None, true), (Some(3), false)] {
        let speculation = Speculation::Auto { max_draft: 4 };
        let mut timed = Timed::start(speculation, Some((draft(window), 100)), Faults::default());
        let source = ConstraintSource::new(|| Box::new(Forced(0)));
        let _forced = timed.submit(0, 4000, Some(source));
        let _plain = timed.submit(1, 3000, None);
        for _ in 0..20 {
            timed.step_with_masks();
        }
        if is_right {
            while timed.core.draft_ledger().allows() {
                timed.core.draft_ledger().note_passes(2000, 0, 1000);
            }
        }
        for _ in 0..400 {
            timed.step_with_masks();
        }
        let counters = timed.core.scheduler().counters();
        let n_others = counters.drafts.draft_tokens - counters.model_drafts.draft_tokens;
        assert!(n_others > 1000, "{n_others} tokens of other drafts");
        if is_right {
            assert!(timed.core.draft_ledger().allows());
            let n_accepted = counters.model_drafts.accepted_tokens;
            assert!(n_accepted > 100, "{n_accepted}");
        } else {
            let n_drafted = counters.model_drafts.draft_tokens;
            assert!(n_drafted < 100, "{n_drafted}");
        }
    }
}

#[test]
fn a_row_that_fails_ends_the_drafts_of_its_sequence_alone() {
    let bad_passes = |n: u64| Faults {
        rows: (4..4 + n).collect(),
        ..Faults::default()
    };
    let speculation = Speculation::Draft { max_draft: 4 };
    let run = |n_seqs, faults| {
        let (_, mut core) = run_with(n_seqs, speculation, Some((draft(None), 100)), faults);
        core.publish_stats();
        let stats = core.board().stats();
        let model = core.draft_model().unwrap();
        assert_eq!(model.in_use(), (0, 0), "nothing is kept of what has ended");
        (
            stats.failed_draft_rows,
            stats.has_draft_failed,
            stats.scheduler.model_drafts.accepted_tokens,
        )
    };
    let (_, _, of_three) = run(3, Faults::default());
    let (n_failed, has_failed, accepted) = run(3, bad_passes(1));
    assert_eq!((n_failed, has_failed), (1, false));
    // The two others continue.
    assert!(accepted > of_three / 2, "{accepted} of {of_three}");
    // A model that always fails is given up.
    let (n_failed, has_failed, _) = run(10, bad_passes(100_000));
    assert_eq!((n_failed, has_failed), (8, true));
}
