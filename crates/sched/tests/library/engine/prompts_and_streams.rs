//! The time that streams wait for new prompts, and prompts for streams, in times of the test's own.
//!
//! The tests drive [`Core`] with an executor that advances a clock, so that times are exact.

use std::cell::Cell;

use tokenmill_backend::ExecutorLimits;
use tokenmill_testkit::fake_executor::{FakeExecutor, limits, prompt};

use crate::{
    engine::{board::Board, core::Core, generation::Generation},
    params::{EngineConfig, GenerateParams},
    queue::{
        mailbox::{Admission, Mailbox, QueueLimits},
        submission::{Job, Submission},
    },
    sync::{Arc, AtomicU64, Ordering, channel::channel},
};

/// Microseconds of a step, of a sequence that decodes in it, and of a token of a prompt.
const STEP_US: u64 = 12_000;
const DECODE_US: u64 = 2000;
const PREFILL_US: u64 = 1500;

const N_PROMPT: usize = 200;

fn decode_us(n_sequences: u64) -> u64 {
    STEP_US + DECODE_US * n_sequences
}

/// An engine and its clock.
pub(crate) struct Engine {
    pub(crate) core: Core,
    pub(crate) mailbox: Arc<Mailbox>,
    clock: Arc<AtomicU64>,
    n_submitted: Cell<u64>,
}

impl Engine {
    /// An engine that has seen steps of 1 to 40 sequences, and prompts next to them.
    fn new(max_stall_percent: u32) -> Self {
        let mut engine = Self::fresh(max_stall_percent);
        // They end one after the other, and prompts come next to those that are left.
        let mut generations: Vec<Generation> = (1..=40).map(|i| engine.submit(20, 4 * i)).collect();
        for step in 0..160 {
            if step % 8 == 7 {
                generations.push(engine.submit(20, 1));
            }
            engine.step();
        }
        while !engine.core.is_empty() {
            engine.step();
        }
        engine
    }

    /// An engine that has seen nothing.
    pub(crate) fn fresh(max_stall_percent: u32) -> Self {
        let clock = Arc::new(AtomicU64::new(0));
        let mut executor = FakeExecutor::new(ExecutorLimits {
            max_batch_tokens: 4096,
            ..limits(4000)
        });
        let of_executor = Arc::clone(&clock);
        executor.on_step = Box::new(move |batch| {
            let of_row = |seq_idx| match batch.tokens_of(seq_idx).len() as u64 {
                1 => DECODE_US,
                n_tokens => PREFILL_US * n_tokens,
            };
            let us = STEP_US + (0..batch.n_seqs()).map(of_row).sum::<u64>();
            of_executor.fetch_add(us, Ordering::Relaxed);
        });
        let config = EngineConfig {
            max_running: 40,
            max_stall_percent,
            ..EngineConfig::default()
        };
        let mailbox = Mailbox::new(QueueLimits {
            max_queued: usize::MAX,
            max_queued_tokens: usize::MAX,
        });
        let board = Arc::new(Board::default());
        Self {
            core: Core::new(Box::new(executor), config, board, Arc::clone(&mailbox)),
            mailbox,
            clock,
            n_submitted: Cell::new(0),
        }
    }

    pub(crate) fn submit(&self, n_prompt: usize, n_generated: usize) -> Generation {
        self.submit_with(n_prompt, n_generated, GenerateParams::default())
    }

    pub(crate) fn submit_with(
        &self,
        n_prompt: usize,
        n_generated: usize,
        params: GenerateParams,
    ) -> Generation {
        let number = self.n_submitted.replace(self.n_submitted.get() + 1);
        let (events, receiver) = channel(n_generated + 1);
        let job = Job::Generate {
            params,
            max_len: n_prompt + n_generated,
            context_shift: None,
        };
        let request = self
            .mailbox
            .submit(1, n_prompt, None, Admission::Bounded, |request| Submission {
                request,
                tokens: prompt(100 + number, number, 0, n_prompt),
                sampling_key: job.sampling_key(),
                job,
                events,
                submitted_us: 0,
            });
        Generation::new(request.unwrap(), 1, receiver, Arc::clone(&self.mailbox))
    }

    pub(crate) fn step(&mut self) {
        let mut commands = Vec::new();
        self.mailbox.take(&mut commands);
        for command in commands {
            self.core.obey(command, self.now_us());
        }
        self.core.step(&|| self.clock.load(Ordering::Relaxed));
    }

    fn now_us(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }
}

/// Submits `n_prompts` at once next to `n_streams`. Returns the longest time between two tokens of a stream
/// until all prompts are computed, and how long that takes.
fn longest_gap(n_streams: usize, n_prompts: usize, max_stall_percent: u32) -> (u64, u64) {
    let mut engine = Engine::new(max_stall_percent);
    let mut streams: Vec<Generation> = (0..n_streams).map(|_| engine.submit(20, 3000)).collect();
    while streams.iter_mut().any(|stream| stream.try_next().is_none()) {
        engine.step();
    }
    // After this request the engine knows the time of a prompt token next to these streams.
    let mut first = engine.submit(400, 1);
    while first.try_next().is_none() {
        engine.step();
        for stream in &mut streams {
            while stream.try_next().is_some() {}
        }
    }
    for _ in 0..2 {
        engine.step();
        for stream in &mut streams {
            while stream.try_next().is_some() {}
        }
    }
    let began = engine.now_us();
    let mut prompts: Vec<Generation> = (0..n_prompts).map(|_| engine.submit(N_PROMPT, 500)).collect();
    let mut n_open = n_prompts;
    let mut longest = 0;
    while n_open > 0 {
        let before = engine.now_us();
        engine.step();
        longest = longest.max(engine.now_us() - before);
        for stream in &mut streams {
            assert!(stream.try_next().is_some(), "a stream has a token in each step");
        }
        prompts.retain_mut(|prompt| prompt.try_next().is_none());
        n_open = prompts.len();
    }
    (longest, engine.now_us() - began)
}

#[test]
fn gaps_of_streams_are_bounded_however_many_prompts_come() {
    for max_stall_percent in [0, 25, 75, 200] {
        for (n_streams, n_prompts) in [(1, 1), (1, 7), (1, 15), (1, 39), (4, 12), (15, 1), (12, 28)] {
            let (longest, _) = longest_gap(n_streams, n_prompts, max_stall_percent);
            let bound = decode_us((n_streams + n_prompts) as u64) * u64::from(100 + max_stall_percent) / 100;
            // The last token of a chunk, what one token of a prompt differs from one that decodes, and what the averages are off.
            let bound = bound + bound / 20 + PREFILL_US;
            assert!(
                longest <= bound,
                "{n_streams} streams, {n_prompts} prompts, {max_stall_percent} %: {longest} us, expected {bound}"
            );
        }
    }
}

/// After the start one stream decodes, and then prompts come as fast as they begin, so that no step without one is seen for long.
#[test]
fn a_batch_fills_on_an_engine_that_has_seen_one_stream() {
    for (n_prompts, at_most_percent) in [(7, 200), (15, 200), (39, 200)] {
        let mut engine = Engine::fresh(75);
        let mut stream = engine.submit(20, 3000);
        for _ in 0..12 {
            engine.step();
        }
        while stream.try_next().is_some() {}
        let began = engine.now_us();
        let mut prompts: Vec<Generation> = (0..n_prompts).map(|_| engine.submit(N_PROMPT, 2000)).collect();
        // They continue to decode once they have begun.
        let mut have_begun = vec![false; n_prompts];
        let mut longest = 0;
        while have_begun.contains(&false) {
            let before = engine.now_us();
            engine.step();
            longest = longest.max(engine.now_us() - before);
            assert!(stream.try_next().is_some(), "the stream has a token in each step");
            for (prompt, has_begun) in prompts.iter_mut().zip(&mut have_begun) {
                *has_begun |= prompt.try_next().is_some();
            }
        }
        let percent = (engine.now_us() - began) * 100 / (PREFILL_US * (N_PROMPT * n_prompts) as u64);
        let bound = decode_us(1 + n_prompts as u64) * 175 / 100;
        eprintln!("{n_prompts} prompts: {percent} % of the time alone, longest gap {longest} us of {bound}");
        assert!(percent <= at_most_percent, "{n_prompts} prompts: {percent} %");
        // The first chunk is cut before anything is known of prompts.
        let bound = bound.max(decode_us(1) + PREFILL_US * 33) + bound / 20 + PREFILL_US;
        assert!(
            longest <= bound,
            "{n_prompts} prompts: {longest} us, expected {bound}"
        );
    }
}

#[test]
fn prompts_beside_one_stream_take_little_longer_than_alone() {
    for (n_prompts, at_most_percent) in [(7, 190), (15, 170), (39, 170)] {
        let (_, took) = longest_gap(1, n_prompts, 75);
        let alone = PREFILL_US * (N_PROMPT * n_prompts) as u64;
        let percent = took * 100 / alone;
        eprintln!("{n_prompts} prompts: {percent} % of the time alone");
        assert!(percent <= at_most_percent, "{n_prompts} prompts: {percent} %");
    }
}
