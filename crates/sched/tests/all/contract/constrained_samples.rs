//! Samples whose every token is sampled with a mask, among others that have none.

use std::sync::{
    Condvar, Mutex,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use tokenmill_sched::{Generation, MaskTimes, Speculation};
use tokenmill_testkit::fake_executor::reference_with_masks;

use super::{endless::Endless, *};

/// Token `n` is congruent to `n` modulo 5; nothing follows after `len` tokens.
struct Rising {
    n_tokens: u32,
    len: u32,
    /// Time that a mask takes.
    delay: Duration,
    fails_at: Option<u32>,
    panics_at: Option<u32>,
}

fn mask_after(n_tokens: usize) -> u32 {
    (0..32)
        .filter(|id| *id as usize % 5 == n_tokens % 5)
        .map(|id: u32| 1 << id)
        .sum()
}

impl TokenConstraint for Rising {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintFailure> {
        std::thread::sleep(self.delay);
        if self.fails_at == Some(self.n_tokens) {
            return Err(ConstraintFailure {
                reason: "told to fail".to_owned(),
            });
        }
        assert_ne!(self.panics_at, Some(self.n_tokens), "told to panic");
        words.copy_from_slice(&[mask_after(self.n_tokens as usize)]);
        Ok(())
    }

    fn commit(&mut self, token: u32) -> Result<(), ConstraintFailure> {
        assert_eq!(token % 5, self.n_tokens % 5, "each token comes once, in order");
        self.n_tokens += 1;
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.n_tokens == self.len
    }

    fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintFailure> {
        self.n_tokens -= n_tokens as u32;
        Ok(())
    }
}

fn rising(len: u32, delay: Duration) -> ConstraintSource {
    source(move || Rising {
        n_tokens: 0,
        len,
        delay,
        fails_at: None,
        panics_at: None,
    })
}

fn source(begin: impl Fn() -> Rising + Send + Sync + 'static) -> ConstraintSource {
    ConstraintSource::new(move || Box::new(begin()))
}

fn constrained(max_tokens: usize, len: u32, delay: Duration) -> GenerateParams {
    GenerateParams {
        constraint: Some(rising(len, delay)),
        ..greedy(max_tokens)
    }
}

fn expected_masked(prompt: &[u32], params: &GenerateParams, len: usize) -> Vec<u32> {
    let n_tokens = params.max_tokens.expect("tests say how many").min(len);
    let mask_of = |generated: &[u32]| Some(vec![mask_after(generated.len())]);
    let (generated, _) = reference_with_masks(
        &limits(0),
        prompt,
        &params.sampling,
        n_tokens,
        &params.stop_tokens,
        mask_of,
    );
    generated
}

/// Takes the events of all samples: their tokens, and how each ended.
fn read(generation: Generation, n_samples: usize) -> Vec<(Vec<u32>, Result<FinishReason, EngineError>)> {
    let mut samples = vec![(Vec::new(), Err(EngineError::Stopped)); n_samples];
    for event in generation {
        match event {
            Event::Token(token) => samples[token.sample as usize].0.push(token.id),
            Event::Finished(end) => samples[end.sample as usize].1 = Ok(end.reason),
            Event::Failed { sample, error } => samples[sample as usize].1 = Err(error),
            Event::Prefill(_) | Event::Rows(_) => unreachable!("nothing asks for them"),
        }
    }
    samples
}

/// Steps in flight, and whether masks may come while a step runs.
const WAYS: [(usize, bool); 4] = [(1, false), (2, false), (1, true), (2, true)];

fn executor(n_pages: usize, takes_late_masks: bool) -> FakeExecutor {
    let mut executor = FakeExecutor::new(limits(n_pages));
    executor.takes_late_masks = takes_late_masks;
    executor
}

/// Without drafts and with them.
const SPECULATIONS: [Speculation; 2] = [Speculation::Off, Speculation::Ngram { max_draft: 6 }];

fn engines() -> Vec<Engine> {
    let ways = SPECULATIONS
        .iter()
        .flat_map(|&speculation| WAYS.map(|way| (speculation, way)));
    let engines = ways.map(|(speculation, (steps_in_flight, takes_late_masks))| {
        let config = EngineConfig {
            steps_in_flight: Some(steps_in_flight),
            speculation,
            ..EngineConfig::default()
        };
        Engine::start(executor(256, takes_late_masks), config)
    });
    engines.collect()
}

#[test]
fn every_token_has_its_mask_with_one_step_in_flight_and_with_two() {
    for engine in engines() {
        for (n_prompt, delay_us) in [(1, 0), (20, 0), (100, 300)] {
            let prompt = prompt(1, 2, 5, n_prompt);
            let params = constrained(30, u32::MAX, Duration::from_micros(delay_us));
            let generation = engine.submit(prompt.clone(), params.clone()).unwrap();
            let expected = expected_masked(&prompt, &params, usize::MAX);
            assert_eq!(read(generation, 1), [(expected, Ok(FinishReason::Length))]);
        }
        assert_no_page_is_held(&engine);
    }
}

#[test]
fn a_complete_text_ends_its_sample_as_a_stop_token_would() {
    for engine in engines() {
        let params = constrained(30, 7, Duration::ZERO);
        let generation = engine.submit(vec![1, 2, 3], params.clone()).unwrap();
        let expected = expected_masked(&[1, 2, 3], &params, 7);
        assert_eq!(read(generation, 1), [(expected, Ok(FinishReason::Stop))]);
    }
}

/// Many prompts, plain ones among them, with sampling, penalties, several samples each, and a pool so small that
/// sequences lose their pages to each other.
#[test]
fn constrained_samples_and_plain_ones_do_not_change_each_other() {
    for (speculation, (steps_in_flight, takes_late_masks)) in
        (SPECULATIONS.iter()).flat_map(|&speculation| WAYS.map(|way| (speculation, way)))
    {
        let config = EngineConfig {
            steps_in_flight: Some(steps_in_flight),
            max_running: 12,
            speculation,
            ..EngineConfig::default()
        };
        let engine = Engine::start(executor(20, takes_late_masks), config);
        let mut open = Vec::new();
        for number in 0..24u32 {
            let prompt = prompt(
                u64::from(number % 3),
                u64::from(number),
                10,
                5 + number as usize * 2,
            );
            let mut params = GenerateParams {
                sampling: sampled(u64::from(number), if number % 2 == 0 { 1.0 } else { 1.1 }),
                stop_tokens: vec![3],
                n_samples: 1 + number % 3,
                ..greedy(25)
            };
            let is_constrained = number % 4 != 3;
            if is_constrained {
                params.constraint = Some(rising(
                    u32::MAX,
                    Duration::from_micros(u64::from(number % 5) * 100),
                ));
            }
            let generation = engine.submit(prompt.clone(), params.clone()).unwrap();
            open.push((prompt, params, is_constrained, generation));
        }
        for (prompt, params, is_constrained, generation) in open {
            let n_samples = params.n_samples;
            for (sample, (tokens, end)) in read(generation, n_samples as usize).into_iter().enumerate() {
                let mut of_sample = params.clone();
                of_sample.sampling.seed += sample as u64;
                let expected = if is_constrained {
                    expected_masked(&prompt, &of_sample, usize::MAX)
                } else {
                    let output = expected(&prompt, &of_sample);
                    output[prompt.len()..].to_vec()
                };
                assert_eq!(tokens, expected);
                assert!(end.is_ok(), "{end:?}");
            }
        }
        assert_no_page_is_held(&engine);
    }
}

#[test]
fn plain_samples_do_not_wait_for_a_slow_mask() {
    for takes_late_masks in [false, true] {
        let engine = Engine::start(executor(64, takes_late_masks), EngineConfig::default());
        plain_samples_overtake(&engine);
    }
}

/// Whether a mask may come, and how many gave up waiting for that.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
    n_given_up: AtomicUsize,
}

impl Gate {
    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn wait(&self) {
        let is_open = self.is_open.lock().unwrap();
        let waited = self
            .opened
            .wait_timeout_while(is_open, Duration::from_mins(1), |is_open| !*is_open);
        if waited.unwrap().1.timed_out() {
            self.n_given_up.fetch_add(1, Relaxed);
        }
    }
}

/// The mask comes once the plain sample has all its tokens, however long a busy machine takes for them.
fn plain_samples_overtake(engine: &Engine) {
    let gate = Arc::new(Gate::default());
    let of_masks = Arc::clone(&gate);
    let slow = GenerateParams {
        constraint: Some(Endless::source(move || {
            let gate = Arc::clone(&of_masks);
            move |_, words: &mut [u32]| {
                gate.wait();
                words.fill(u32::MAX);
                Ok(())
            }
        })),
        ..greedy(3)
    };
    let slow = engine.submit(vec![1, 2], slow).unwrap();
    let plain = engine.submit(vec![4, 5], greedy(100)).unwrap();
    assert_eq!(read(plain, 1)[0].0.len(), 100);
    gate.open();
    assert_eq!(read(slow, 1)[0].1, Ok(FinishReason::Length));
    assert_eq!(gate.n_given_up.load(Relaxed), 0, "masks that were waited for");
}

/// A mask that takes as long as a step comes while the step runs, so that no step goes without its row.
#[test]
fn masks_that_are_no_longer_than_a_step_cost_no_step() {
    let mut executor = executor(64, true);
    executor.on_step = Box::new(|_| std::thread::sleep(Duration::from_millis(20)));
    let engine = Engine::start(executor, EngineConfig::default());
    let plain = engine.submit(vec![4, 5], greedy(40)).unwrap();
    let constrained = engine
        .submit(vec![1, 2], constrained(20, u32::MAX, Duration::from_millis(10)))
        .unwrap();
    assert_eq!(read(constrained, 1)[0].1, Ok(FinishReason::Length));
    assert_eq!(read(plain, 1)[0].0.len(), 40);
    let masks = engine.stats().masks;
    assert_eq!(masks.counts.iter().sum::<u64>(), 20, "{masks:?}");
    // The first is not promised, and a machine that is busy may be late with some.
    assert!(masks.n_missed <= 5, "{masks:?}");
}

/// Allows all; masks take long from the fourth on.
#[expect(clippy::unnecessary_wraps, reason = "a mask of `Endless` may fail")]
fn slow_from_3(n_tokens: u32, words: &mut [u32]) -> Result<(), ConstraintFailure> {
    if n_tokens >= 3 {
        std::thread::sleep(Duration::from_millis(100));
    }
    words.fill(u32::MAX);
    Ok(())
}

/// A step waits once for a mask that is slow all at once; the masks after it are not promised, and other rows continue without.
#[test]
fn a_mask_that_becomes_slow_is_waited_for_once() {
    let engine = Engine::start(executor(64, true), EngineConfig::default());
    let slow = GenerateParams {
        constraint: Some(Endless::source(|| slow_from_3)),
        ..greedy(6)
    };
    assert_eq!(
        read(engine.submit(vec![1, 2], slow).unwrap(), 1)[0].1,
        Ok(FinishReason::Length)
    );
    let masks = engine.stats().masks;
    // Three masks take 100 ms each, and one of them at most is waited for. On a busy machine it may be none, where an earlier mask was late.
    assert_eq!(masks.counts[MaskTimes::BOUNDS_US.len() - 1], 3, "{masks:?}");
    assert!(masks.waited_us < 190_000, "{masks:?}");
}

#[test]
fn a_constraint_that_fails_or_panics_ends_its_own_sample_only() {
    for (speculation, takes_late_masks) in
        (SPECULATIONS.iter()).flat_map(|&speculation| [false, true].map(|is_late| (speculation, is_late)))
    {
        let config = EngineConfig {
            speculation,
            ..EngineConfig::default()
        };
        let engine = Engine::start(executor(64, takes_late_masks), config);
        fails_or_panics(&engine);
    }
}

/// Three of every four tokens are forced: an answer takes at most half as many steps as tokens, and its
/// tokens are the same.
#[test]
fn what_a_constraint_forces_is_guessed() {
    struct Forced(u32);

    impl TokenConstraint for Forced {
        fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintFailure> {
            words[0] = if self.0.is_multiple_of(4) {
                u32::MAX
            } else {
                1 << (self.0 % 32)
            };
            Ok(())
        }

        fn commit(&mut self, _: u32) -> Result<(), ConstraintFailure> {
            self.0 += 1;
            Ok(())
        }

        fn is_done(&self) -> bool {
            self.0 == 38
        }

        fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintFailure> {
            self.0 -= n_tokens as u32;
            Ok(())
        }
    }

    for (steps_in_flight, takes_late_masks) in WAYS {
        let [plain, drafted] = SPECULATIONS.map(|speculation| {
            let config = EngineConfig {
                steps_in_flight: Some(steps_in_flight),
                speculation,
                ..EngineConfig::default()
            };
            // Steps take time, so that the host looks at masks that arrive during a step.
            let mut executor = executor(64, takes_late_masks);
            executor.on_step = Box::new(|_| std::thread::sleep(Duration::from_millis(2)));
            let engine = Engine::start(executor, config);
            let params = GenerateParams {
                constraint: Some(ConstraintSource::new(|| Box::new(Forced(0)))),
                ..greedy(60)
            };
            let samples = read(engine.submit(vec![1, 2], params).unwrap(), 1);
            (samples, engine.stats().scheduler)
        });
        assert_eq!(plain.0, drafted.0);
        assert_eq!((plain.0[0].0.len(), &plain.0[0].1), (38, &Ok(FinishReason::Stop)));
        // The first input is computed while its mask is, or with it.
        assert!((38..=39).contains(&plain.1.steps) && plain.1.forced_drafts.drafts == 0);
        assert!(drafted.1.steps <= 23, "{:?}", drafted.1);
        let forced = drafted.1.forced_drafts;
        assert!(forced.accepted_tokens >= 16, "{forced:?}");
    }
}

fn fails_or_panics(engine: &Engine) {
    let failing = |fails_at, panics_at| GenerateParams {
        constraint: Some(source(move || Rising {
            n_tokens: 0,
            len: u32::MAX,
            delay: Duration::ZERO,
            fails_at,
            panics_at,
        })),
        ..greedy(10)
    };
    let plain = engine.submit(vec![7], greedy(50)).unwrap();
    for (params, n_tokens, reason) in [
        (failing(Some(4), None), 4, "told to fail"),
        (failing(Some(0), None), 0, "told to fail"),
        (failing(None, Some(2)), 2, "it panicked"),
    ] {
        let samples = read(engine.submit(vec![1, 2], params).unwrap(), 1);
        let expected = EngineError::Constraint(ConstraintFailure {
            reason: reason.to_owned(),
        });
        assert_eq!((samples[0].0.len(), &samples[0].1), (n_tokens, &Err(expected)));
    }
    assert_eq!(read(plain, 1)[0].0, expected(&[7], &greedy(50))[1..]);
    assert_no_page_is_held(engine);
}

#[test]
fn a_sample_that_is_cancelled_while_its_mask_is_computed_gives_its_pages_back() {
    let engine = engine(64);
    let params = constrained(500, u32::MAX, Duration::from_millis(5));
    let mut generation = engine.submit(vec![1; 40], params).unwrap();
    assert!(matches!(generation.next(), Some(Event::Token(_))));
    drop(generation);
    assert_no_page_is_held(&engine);
    // Ending the engine waits for the workers.
    drop(engine);
}

#[test]
fn a_mask_that_allows_nothing_is_the_error_of_its_sample() {
    let engine = engine(64);
    let mut params = greedy(10);
    let empty = Arc::new(Mutex::new(0));
    params.constraint = Some(Endless::source({
        let empty = Arc::clone(&empty);
        move || {
            let empty = Arc::clone(&empty);
            move |_, words: &mut [u32]| {
                *empty.lock().unwrap() += 1;
                words.fill(0);
                Ok(())
            }
        }
    }));
    let samples = read(engine.submit(vec![1, 2], params).unwrap(), 1);
    assert!(
        matches!(samples[0].1, Err(EngineError::Row(_))),
        "{:?}",
        samples[0].1
    );
    assert_eq!(*empty.lock().unwrap(), 1);
}
