//! The engine under a scheduler that explores thread interleavings: the same sources as the library, with the types of
//! `sync/mod.rs` exchanged for ones whose every operation is a point at which another thread may run.
//!
//! Timeouts never pass here, so a wake-up that is lost shows as a deadlock.
#![expect(
    unreachable_pub,
    dead_code,
    reason = "the library's modules, compiled as a test"
)]

#[path = "../../src/arena.rs"]
mod arena;
#[path = "../../src/calls.rs"]
mod calls;
#[path = "../../src/sync/channel.rs"]
mod channel;
#[path = "../../src/draft/mod.rs"]
mod draft;
#[path = "../../src/draft_model/mod.rs"]
mod draft_model;
#[path = "../../src/engine/mod.rs"]
mod engine;
#[path = "../../src/error.rs"]
mod error;
#[path = "../../src/masks/mod.rs"]
mod masks;
#[path = "../../src/media.rs"]
mod media;
#[path = "../../src/pages/mod.rs"]
mod pages;
#[path = "../../src/params/mod.rs"]
mod params;
#[path = "../../src/plan/mod.rs"]
mod plan;
#[path = "../../src/queue/mod.rs"]
mod queue;

mod sync {
    pub(crate) use crate::channel;
    pub(crate) use shuttle::{
        sync::{
            Arc, Condvar, Mutex, MutexGuard,
            atomic::{AtomicBool, AtomicU64, Ordering},
            mpsc,
        },
        thread,
    };
}

use draft::drafter::Speculation;
use engine::Engine;
use engine::generation::Generation;
use error::EngineError;
use masks::constraint::{ConstraintFailure, ConstraintSource, TokenConstraint};
use params::{EngineConfig, GenerateParams};
use queue::event::{Event, FinishReason};
use shuttle::thread;
use tokenmill_testkit::fake_executor::{
    FakeExecutor, Faults, limits, prompt, reference, reference_with_masks,
};

/// Interleavings explored by each test, at random and again by priorities, where `SHUTTLE_SCHEDULES` says nothing else.
const N_SCHEDULES: usize = 1000;

fn config() -> EngineConfig {
    EngineConfig {
        stream_buffer: 2,
        max_running: 2,
        ..EngineConfig::default()
    }
}

fn greedy(max_tokens: usize) -> GenerateParams {
    GenerateParams {
        max_tokens: Some(max_tokens),
        ..GenerateParams::default()
    }
}

fn expected(prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    reference(&limits(0), prompt, &greedy(1).sampling, max_tokens, &[]).0
}

/// Reads a generation to its end; every sample ends once.
fn read(generation: Generation) -> (Vec<u32>, Result<FinishReason, EngineError>) {
    let mut tokens = Vec::new();
    let mut ends = Vec::new();
    for event in generation {
        match event {
            Event::Token(token) => tokens.push(token.id),
            Event::Finished(finished) => ends.push(Ok(finished.reason)),
            Event::Failed { error, .. } => ends.push(Err(error)),
            Event::Prefill(_) | Event::Rows(_) => panic!("they were not asked for"),
        }
    }
    assert_eq!(ends.len(), 1);
    (tokens, ends.remove(0))
}

fn explore(test: impl Fn() + Send + Sync + 'static) {
    let n_schedules =
        std::env::var("SHUTTLE_SCHEDULES").map_or(N_SCHEDULES, |n| n.parse().expect("a number"));
    let test = std::sync::Arc::new(test);
    let random = std::sync::Arc::clone(&test);
    shuttle::check_random(move || random(), n_schedules);
    shuttle::check_pct(move || test(), n_schedules, 3);
}

#[test]
fn callers_side_by_side_get_what_they_would_get_alone() {
    explore(|| {
        let engine = Engine::start(FakeExecutor::new(limits(4)), config());
        let callers: Vec<_> = (0..3u64)
            .map(|own| {
                let engine = engine.clone();
                thread::spawn(move || {
                    let prompt = prompt(1, own, 16, 18);
                    let generation = engine.submit(prompt.clone(), greedy(5)).unwrap();
                    assert_eq!(read(generation), (expected(&prompt, 5), Ok(FinishReason::Length)));
                })
            })
            .collect();
        for caller in callers {
            caller.join().unwrap();
        }
        assert_eq!(engine.stats().n_pages_in_use, 0);
    });
}

#[test]
fn cancels_and_drops_at_any_moment_hurt_nobody_else() {
    explore(|| {
        let engine = Engine::start(FakeExecutor::new(limits(4)), config());
        let cancelled = engine.submit(vec![1; 17], greedy(20)).unwrap();
        let dropped = engine.submit(vec![2; 17], greedy(20)).unwrap();
        let other = engine.submit(vec![3], greedy(6)).unwrap();
        let canceller = cancelled.canceller();
        let threads = [
            thread::spawn(move || canceller.cancel()),
            thread::spawn(move || drop(dropped)),
            thread::spawn(move || {
                let (tokens, end) = read(cancelled);
                assert!(expected(&[1; 17], 20).starts_with(&tokens));
                assert!(matches!(end, Ok(FinishReason::Cancelled | FinishReason::Length)));
            }),
        ];
        assert_eq!(read(other), (expected(&[3], 6), Ok(FinishReason::Length)));
        for thread in threads {
            thread.join().unwrap();
        }
        engine.drain();
    });
}

#[test]
fn a_stream_that_was_full_always_goes_on() {
    explore(|| {
        let one = EngineConfig {
            stream_buffer: 1,
            steps_in_flight: Some(2),
            ..config()
        };
        let engine = Engine::start(FakeExecutor::new(limits(4)), one);
        let generation = engine.submit(vec![1], greedy(12)).unwrap();
        let reader = thread::spawn(move || read(generation));
        let mut polled = engine.submit(vec![2], greedy(12)).unwrap();
        let mut tokens = Vec::new();
        while let Some(event) = shuttle::future::block_on(polled.next_event()) {
            if let Event::Token(token) = event {
                tokens.push(token.id);
            }
        }
        assert_eq!(tokens, expected(&[2], 12));
        assert_eq!(
            reader.join().unwrap(),
            (expected(&[1], 12), Ok(FinishReason::Length))
        );
    });
}

#[test]
fn what_was_accepted_before_a_drain_is_finished() {
    explore(|| {
        let engine = Engine::start(FakeExecutor::new(limits(4)), config());
        let caller = engine.clone();
        let caller = thread::spawn(move || match caller.submit(vec![1], greedy(4)) {
            Ok(generation) => assert_eq!(read(generation), (expected(&[1], 4), Ok(FinishReason::Length))),
            Err(error) => assert!(matches!(error, EngineError::Draining | EngineError::Stopped)),
        });
        engine.drain();
        caller.join().unwrap();
    });
}

#[test]
fn a_request_whose_engine_goes_away_ends() {
    explore(|| {
        let faults = Faults {
            lost_at: Some(2),
            ..Faults::default()
        };
        let engine = Engine::start(FakeExecutor::with_faults(limits(4), faults), config());
        let caller = engine.clone();
        let caller = thread::spawn(move || {
            if let Ok(generation) = caller.submit(vec![1], greedy(4)) {
                let (tokens, end) = read(generation);
                assert!(expected(&[1], 4).starts_with(&tokens));
                assert!(end.is_err());
            }
        });
        if let Ok(generation) = engine.submit(vec![2], greedy(9)) {
            assert!(read(generation).1.is_err());
        }
        caller.join().unwrap();
        let orphan = engine.submit(vec![3], greedy(9));
        drop(engine);
        if let Ok(generation) = orphan {
            assert!(read(generation).1.is_err());
        }
    });
}

#[test]
fn dropping_the_engine_cancels_what_runs() {
    explore(|| {
        let engine = Engine::start(FakeExecutor::new(limits(4)), config());
        let generation = engine.submit(vec![1], greedy(30)).unwrap();
        let reader = thread::spawn(move || read(generation));
        drop(engine);
        let (tokens, end) = reader.join().unwrap();
        assert!(expected(&[1], 30).starts_with(&tokens));
        assert!(
            matches!(
                end,
                Ok(FinishReason::Cancelled | FinishReason::Length) | Err(EngineError::Stopped)
            ),
            "{end:?}"
        );
    });
}

/// Token `n` is congruent to `n` modulo 5, and the least such every third time; nothing follows after `len` tokens.
struct Rising {
    n_tokens: usize,
    len: usize,
}

fn mask_after(n_tokens: usize) -> u32 {
    let n_allowed = if n_tokens % 3 == 1 { 1 } else { 32 };
    (0..32)
        .filter(|id| id % 5 == n_tokens % 5)
        .take(n_allowed)
        .map(|id| 1 << id)
        .sum()
}

impl TokenConstraint for Rising {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintFailure> {
        words.copy_from_slice(&[mask_after(self.n_tokens)]);
        Ok(())
    }

    fn commit(&mut self, token: u32) -> Result<(), ConstraintFailure> {
        assert_eq!(
            token as usize % 5,
            self.n_tokens % 5,
            "sampled with the mask before it"
        );
        self.n_tokens += 1;
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.n_tokens == self.len
    }

    fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintFailure> {
        self.n_tokens -= n_tokens;
        Ok(())
    }
}

#[test]
fn each_step_samples_with_the_mask_that_was_promised_to_it() {
    promised_masks(Speculation::Off);
}

#[test]
fn each_guess_is_verified_with_the_mask_that_was_promised_behind_it() {
    promised_masks(Speculation::Ngram { max_draft: 3 });
}

fn promised_masks(speculation: Speculation) {
    explore(move || {
        let mut limits_of_drafts = limits(4);
        limits_of_drafts.max_logit_rows = 8;
        let mut executor = FakeExecutor::new(limits_of_drafts);
        executor.takes_late_masks = true;
        let config = EngineConfig {
            speculation,
            ..config()
        };
        let engine = Engine::start(executor, config);
        let constrained = |len| GenerateParams {
            constraint: Some(ConstraintSource::new(move || {
                Box::new(Rising { n_tokens: 0, len })
            })),
            ..greedy(20)
        };
        let first = engine.submit(vec![1], constrained(6)).unwrap();
        let second = engine.submit(vec![2], constrained(4)).unwrap();
        for (generation, prompt, len) in [(first, 1, 6), (second, 2, 4)] {
            let (tokens, end) = read(generation);
            let masks = |tokens: &[u32]| Some(vec![mask_after(tokens.len())]);
            let (expected, _) =
                reference_with_masks(&limits(0), &[prompt], &greedy(1).sampling, len, &[], masks);
            assert_eq!((tokens, end), (expected, Ok(FinishReason::Stop)));
        }
    });
}
