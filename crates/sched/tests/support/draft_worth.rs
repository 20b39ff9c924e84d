//! What a drafting model is worth, in times of the test's own: it is used where it pays, and costs next to nothing where it does not.
//!
//! It drives [`Core`] with executors that advance a clock, so that times are exact.

use tokenmill_backend::ExecutorLimits;
use tokenmill_testkit::fake_executor::{FakeExecutor, Faults, limits, prompt};

use crate::{
    board::Board,
    channel::channel,
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
    let mut generations: Vec<Generation> = (0..n_seqs)
        .map(|seq_idx| {
            let (events, receiver) = channel(N_GENERATED + 1);
            let tokens = prompt(1, seq_idx as u64, 0, N_PROMPT);
            let job = Job::Generate {
                params: GenerateParams::default(),
                max_len: N_PROMPT + N_GENERATED,
                context_shift: None,
            };
            let request = mailbox.submit(1, N_PROMPT, None, |request| Submission {
                request,
                tokens,
                job,
                events,
                submitted_us: 0,
            });
            Generation::new(request.unwrap(), 1, receiver, Arc::clone(&mailbox))
        })
        .collect();
    let mut commands = Vec::new();
    mailbox.take(&mut commands);
    for command in commands {
        core.obey(command, 0);
    }
    while !core.is_empty() {
        core.step(&|| clock.load(Ordering::Relaxed));
        for generation in &mut generations {
            while generation.try_next().is_some() {}
        }
    }
    (clock.load(Ordering::Relaxed), core)
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
        for (name, limits, pass_us) in [
            ("it is as slow as the model", draft(None), 1000),
            ("it is wrong", draft(Some(3)), 100),
            ("it is wrong and slow", draft(Some(3)), 1500),
        ] {
            let (drafted, _) = run(n_seqs, AUTO, Some((limits, pass_us)));
            let permille = drafted * 1000 / plain;
            eprintln!("{n_seqs} sequences, {name}: {permille}");
            assert!(permille <= 1030, "{n_seqs} sequences, {name}: {permille} of 1000");
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
