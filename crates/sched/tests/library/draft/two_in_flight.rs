//! The gain of drafts with two steps in flight, in times of the test's own: the host's work hides behind the
//! device's, unless a step waits for the newest tokens. So steps wait only if drafts pay.

use std::collections::VecDeque;

use tokenmill_backend::{
    Executor, ExecutorLimits, ForwardBatch, PageCopy, PageGroup, StepError, StepOutput, Ticket,
};
use tokenmill_testkit::fake_executor::{FakeExecutor, limits};

use crate::{
    draft::drafter::Speculation,
    draft_model::DraftModel,
    library::draft::worth::Timed,
    masks::constraint::{ConstraintFailure, ConstraintSource, TokenConstraint},
    params::EngineConfig,
    queue::event::Event,
    sync::{Arc, AtomicU64, Ordering},
};

const AUTO: Speculation = Speculation::Auto { max_draft: 16 };
const N_GENERATED: usize = 600;
/// So many that no run of tokens comes again by chance, and few enough that a step writes their logits quickly.
const N_VOCAB: usize = 1 << 15;

/// An executor that computes one step after the other while the host works, and a clock that both advance.
struct Overlapped {
    inner: FakeExecutor,
    clock: Arc<AtomicU64>,
    times: Times,
    /// When the device is done with all that was submitted.
    free_us: u64,
    /// When each step in flight is done.
    done: VecDeque<u64>,
}

/// Microseconds.
#[derive(Clone, Copy)]
struct Times {
    /// The host's work for a step.
    host: u64,
    /// A step of one row.
    step: u64,
    /// Each further row.
    row: u64,
}

const TIMES: Times = Times {
    host: 300,
    step: 1000,
    row: 40,
};

impl Executor for Overlapped {
    fn limits(&self) -> &ExecutorLimits {
        self.inner.limits()
    }

    fn steps_in_flight(&self) -> usize {
        2
    }

    fn submit(&mut self, batch: &ForwardBatch) -> Result<Ticket, StepError> {
        let now = self.clock.fetch_add(self.times.host, Ordering::Relaxed) + self.times.host;
        let took = self.times.step + self.times.row * (batch.n_tokens() as u64 - 1);
        self.free_us = self.free_us.max(now) + took;
        self.done.push_back(self.free_us);
        self.inner.submit(batch)
    }

    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), StepError> {
        let done = self.done.pop_front().expect("a step is in flight");
        self.clock.fetch_max(done, Ordering::Relaxed);
        self.inner.wait(ticket, output)
    }

    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), StepError> {
        self.inner.copy_pages(group, copies)
    }
}

/// An engine with such an executor.
struct Overlap {
    timed: Timed,
    most_in_flight: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

impl Overlap {
    fn start(speculation: Speculation, times: Times, n_vocab: usize) -> Self {
        Self::start_with(speculation, times, n_vocab, 0)
    }

    /// Starts an engine of a model with recurrent states, with `n_states` slots for them.
    fn start_with(speculation: Speculation, times: Times, n_vocab: usize, n_states: usize) -> Self {
        let limits = ExecutorLimits {
            n_vocab,
            max_logit_rows: 80,
            n_states,
            ..limits(400)
        };
        let clock = Arc::new(AtomicU64::new(0));
        let inner = FakeExecutor::new(limits);
        let most_in_flight = inner.most_in_flight();
        let executor = Overlapped {
            inner,
            clock: Arc::clone(&clock),
            times,
            free_us: 0,
            done: VecDeque::new(),
        };
        let config = EngineConfig {
            speculation,
            ..EngineConfig::default()
        };
        Self {
            timed: Timed::of(Box::new(executor), config, clock),
            most_in_flight,
        }
    }

    /// With a drafting model whose passes take `pass_us`; with a window it knows little of what the model says.
    fn with_draft(mut self, n_vocab: usize, window: Option<usize>, pass_us: u64) -> Self {
        let limits = ExecutorLimits {
            n_vocab,
            kv_window: window,
            ..limits(400)
        };
        let mut executor = FakeExecutor::new(limits);
        let clock = self.timed.clock();
        executor.on_step = Box::new(move |_| {
            clock.fetch_add(pass_us, Ordering::Relaxed);
        });
        (self.timed.core).set_draft_model(DraftModel::new(Box::new(executor), 0));
        self
    }

    /// Gives the answers to these prompts side by side; returns the microseconds that they took, and their tokens.
    fn answers(&mut self, prompts: &[u64]) -> (u64, Vec<Vec<u32>>) {
        let begun = self.timed.now_us();
        let mut generations: Vec<_> = (prompts.iter())
            .map(|&own| self.timed.submit(own, N_GENERATED, None))
            .collect();
        let mut tokens = vec![Vec::new(); prompts.len()];
        while !self.timed.core.is_empty() {
            self.timed.step();
            for (generation, tokens) in generations.iter_mut().zip(&mut tokens) {
                while let Some(event) = generation.try_next() {
                    if let Event::Token(token) = event {
                        tokens.push(token.id);
                    }
                }
            }
        }
        assert!(tokens.iter().all(|tokens| tokens.len() == N_GENERATED));
        (self.timed.now_us() - begun, tokens)
    }

    fn n_accepted(&self) -> u64 {
        self.timed.core.scheduler().counters().drafts.accepted_tokens
    }
}

#[test]
fn two_steps_stay_in_flight_where_there_is_nothing_to_guess() {
    for prompts in [&[1][..], &[1, 2, 3, 4]] {
        let [off, auto] = [Speculation::Off, AUTO].map(|speculation| {
            let mut overlap = Overlap::start(speculation, TIMES, N_VOCAB);
            let found = overlap.answers(prompts);
            assert_eq!(overlap.most_in_flight.load(Ordering::Relaxed), 2);
            found
        });
        assert_eq!(auto, off, "the same tokens in the same time");
    }
}

#[test]
fn steps_wait_for_the_newest_tokens_where_a_draft_behind_them_pays() {
    for prompts in [&[1][..], &[1, 2]] {
        let [off, auto] = [Speculation::Off, AUTO].map(|speculation| {
            let mut overlap = Overlap::start(speculation, TIMES, N_VOCAB);
            let first = overlap.answers(prompts);
            // Text that is requested again is drafted from the earlier answer.
            let again = overlap.answers(prompts);
            assert_eq!(first.1, again.1);
            (first, again, overlap.n_accepted())
        });
        assert_eq!(auto.0, off.0);
        assert_eq!(auto.1.1, off.1.1);
        let percent = off.1.0 * 100 / auto.1.0;
        eprintln!("{} answers: {percent} %, {} accepted", prompts.len(), auto.2);
        assert!(percent >= 400 && auto.2 > 500, "{percent} % {}", auto.2);
    }
}

#[test]
fn steps_do_not_wait_where_drafts_are_right_and_do_not_pay() {
    for times in [
        Times { row: 1100, ..TIMES },
        // The host takes as long as the device, which waiting makes twice as long.
        Times {
            host: 950,
            row: 1000,
            ..TIMES
        },
    ] {
        let [off, auto] = [Speculation::Off, AUTO].map(|speculation| {
            let mut overlap = Overlap::start(speculation, times, N_VOCAB);
            overlap.answers(&[1]);
            let mut took = 0;
            for _ in 0..4 {
                took += overlap.answers(&[1]).0;
            }
            took
        });
        let permille = auto * 1000 / off;
        eprintln!("{} and {} us: {permille} of 1000", times.host, times.row);
        assert!(permille <= 1020, "{permille} of 1000");
    }
}

#[test]
fn steps_do_not_wait_for_drafts_that_get_no_place() {
    // The sequence's own state takes the one slot, so a draft has none for the state behind it.
    let [off, auto] = [Speculation::Off, AUTO].map(|speculation| {
        let mut overlap = Overlap::start_with(speculation, TIMES, N_VOCAB, 1);
        let first = overlap.answers(&[1]);
        // Text that is requested again would be drafted from the earlier answer.
        let again = overlap.answers(&[1]);
        assert_eq!((first.1 == again.1, overlap.n_accepted()), (true, 0));
        (first.0, again.0)
    });
    assert_eq!(auto, off, "the same time");
}

#[test]
fn look_ups_that_are_wrong_cost_next_to_nothing() {
    // With so few tokens, two of them have often been there before, and something else followed.
    for n_vocab in [32, 64] {
        let [off, auto] = [Speculation::Off, AUTO].map(|speculation| {
            let mut overlap = Overlap::start(speculation, TIMES, n_vocab);
            let mut took = 0;
            let mut all = Vec::new();
            for own in 0..4 {
                let (took_us, tokens) = overlap.answers(&[own, own + 10]);
                took += took_us;
                all.extend(tokens);
            }
            (took, all)
        });
        let permille = auto.0 * 1000 / off.0;
        eprintln!("{n_vocab} tokens: {permille} of 1000");
        assert_eq!(auto.1, off.1);
        assert!(permille <= 1020, "{n_vocab}: {permille} of 1000");
    }
}

#[test]
fn a_drafting_model_is_used_where_it_pays_and_costs_next_to_nothing_where_it_does_not() {
    for n_seqs in [1, 2] {
        let prompts: Vec<u64> = (1..=n_seqs).collect();
        let mut plain = Overlap::start(AUTO, TIMES, 4096);
        let (plain_us, expected) = plain.answers(&prompts);
        let with = |window, pass_us| {
            let mut overlap = Overlap::start(AUTO, TIMES, 4096).with_draft(4096, window, pass_us);
            let (took_us, tokens) = overlap.answers(&prompts);
            assert_eq!(tokens, expected);
            took_us
        };
        let percent = plain_us * 100 / with(None, 100);
        eprintln!("{n_seqs} answers, right: {percent} %");
        assert!(percent >= 150, "{percent} %");
        for (name, window, pass_us) in [("wrong", Some(3), 100), ("slow", None, 1000)] {
            let permille = with(window, pass_us) * 1000 / plain_us;
            eprintln!("{n_seqs} answers, {name}: {permille} of 1000");
            assert!(permille <= 1040, "{name}: {permille} of 1000");
        }
    }
}

/// Forces one token after the other for `n` tokens, and lets the model choose as many, in turns.
struct InTurns {
    n_tokens: usize,
    n: usize,
}

impl TokenConstraint for InTurns {
    fn mask(&mut self, mask: &mut [u32]) -> Result<(), ConstraintFailure> {
        if self.n_tokens / self.n % 2 == 1 {
            mask.fill(!0);
        } else {
            let token = 100 + self.n_tokens;
            mask.fill(0);
            mask[token / 32] |= 1 << (token % 32);
        }
        Ok(())
    }

    fn commit(&mut self, _: u32) -> Result<(), ConstraintFailure> {
        self.n_tokens += 1;
        Ok(())
    }

    fn is_done(&self) -> bool {
        false
    }

    fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintFailure> {
        self.n_tokens -= n_tokens;
        Ok(())
    }
}

/// A constrained answer next to a free one.
struct Pair {
    /// The tokens of the constrained answer.
    tokens: Vec<u32>,
    took_us: u64,
    /// How many tokens both answers had in a second of its latter half, when all times were known.
    rate: u64,
    /// Guesses of forced tokens that were right, and those of the latter half.
    n_forced: [u64; 2],
}

impl Pair {
    fn run(speculation: Speculation, times: Times) -> Self {
        const N_TOKENS: usize = 400;
        let mut overlap = Overlap::start(speculation, times, 4096);
        let source = ConstraintSource::new(|| Box::new(InTurns { n_tokens: 0, n: 20 }));
        let mut constrained = overlap.timed.submit(1, N_TOKENS, Some(source));
        let mut free = overlap.timed.submit(2, 3 * N_TOKENS, None);
        let (mut tokens, mut n_free) = (Vec::new(), 0);
        let mut half = None;
        loop {
            overlap.timed.step_with_masks();
            while let Some(event) = constrained.try_next() {
                if let Event::Token(token) = event {
                    tokens.push(token.id);
                }
            }
            while let Some(event) = free.try_next() {
                n_free += u64::from(matches!(event, Event::Token(_)));
            }
            let n_forced = overlap
                .timed
                .core
                .scheduler()
                .counters()
                .forced_drafts
                .accepted_tokens;
            let now = (overlap.timed.now_us(), tokens.len() as u64 + n_free, n_forced);
            if tokens.len() == N_TOKENS {
                let (begun_us, n_before, n_forced_before) = half.expect("its first half came before");
                return Self {
                    tokens,
                    took_us: now.0,
                    rate: (now.1 - n_before) * 1_000_000 / (now.0 - begun_us),
                    n_forced: [n_forced, n_forced - n_forced_before],
                };
            }
            if tokens.len() >= N_TOKENS / 2 {
                half.get_or_insert(now);
            }
        }
    }
}

#[test]
fn what_is_forced_is_guessed_next_to_free_answers_where_that_pays() {
    // A guess spares both answers a step and makes another longer by a row.
    for (row, pays) in [(TIMES.row, true), (300, true), (1100, false), (1500, false)] {
        let times = Times { row, ..TIMES };
        let [off, auto] = [Speculation::Off, AUTO].map(|speculation| Pair::run(speculation, times));
        eprintln!(
            "{row} us a row: {} us and {} tokens a second, with guesses {} and {}, {:?} forced",
            off.took_us, off.rate, auto.took_us, auto.rate, auto.n_forced
        );
        assert_eq!(auto.tokens, off.tokens);
        // Guesses are the constrained answer's alone, those too by which it is learned what they take.
        assert!(
            auto.took_us < off.took_us,
            "{} of {} us",
            auto.took_us,
            off.took_us
        );
        let permille = auto.rate * 1000 / off.rate;
        let [n_forced, n_late] = auto.n_forced;
        if pays {
            assert!(permille >= 1100 && n_late > 50, "{permille} of 1000, {n_late}");
        } else {
            // They are given up but for a trial, which cannot guess more.
            assert!(permille >= 980 && n_late <= 16, "{permille} of 1000, {n_late}");
            assert!(n_forced < 100, "{n_forced}");
        }
    }
}

#[test]
fn sequences_that_draft_stay_together() {
    // One begins while the other is in flight: they share steps from then on, with drafts and without.
    for speculation in [AUTO, Speculation::Ngram { max_draft: 4 }] {
        let mut overlap = Overlap::start(speculation, TIMES, N_VOCAB);
        let mut first = overlap.timed.submit(1, N_GENERATED, None);
        for _ in 0..5 {
            overlap.timed.step();
        }
        let mut second = overlap.timed.submit(2, N_GENERATED, None);
        let mut n_tokens = 0;
        let begun = overlap.timed.core.scheduler().counters().steps;
        while n_tokens < N_GENERATED {
            overlap.timed.step();
            while first.try_next().is_some() {}
            while second.try_next().is_some() {
                n_tokens += 1;
            }
        }
        let n_steps = overlap.timed.core.scheduler().counters().steps - begun;
        assert!(n_steps <= N_GENERATED as u64 + 20, "{speculation:?}: {n_steps}");
    }
}
