//! What a drafting model is worth, in times of the test's own: it is used where it pays, and costs next to nothing where it does not.
//!
//! It drives [`Core`] with executors that advance a clock, so that times are exact.

use tokenmill_backend::ExecutorLimits;
use tokenmill_testkit::fake_executor::{FakeExecutor, Faults, limits, prompt};

use crate::{
    board::Board,
    channel::channel,
    constraint::{ConstraintFailure, ConstraintSource, TokenConstraint},
    core::Core,
    draft_model::DraftModel,
    drafting::Speculation,
    generation::Generation,
    mailbox::{Mailbox, QueueLimits},
    params::{EngineConfig, GenerateParams},
    submission::{Job, Submission},
    sync::{Arc, AtomicU64, Ordering},
};

const N_VOCAB: usize = 4096;
const N_PROMPT: usize = 50;
const N_GENERATED: usize = 600;

/// Microseconds that the engine takes for `n_seqs` answers, and what was accepted of models' drafts. A step takes 1000 and 40 more
/// for each row after the first; a pass of the drafting model `pass_us`, and 8 more.
fn run(n_seqs: usize, speculation: Speculation, draft: Option<(ExecutorLimits, u64)>) -> (u64, u64) {
    let (took_us, core) = run_with(n_seqs, speculation, draft, Faults::default());
    (took_us, core.scheduler.counters().model_drafts.accepted_tokens)
}

/// As [`run`], with faults of the drafting model; gives the engine as it is at the end.
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
struct Timed {
    core: Core,
    clock: Arc<AtomicU64>,
    mailbox: Arc<Mailbox>,
}

impl Timed {
    fn start(speculation: Speculation, draft: Option<(ExecutorLimits, u64)>, draft_faults: Faults) -> Self {
        let clock = Arc::new(AtomicU64::new(0));
        let executor = |limits: ExecutorLimits, faults: Faults, step_us: u64, row_us: u64| {
            let clock = Arc::clone(&clock);
            let mut executor = FakeExecutor::with_faults(limits, faults);
            executor.on_step = Box::new(move |batch| {
                let us = step_us + row_us * (batch.n_tokens() as u64 - 1);
                clock.fetch_add(us, Ordering::Relaxed);
            });
            Box::new(executor)
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
        let executor_of_model = executor(of_model, Faults::default(), 1000, 40);
        let mut core = Core::new(executor_of_model, config, Arc::new(Board::default()));
        if let Some((limits, pass_us)) = draft {
            let executor = executor(limits, draft_faults, pass_us, 8);
            core.set_draft_model(DraftModel::new(executor, 0));
        }
        let mailbox = Mailbox::new(QueueLimits {
            max_queued: usize::MAX,
            max_queued_tokens: usize::MAX,
        });
        Self { core, clock, mailbox }
    }

    fn submit(&mut self, own: u64, n_generated: usize, constraint: Option<ConstraintSource>) -> Generation {
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
        let request = self.mailbox.submit(1, N_PROMPT, None, |request| Submission {
            request,
            tokens,
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

    fn step(&mut self) {
        self.core.step(&|| self.clock.load(Ordering::Relaxed));
    }

    /// A step for which all masks are there, however long they take by other clocks.
    fn step_with_masks(&mut self) {
        while self.core.mask_workers.n_results() < self.core.mask_workers.n_open() {
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
    // What is forced repeats itself, so that it is looked up later: a draft in each step. The drafting model is right, and drafts did not pay lately; or it is wrong.
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
            while timed.core.draft_ledger.allows() {
                timed.core.draft_ledger.note_passes(1_000_000, 0, 1000);
            }
        }
        for _ in 0..400 {
            timed.step_with_masks();
        }
        let counters = timed.core.scheduler.counters();
        let n_others = counters.drafts.draft_tokens - counters.model_drafts.draft_tokens;
        assert!(n_others > 1000, "{n_others} tokens of other drafts");
        if is_right {
            assert!(timed.core.draft_ledger.allows());
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
        let stats = core.board.stats();
        let model = core.draft_model.as_ref().unwrap();
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
