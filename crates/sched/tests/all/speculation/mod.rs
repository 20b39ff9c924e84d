//! Speculation on a real network: drafts change how many steps a request takes, and no bit of what it gives.
//!
//! Random requests, alone without drafts and in company with them, for every kind of memory a network can have: greedy and sampled,
//! with penalties, log-probabilities, stop tokens, constraints, several samples, cancels, and pools too small for all.

mod distributions;
mod earlier;
mod following;

use tokenmill_backend::{
    DynamicTemperature, Executor, Mirostat, MirostatVersion, SamplerStep, SamplingParams, Xtc,
};
use tokenmill_gguf::TensorType;
use tokenmill_model::{Descriptor, ModelOptions, WindowPages};
use tokenmill_sched::{
    ConstraintFailure, ConstraintSource, Engine, EngineConfig, EngineError, Event, FinishReason,
    GenerateParams, Speculation, Token, TokenConstraint,
};
use tokenmill_testkit::{MEMORY_KINDS, Random, TinyModel, cases, engines, tiny_llama};

use crate::remainders::Remainders;

const NGRAM: Speculation = Speculation::Ngram { max_draft: 7 };
const DRAFT: Speculation = Speculation::Draft { max_draft: 5 };
const MTP: Speculation = Speculation::Mtp { max_draft: 5 };

fn model(change: fn(&mut Descriptor)) -> TinyModel {
    let mut descriptor = tiny_llama();
    change(&mut descriptor);
    TinyModel::random(descriptor, TensorType::F32, 47)
}

fn executor(model: &TinyModel, n_pages: usize, n_threads: usize) -> impl Executor + Send + use<> + 'static {
    let has_states = model.descriptor.state_layers().next().is_some();
    let options = ModelOptions {
        n_ctx: Some(256),
        max_batch_tokens: 128,
        max_batch_seqs: 8,
        max_logit_rows: 24,
        n_pages: Some(n_pages),
        n_host_pages: 4,
        n_states: has_states.then_some(20),
        window_pages: WindowPages::Own,
        ..ModelOptions::default()
    };
    engines::tiny(model, engines::cpu(n_threads), &options)
}

fn engine(model: &TinyModel, n_pages: usize, speculation: Speculation) -> Engine {
    let config = EngineConfig {
        speculation,
        ..EngineConfig::default()
    };
    Engine::start(executor(model, n_pages, 2), config)
}

/// As [`engine`], with a drafting model that has `n_draft_pages` pages.
fn engine_with(
    model: &TinyModel,
    n_pages: usize,
    speculation: Speculation,
    draft: &TinyModel,
    n_draft_pages: usize,
) -> Engine {
    let config = EngineConfig {
        speculation,
        ..EngineConfig::default()
    };
    let draft = executor(draft, n_draft_pages, 1);
    Engine::start_with_draft(executor(model, n_pages, 2), draft, config)
}

/// A random layer of the kind that guesses further tokens.
fn layer_for_further_tokens() -> TinyModel {
    let mut descriptor = tiny_llama();
    descriptor.layers.truncate(1);
    descriptor.reads_hidden = true;
    TinyModel::random(descriptor, TensorType::F32, 48)
}

/// Phrases of five tokens: the first is one of a third of the vocabulary, the others are forced. The
/// constraint may end, and it may be unable to take tokens back.
struct Phrases {
    n_tokens: u32,
    len: u32,
    goes_back: bool,
}

impl Phrases {
    fn allows(&self, id: u32) -> bool {
        match self.n_tokens % 5 {
            0 => id % 3 == self.n_tokens % 3,
            n => id == (self.n_tokens / 5 * 7 + n) % 30,
        }
    }
}

impl TokenConstraint for Phrases {
    fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintFailure> {
        words.fill(0);
        for id in (0..words.len() as u32 * 32).filter(|&id| self.allows(id)) {
            words[id as usize / 32] |= 1 << (id % 32);
        }
        Ok(())
    }

    fn commit(&mut self, token: u32) -> Result<(), ConstraintFailure> {
        assert!(self.allows(token), "only what is allowed comes");
        self.n_tokens += 1;
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.n_tokens == self.len
    }

    fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintFailure> {
        if self.goes_back {
            self.n_tokens -= n_tokens as u32;
            return Ok(());
        }
        Err(ConstraintFailure {
            reason: "it cannot".to_owned(),
        })
    }
}

fn constraint(random: &mut Random) -> Option<ConstraintSource> {
    let (len, goes_back) = (5 + random.below(60) as u32, random.below(3) > 0);
    match random.below(6) {
        0 => Some(ConstraintSource::new(|| Box::new(Remainders::new(3, true, None)))),
        1 | 2 => Some(ConstraintSource::new(move || {
            Box::new(Phrases {
                n_tokens: 0,
                len,
                goes_back,
            })
        })),
        _ => None,
    }
}

struct Request {
    prompt: Vec<u32>,
    params: GenerateParams,
    /// It is cancelled after so many tokens of its first sample.
    cancels_after: Option<usize>,
}

/// Samplers that only the host has, with mirostat, whose draws depend on those before, and steps in any order.
fn by_steps(random: &mut Random) -> SamplingParams {
    let mut sampling = SamplingParams {
        temperature: 0.4,
        seed: random.below(1000) as u64,
        n_logprobs: (random.below(2) == 0).then_some(1),
        ..SamplingParams::default()
    };
    match random.below(6) {
        0 => {
            sampling.xtc = Some(Xtc {
                probability: 0.5,
                threshold: 0.1,
            });
        }
        1 => {
            sampling.dynamic_temperature = Some(DynamicTemperature {
                range: 0.3,
                exponent: 1.5,
            });
        }
        2 => sampling.top_n_sigma = 1.0,
        3 => {
            let mut order = SamplerStep::DEFAULT_ORDER.to_vec();
            random.shuffle(&mut order);
            sampling = SamplingParams {
                order: Some(order),
                top_k: 4,
                top_p: 0.9,
                repeat_penalty: 1.1,
                penalty_last_n: 12,
                ..sampling
            };
        }
        version => {
            let version = match version {
                4 => MirostatVersion::One,
                _ => MirostatVersion::Two,
            };
            let (target, rate) = (1.0 + random.below(3) as f32, [0.1, 0.7][random.below(2)]);
            sampling.mirostat = Some(Mirostat::new(version, target, rate));
        }
    }
    sampling
}

/// Prompts that repeat themselves, most of which begin alike, and all kinds of parameters.
fn request(random: &mut Random, shared: &[u32]) -> Request {
    let n_vocab = tiny_llama().n_vocab;
    let mut prompt = shared[..random.below(shared.len())].to_vec();
    let phrase: Vec<u32> = (0..=random.below(6))
        .map(|_| random.below(n_vocab) as u32)
        .collect();
    for _ in 0..=random.below(5) {
        prompt.extend(&phrase);
    }
    let mut sampling = match random.below(5) {
        0 => SamplingParams::default(),
        1 | 2 => by_steps(random),
        3 => SamplingParams {
            temperature: 0.2,
            seed: random.below(1000) as u64,
            n_logprobs: Some(2),
            ..SamplingParams::default()
        },
        _ => SamplingParams {
            temperature: 0.5,
            top_k: 3,
            repeat_penalty: 1.05,
            frequency_penalty: 0.02,
            penalty_last_n: 12,
            seed: random.below(1000) as u64,
            n_logprobs: Some(1),
            ..SamplingParams::default()
        },
    };
    if random.below(2) == 0 {
        // A text of few words, in which many guesses are right.
        sampling.logit_bias = phrase.iter().take(3).map(|&id| (id, 30.0)).collect();
    }
    let stop_tokens = (0..random.below(3))
        .map(|_| random.below(n_vocab) as u32)
        .collect();
    Request {
        prompt,
        params: GenerateParams {
            sampling,
            max_tokens: Some(1 + random.below(40)),
            min_tokens: random.below(4) * random.below(6),
            stop_tokens,
            constraint: constraint(random),
            n_samples: if random.below(6) == 0 { 3 } else { 1 },
            ..GenerateParams::default()
        },
        cancels_after: (random.below(6) == 0).then(|| 1 + random.below(10)),
    }
}

/// The output of a sample: its tokens with their log-probabilities, as bits, and its end.
type Given = (Vec<Vec<u32>>, Option<Result<FinishReason, EngineError>>);

fn bits(token: &Token) -> Vec<u32> {
    let likeliest = token.top.iter().flat_map(|top| [top.id, top.logprob.to_bits()]);
    let own = [token.id, token.logprob.map_or(0, f32::to_bits)];
    own.into_iter().chain(likeliest).collect()
}

/// Runs requests side by side and reads their events in turn.
fn run(engine: &Engine, requests: &[Request], cancels: bool) -> Vec<Vec<Given>> {
    let mut given: Vec<Vec<Given>> = (requests.iter())
        .map(|request| vec![Given::default(); request.params.n_samples as usize])
        .collect();
    let mut generations: Vec<_> = (requests.iter())
        .map(|request| {
            engine
                .submit(request.prompt.clone(), request.params.clone())
                .unwrap()
        })
        .collect();
    while generations.iter().any(|generation| !generation.has_ended()) {
        for ((generation, request), samples) in generations.iter_mut().zip(requests).zip(&mut given) {
            let Some(event) = generation.next() else {
                continue;
            };
            match event {
                Event::Token(token) => {
                    let sample = &mut samples[token.sample as usize];
                    sample.0.push(bits(&token));
                    if cancels && token.sample == 0 && request.cancels_after == Some(sample.0.len()) {
                        generation.cancel();
                    }
                }
                Event::Finished(end) => {
                    let sample = &mut samples[end.sample as usize];
                    assert_eq!(end.usage.completion_tokens, sample.0.len());
                    assert!(end.usage.accepted_tokens <= end.usage.drafted_tokens.min(sample.0.len()));
                    sample.1 = Some(Ok(end.reason));
                }
                Event::Failed { sample, error } => samples[sample as usize].1 = Some(Err(error)),
                Event::Prefill(_) | Event::Rows(_) => unreachable!("nothing asks for them"),
            }
        }
    }
    given
}

fn assert_same(name: &str, found: &[Vec<Given>], expected: &[Vec<Given>]) {
    for (idx, (found, expected)) in found.iter().flatten().zip(expected.iter().flatten()).enumerate() {
        if found.1 == Some(Ok(FinishReason::Cancelled)) {
            assert!(expected.0.starts_with(&found.0), "{name}, sample {idx}");
        } else {
            assert_eq!(found, expected, "{name}, sample {idx}");
        }
    }
}

#[test]
fn drafts_change_no_bit_for_any_kind_of_memory() {
    let with_all: Vec<usize> = cases("kinds of memory with all requests", MEMORY_KINDS.len()).collect();
    for (kind, (name, change)) in MEMORY_KINDS.iter().enumerate() {
        let model = model(*change);
        let mut random = Random::new(kind as u64);
        let shared: Vec<u32> = (0..70)
            .map(|_| random.below(tiny_llama().n_vocab) as u32)
            .collect();
        // More than 2,000 over the kinds of all slices, each with all that guesses.
        let n_requests = if with_all.contains(&kind) { 160 } else { 48 };
        let requests: Vec<Request> = (0..n_requests).map(|_| request(&mut random, &shared)).collect();
        let (n_again, n_guessed) = (n_requests / 2, n_requests as u64 * 5 / 16);
        let alone = Engine::start(
            executor(&model, 32, 1),
            EngineConfig {
                uses_prefix_cache: false,
                max_running: 1,
                ..EngineConfig::default()
            },
        );
        let expected = run(&alone, &requests, false);
        // Room for all, and room for little more than one.
        for (n_pages, speculation) in [
            (100, NGRAM),
            (14, NGRAM),
            (100, Speculation::Auto { max_draft: 16 }),
        ] {
            let engine = engine(&model, n_pages, speculation);
            let found = run(&engine, &requests, true);
            assert_same(name, &found, &expected);
            // Some of these are asked for again, and the engine has their answers.
            let found = run(&engine, &requests[..n_again], true);
            assert_same(name, &found, &expected[..n_again]);
            if speculation == NGRAM {
                // Whole answers, which no cancel cuts, and these once more.
                for _ in 0..2 {
                    assert_same(
                        name,
                        &run(&engine, &requests[..n_again], false),
                        &expected[..n_again],
                    );
                }
            }
            let stats = engine.stats();
            assert_eq!(
                (stats.n_pages_in_use, stats.n_window_pages_in_use),
                (0, 0),
                "{name}"
            );
            let drafts = stats.scheduler.drafts;
            if speculation == NGRAM {
                assert!(drafts.accepted_tokens > 0, "{name}: {drafts:?}");
                assert!(drafts.draft_tokens > drafts.accepted_tokens, "{name}: {drafts:?}");
                let forced = stats.scheduler.forced_drafts;
                assert!(forced.accepted_tokens > 0, "{name}: {forced:?}");
                let earlier = stats.scheduler.earlier_drafts;
                assert!(earlier.accepted_tokens > n_guessed, "{name}: {earlier:?}");
                assert_eq!(
                    earlier.accepted_tokens, earlier.draft_tokens,
                    "{name}: {earlier:?}"
                );
            }
            eprintln!("{name}, {n_pages} pages: {drafts:?}");
        }
        // A draft that is the model itself, with room for all and for little more than one; and one that is another network.
        let other = TinyModel::random(tiny_llama(), TensorType::Q8_0, 5);
        for (n_pages, speculation, draft, n_draft_pages) in [
            (100, DRAFT, &model, 100),
            (14, DRAFT, &model, 12),
            (100, DRAFT, &other, 30),
            (100, Speculation::Auto { max_draft: 16 }, &model, 100),
        ] {
            let engine = engine_with(&model, n_pages, speculation, draft, n_draft_pages);
            let found = run(&engine, &requests, true);
            assert_same(name, &found, &expected);
            let stats = engine.stats();
            let in_use = (stats.n_pages_in_use, stats.n_window_pages_in_use);
            assert_eq!(in_use, (0, 0), "{name}");
            let drafts = stats.scheduler.model_drafts;
            if speculation == DRAFT {
                let forced = stats.scheduler.forced_drafts.draft_tokens;
                let all = stats.scheduler.drafts.draft_tokens;
                assert_eq!(drafts.draft_tokens + forced, all, "{name}: nothing is looked up");
                assert!(drafts.draft_tokens > 0, "{name}: {drafts:?}");
            }
            eprintln!("{name}, {n_pages} pages, a model: {drafts:?}");
        }
        // A layer that reads the model's hidden states, with room for all and for little more than one.
        let layer = layer_for_further_tokens();
        for (n_pages, speculation, n_draft_pages) in [
            (100, MTP, 100),
            (14, MTP, 12),
            (100, Speculation::Auto { max_draft: 16 }, 100),
        ] {
            let engine = engine_with(&model, n_pages, speculation, &layer, n_draft_pages);
            let found = run(&engine, &requests, true);
            assert_same(name, &found, &expected);
            let stats = engine.stats();
            let in_use = (stats.n_pages_in_use, stats.n_window_pages_in_use);
            assert_eq!(in_use, (0, 0), "{name}");
            assert!(stats.drafts_from_hidden && !stats.has_draft_failed, "{name}");
            let drafts = stats.scheduler.model_drafts;
            if speculation == MTP {
                assert!(drafts.accepted_tokens > 0, "{name}: {drafts:?}");
                assert!(drafts.draft_tokens > drafts.accepted_tokens, "{name}: {drafts:?}");
            }
            eprintln!("{name}, {n_pages} pages, a layer: {drafts:?}");
        }
    }
}

#[test]
fn a_draft_that_is_the_model_is_never_wrong() {
    for (kind, (name, change)) in MEMORY_KINDS.iter().enumerate() {
        let model = model(*change);
        let mut random = Random::new(100 + kind as u64);
        let shared: Vec<u32> = (0..70)
            .map(|_| random.below(tiny_llama().n_vocab) as u32)
            .collect();
        let requests: Vec<Request> = (0..24)
            .map(|_| {
                let mut request = request(&mut random, &shared);
                // Requests that end early or that are sampled in a way unknown to the draft model are left
                // out. Mirostat's bound follows from all tokens before, and the draft model draws only some of them.
                request.params.stop_tokens.clear();
                request.params.min_tokens = 0;
                request.params.constraint = None;
                request.params.sampling.mirostat = None;
                request
            })
            .collect();
        // The draft model preempts its own sequences, and computes them again.
        for n_draft_pages in [100, 12] {
            let engine = engine_with(&model, 100, DRAFT, &model, n_draft_pages);
            run(&engine, &requests, false);
            // How many guesses little memory leaves them depends on when requests meet. By themselves they have all of it.
            for alone in requests.chunks(1) {
                run(&engine, alone, false);
            }
            let drafts = engine.stats().scheduler.model_drafts;
            assert!(drafts.draft_tokens > 40, "{name}: {drafts:?}");
            assert_eq!(drafts.accepted_tokens, drafts.draft_tokens, "{name}: {drafts:?}");
        }
    }
}

#[test]
fn a_draft_that_is_the_model_is_wrong_about_a_constrained_text_only_where_it_is_refused() {
    for (kind, (name, change)) in MEMORY_KINDS.iter().enumerate() {
        let model = model(*change);
        let mut random = Random::new(200 + kind as u64);
        let requests: Vec<Request> = (0..8)
            .map(|n| Request {
                prompt: (0..20 + n)
                    .map(|_| random.below(tiny_llama().n_vocab) as u32)
                    .collect(),
                params: GenerateParams {
                    max_tokens: Some(60),
                    constraint: Some(ConstraintSource::new(|| {
                        Box::new(Remainders::new(7, false, None))
                    })),
                    sampling: SamplingParams {
                        temperature: if n % 2 == 0 { 0.0 } else { 0.7 },
                        seed: n as u64,
                        ..SamplingParams::default()
                    },
                    ..GenerateParams::default()
                },
                cancels_after: None,
            })
            .collect();
        let expected = run(&engine(&model, 100, Speculation::Off), &requests, false);
        let engine = engine_with(&model, 100, DRAFT, &model, 100);
        let found = run(&engine, &requests, false);
        assert_same(name, &found, &expected);
        let stats = engine.stats().scheduler;
        let drafts = stats.model_drafts;
        eprintln!("{name}: {drafts:?}, {} steps", stats.sampling_rows);
        // A sixth of what it guesses is refused, and ends the draft.
        assert!(
            drafts.accepted_tokens * 10 > drafts.draft_tokens * 7,
            "{name}: {drafts:?}"
        );
        assert!(drafts.accepted_tokens > 200, "{name}: {drafts:?}");
        assert_eq!(stats.forced_drafts.draft_tokens, 0, "{name}: nothing is forced");
    }
}

#[test]
fn a_repeating_text_takes_a_fraction_of_the_steps() {
    let model = model(|_| {});
    let params = GenerateParams {
        max_tokens: Some(120),
        sampling: SamplingParams {
            // Whatever the network says, the token after 5 is 5.
            logit_bias: vec![(5, 1e6)],
            ..SamplingParams::default()
        },
        ..GenerateParams::default()
    };
    let steps = |speculation| {
        let engine = engine(&model, 32, speculation);
        let output = engine.generate(&[1, 2, 3], &params).unwrap();
        assert_eq!(output.tokens[3..], [5; 120]);
        (engine.stats().scheduler.steps, output.usage)
    };
    let (plain, usage) = steps(Speculation::Off);
    assert_eq!((plain, usage.drafted_tokens), (120, 0));
    let (with_drafts, usage) = steps(NGRAM);
    assert!(with_drafts < 20, "{with_drafts} steps");
    assert_eq!(usage.accepted_tokens as u64, plain - with_drafts);
}
