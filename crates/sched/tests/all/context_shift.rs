//! Contexts that are shifted, on a real network: what follows is to the bit what a request for the tokens that are left gives.
//!
//! For every kind of memory of a sequence, alone and in company, with and without drafts.

use tokenmill_backend::{Executor, SamplingParams};
use tokenmill_gguf::TensorType;
use tokenmill_model::{Descriptor, ModelOptions, WindowPages};
use tokenmill_sched::{
    ConstraintSource, ContextShift, Engine, EngineConfig, FinishReason, GenerateParams, Output, Speculation,
    Token,
};
use tokenmill_testkit::{MEMORY_KINDS, Random, TinyModel, engines, tiny_llama};

use crate::remainders::Remainders;

const N_CTX: usize = 72;
const SHIFT: ContextShift = ContextShift { keep: 5 };

fn model(change: fn(&mut Descriptor)) -> TinyModel {
    let mut descriptor = tiny_llama();
    change(&mut descriptor);
    TinyModel::random(descriptor, TensorType::F32, 59)
}

fn executor(model: &TinyModel, n_pages: usize) -> impl Executor + Send + use<> + 'static {
    let has_states = model.descriptor.state_layers().next().is_some();
    let options = ModelOptions {
        n_ctx: Some(N_CTX),
        max_batch_tokens: 48,
        max_batch_seqs: 6,
        max_logit_rows: 20,
        n_pages: Some(n_pages),
        n_states: has_states.then_some(20),
        window_pages: WindowPages::Own,
        ..ModelOptions::default()
    };
    engines::tiny(model, engines::cpu(2), &options)
}

fn params(case: u64, max_tokens: usize) -> GenerateParams {
    GenerateParams {
        max_tokens: Some(max_tokens),
        sampling: SamplingParams {
            temperature: if case.is_multiple_of(2) { 0.0 } else { 0.9 },
            repeat_penalty: 1.1,
            penalty_last_n: 30,
            seed: case,
            n_logprobs: Some(2),
            ..SamplingParams::default()
        },
        ..GenerateParams::default()
    }
}

/// Generated tokens with all their log-probabilities, as bits.
fn bits(tokens: &[Token]) -> Vec<[u32; 3]> {
    (tokens.iter())
        .map(|token| {
            let likeliest = token.top.first().map_or(0, |top| top.logprob.to_bits());
            [token.id, token.logprob.map_or(0, f32::to_bits), likeliest]
        })
        .collect()
}

/// Returns the output of an engine that ends at its context and is asked again for the rest each time, with
/// the seed that the documents name.
fn asked_again(model: &TinyModel, prompt: &[u32], params: &GenerateParams) -> Vec<[u32; 3]> {
    let config = EngineConfig {
        uses_prefix_cache: false,
        ..EngineConfig::default()
    };
    let engine = Engine::start(executor(model, 12), config);
    let (mut tokens, mut params, mut out) = (prompt.to_vec(), params.clone(), Vec::new());
    let max_tokens = params.max_tokens.unwrap();
    loop {
        SHIFT.cut(&mut tokens, N_CTX);
        params.max_tokens = Some((max_tokens - out.len()).min(N_CTX - tokens.len()));
        let output = engine.generate(&tokens, &params).unwrap();
        out.extend(bits(&output.generated));
        if out.len() == max_tokens {
            return out;
        }
        tokens = output.tokens;
        params.sampling.seed += 1 << 32;
    }
}

fn shifting(model: &TinyModel, n_pages: usize, speculation: Speculation, steps_in_flight: usize) -> Engine {
    let config = EngineConfig {
        context_shift: Some(SHIFT),
        speculation,
        steps_in_flight: Some(steps_in_flight),
        ..EngineConfig::default()
    };
    Engine::start(executor(model, n_pages), config)
}

fn random_tokens(random: &mut Random, n: usize) -> Vec<u32> {
    (0..n)
        .map(|_| random.below(tiny_llama().n_vocab) as u32)
        .collect()
}

#[track_caller]
fn check(output: &Output, n_prompt: usize, max_tokens: usize, expected: &[[u32; 3]], name: &str) {
    assert_eq!(bits(&output.generated), expected, "{name}");
    assert_eq!(output.reason, FinishReason::Length, "{name}");
    assert_eq!(
        (output.usage.prompt_tokens, output.usage.completion_tokens),
        (n_prompt, max_tokens),
        "{name}"
    );
    // Half of what is not kept goes each time.
    let unit = (N_CTX - SHIFT.keep) / 2;
    let n_over = n_prompt + max_tokens - N_CTX;
    assert_eq!(
        output.usage.dropped_tokens,
        n_over.next_multiple_of(unit),
        "{name}"
    );
}

#[test]
fn behind_a_shift_comes_what_a_request_for_what_is_left_gives() {
    for (kind, (name, change)) in MEMORY_KINDS.iter().enumerate() {
        let model = model(*change);
        let mut random = Random::new(kind as u64);
        let prompts: Vec<Vec<u32>> = [9, 40, 71, 72].map(|n| random_tokens(&mut random, n)).into();
        let max_tokens = 150;
        let expected: Vec<_> = (0..)
            .zip(&prompts)
            .map(|(case, prompt)| asked_again(&model, prompt, &params(case, max_tokens)))
            .collect();
        for (n_pages, speculation, steps_in_flight) in [
            (40, Speculation::Off, 1),
            // Pages for two sequences at most, so that they take them from each other.
            (11, Speculation::Off, 2),
            (40, Speculation::Ngram { max_draft: 6 }, 1),
        ] {
            let engine = shifting(&model, n_pages, speculation, steps_in_flight);
            let generations: Vec<_> = (0..)
                .zip(&prompts)
                .map(|(case, prompt)| {
                    let engine = engine.clone();
                    let (prompt, params) = (prompt.clone(), params(case, max_tokens));
                    std::thread::spawn(move || engine.generate(&prompt, &params).unwrap())
                })
                .collect();
            for ((generation, prompt), expected) in generations.into_iter().zip(&prompts).zip(&expected) {
                check(
                    &generation.join().unwrap(),
                    prompt.len(),
                    max_tokens,
                    expected,
                    name,
                );
            }
            let stats = engine.stats();
            assert!(stats.scheduler.context_shifts >= 4 * 4, "{name}: {stats:?}");
            assert_eq!(
                (stats.n_pages_in_use, stats.n_window_pages_in_use),
                (0, 0),
                "{name}"
            );
        }
    }
}

#[test]
fn a_models_draft_before_a_shift_is_counted_as_the_models() {
    let model = model(|_| {});
    let config = EngineConfig {
        context_shift: Some(SHIFT),
        speculation: Speculation::Draft { max_draft: 5 },
        ..EngineConfig::default()
    };
    let engine = Engine::start_with_draft(executor(&model, 40), executor(&model, 40), config);
    let output = engine.generate(&[1, 2, 3], &params(0, 300)).unwrap();
    let stats = engine.stats().scheduler;
    assert!(output.usage.dropped_tokens > 0 && stats.context_shifts > 4);
    // Nothing else drafts.
    assert!(stats.drafts.draft_tokens > 0);
    assert_eq!(stats.model_drafts, stats.drafts);
}

#[test]
fn a_constraint_goes_on_behind_a_shift_and_ends_a_text_without_a_limit() {
    let model = model(|_| {});
    let params = GenerateParams {
        constraint: Some(ConstraintSource::new(|| {
            Box::new(Remainders::new(3, true, Some(200)))
        })),
        ..GenerateParams::default()
    };
    let outputs = [Speculation::Off, Speculation::Ngram { max_draft: 5 }].map(|speculation| {
        let engine = shifting(&model, 40, speculation, 1);
        let output = engine.generate(&[1, 2, 3], &params).unwrap();
        assert_eq!((output.generated.len(), output.reason), (200, FinishReason::Stop));
        assert!(output.usage.dropped_tokens > 100);
        let tokens = output.generated.into_iter();
        tokens
            .map(|token| (token.id, token.logprob, token.top))
            .collect::<Vec<_>>()
    });
    assert_eq!(outputs[0], outputs[1]);
}

#[test]
fn fewest_tokens_are_counted_over_shifts_and_samples_are_told_apart() {
    let model = model(|_| {});
    let engine = shifting(&model, 40, Speculation::Off, 1);
    let n_vocab = tiny_llama().n_vocab as u32;
    let params = GenerateParams {
        min_tokens: 100,
        max_tokens: Some(300),
        // Every token but one ends a text as soon as it may end.
        stop_tokens: (1..n_vocab).collect(),
        n_samples: 3,
        ..params(1, 300)
    };
    let outputs = engine.generate_samples(
        &[1, 2, 3, 4],
        &GenerateParams {
            stop_tokens: Vec::new(),
            min_tokens: 0,
            ..params.clone()
        },
    );
    let outputs: Vec<Output> = outputs.unwrap().into_iter().map(Result::unwrap).collect();
    for (seed, output) in (1..).zip(&outputs) {
        let single = GenerateParams {
            sampling: SamplingParams {
                seed,
                ..params.sampling.clone()
            },
            min_tokens: 0,
            stop_tokens: Vec::new(),
            n_samples: 1,
            ..params.clone()
        };
        let alone = engine.generate(&[1, 2, 3, 4], &single).unwrap();
        assert_eq!(bits(&output.generated), bits(&alone.generated));
    }
    let single = GenerateParams {
        n_samples: 1,
        stop_tokens: (0..n_vocab).filter(|id| *id != 7).collect(),
        ..params
    };
    let output = engine.generate(&[1, 2, 3, 4], &single).unwrap();
    assert!(output.generated.len() >= 100, "{}", output.generated.len());
    assert!(output.generated[..100].iter().all(|token| token.id == 7));
    assert!(output.usage.dropped_tokens > 0);
}

#[test]
fn fewest_tokens_of_a_prompt_that_fills_the_context_are_no_more_than_asked_for() {
    let model = model(|_| {});
    let engine = shifting(&model, 40, Speculation::Off, 1);
    let n_vocab = tiny_llama().n_vocab as u32;
    let mut params = GenerateParams {
        min_tokens: 2,
        // All but token 7, which is not said where another may be.
        stop_tokens: (0..n_vocab).filter(|id| *id != 7).collect(),
        ..params(0, 50)
    };
    params.sampling.logit_bias = vec![(7, -1e4)];
    let prompt = random_tokens(&mut Random::new(5), N_CTX);
    let output = engine.generate(&prompt, &params).unwrap();
    let generated: Vec<u32> = output.generated.iter().map(|token| token.id).collect();
    assert_eq!((&generated[..], output.reason), (&[7, 7][..], FinishReason::Stop));
}

#[test]
fn without_the_choice_a_text_ends_where_its_context_is_full() {
    let model = model(|_| {});
    let engine = Engine::start(executor(&model, 40), EngineConfig::default());
    let output = engine.generate(&[1; 40], &params(0, 150)).unwrap();
    assert_eq!(
        (output.tokens.len(), output.reason),
        (N_CTX, FinishReason::Length)
    );
    assert_eq!(output.usage.dropped_tokens, 0);
    assert_eq!(engine.stats().scheduler.context_shifts, 0);
}
