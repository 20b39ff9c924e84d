//! The engine on a real network: a tiny random model on the CPU backend. A request gives the same tokens and the same
//! log-probabilities, bit for bit, whatever else runs and however it is cut into steps.

use tokenmill_backend::{Executor, SamplingParams};
use tokenmill_gguf::TensorType;
use tokenmill_model::ModelOptions;
use tokenmill_sched::{Engine, EngineConfig, GenerateParams, Output, Token};
use tokenmill_testkit::{Random, TinyModel, engines, generate, tiny_llama};

/// The model of most tests: quantized weights, f16 KV.
fn tiny_model() -> TinyModel {
    TinyModel::random(tiny_llama(), TensorType::Q8_0, 11)
}

fn executor(model: &TinyModel, n_pages: usize, n_threads: usize) -> impl Executor + Send + 'static {
    let options = ModelOptions {
        n_ctx: Some(256),
        max_batch_tokens: 128,
        max_batch_seqs: 40,
        max_logit_rows: 64,
        n_pages: Some(n_pages),
        n_host_pages: 8,
        ..ModelOptions::default()
    };
    engines::tiny(model, engines::cpu(n_threads), &options)
}

fn engine(n_pages: usize) -> Engine {
    Engine::start(executor(&tiny_model(), n_pages, 2), EngineConfig::default())
}

fn greedy(max_tokens: usize) -> GenerateParams {
    GenerateParams {
        max_tokens: Some(max_tokens),
        ..GenerateParams::default()
    }
}

/// Everything a sampler can be asked for, so that every part of a row must agree.
fn sampled(seed: u64, max_tokens: usize) -> GenerateParams {
    GenerateParams {
        sampling: SamplingParams {
            temperature: 0.9,
            top_p: 0.95,
            repeat_penalty: 1.1,
            frequency_penalty: 0.2,
            penalty_last_n: 20,
            seed,
            n_logprobs: Some(3),
            ..SamplingParams::default()
        },
        ..greedy(max_tokens)
    }
}

fn prompts(n: usize) -> Vec<Vec<u32>> {
    let n_vocab = tiny_llama().n_vocab;
    let mut random = Random::new(n as u64);
    let shared: Vec<u32> = (0..40).map(|_| random.below(n_vocab) as u32).collect();
    (0..n)
        .map(|_| {
            let n_shared = random.below(shared.len());
            let own = 1 + random.below(30);
            let own = (0..own).map(|_| random.below(n_vocab) as u32);
            shared[..n_shared].iter().copied().chain(own).collect()
        })
        .collect()
}

/// Returns the output of each request in an engine to itself, which computes everything from the start.
fn alone(prompts: &[Vec<u32>], params: &GenerateParams) -> Vec<Output> {
    let config = EngineConfig {
        uses_prefix_cache: false,
        max_running: 1,
        ..EngineConfig::default()
    };
    let engine = Engine::start(executor(&tiny_model(), 16, 1), config);
    prompts
        .iter()
        .map(|prompt| engine.generate(prompt, params).unwrap())
        .collect()
}

/// The tokens of an output with all their log-probabilities, as bits.
fn bits(output: &Output) -> Vec<u32> {
    let of_token = |token: &Token| {
        let likeliest = token.top.iter().flat_map(|top| [top.id, top.logprob.to_bits()]);
        let own = [token.id, token.logprob.map_or(0, f32::to_bits)];
        own.into_iter().chain(likeliest).collect::<Vec<_>>()
    };
    output.generated.iter().flat_map(of_token).collect()
}

#[track_caller]
fn assert_same(engine: &Engine, prompts: &[Vec<u32>], params: &GenerateParams, expected: &[Output]) {
    for (found, expected) in engine
        .batch_generate(prompts, params)
        .unwrap()
        .into_iter()
        .zip(expected)
    {
        let found = found.unwrap();
        assert_eq!((&found.tokens, found.reason), (&expected.tokens, expected.reason));
        assert_eq!(bits(&found), bits(expected));
    }
}

#[test]
fn batched_greedy_equals_single_for_every_size_up_to_33_with_ragged_lengths_and_staggered_ends() {
    let batched = engine(33 * 8);
    let mut single = executor(&tiny_model(), 8, 1);
    for n in 1..=33 {
        let prompts = prompts(n);
        // A token that some of them generate, so that they end at different steps.
        let stop = generate::greedy(&mut single, &prompts[0], 4).unwrap()[3];
        let params = GenerateParams {
            stop_tokens: vec![stop],
            ..greedy(12)
        };
        let mut lengths = Vec::new();
        for (prompt, output) in prompts
            .iter()
            .zip(batched.batch_generate(&prompts, &params).unwrap())
        {
            let mut expected = generate::greedy(&mut single, prompt, 12).unwrap();
            expected.truncate(expected.iter().position(|&id| id == stop).unwrap_or(12));
            let output = output.unwrap();
            assert_eq!(output.tokens[prompt.len()..], expected, "of {n}");
            lengths.push(expected.len());
        }
        assert!(lengths[0] <= 3, "the first stops early");
    }
}

#[test]
fn company_chunks_threads_and_steps_in_flight_change_no_bit() {
    let prompts = prompts(9);
    let params = sampled(5, 20);
    let expected = alone(&prompts, &params);
    for (n_threads, max_step_tokens, max_running, steps_in_flight) in [
        (1, 128, 9, 1),
        (2, 128, 9, 2),
        (3, 7, 5, 1),
        (2, 1, 3, 2),
        (1, 30, 2, 2),
    ] {
        let config = EngineConfig {
            max_step_tokens,
            max_running,
            steps_in_flight: Some(steps_in_flight),
            ..EngineConfig::default()
        };
        let engine = Engine::start(executor(&tiny_model(), 100, n_threads), config);
        // Once with a cold prefix cache, once with a warm one.
        assert_same(&engine, &prompts, &params, &expected);
        assert_same(&engine, &prompts, &params, &expected);
    }
}

#[test]
fn preemption_and_the_host_tier_change_no_bit() {
    let prompts = prompts(8);
    let params = sampled(6, 50);
    let expected = alone(&prompts, &params);
    let engine = engine(9);
    assert_same(&engine, &prompts, &params, &expected);
    let stats = engine.stats();
    assert!(
        stats.scheduler.preemptions > 0 && stats.pool.host_hits > 0,
        "{stats:?}"
    );
}

#[test]
fn a_prefix_hit_equals_a_miss() {
    let engine = engine(32);
    let (prompt, params) = (&prompts(3)[2], sampled(7, 30));
    let miss = engine.generate(prompt, &params).unwrap();
    let longer = miss.tokens.clone();
    let expected = alone(std::slice::from_ref(&longer), &params).remove(0);
    let hit = engine.generate(&longer, &params).unwrap();
    assert_eq!(bits(&hit), bits(&expected));
    assert_eq!(hit.usage.cached_tokens, (longer.len() - 1) / 16 * 16);
}

#[test]
fn greedy_when_the_temperature_is_0_or_top_k_is_1() {
    let prompts = prompts(5);
    let only_the_likeliest = GenerateParams {
        sampling: SamplingParams {
            temperature: 1.3,
            top_k: 1,
            seed: 9,
            ..SamplingParams::default()
        },
        ..greedy(15)
    };
    let engine = engine(64);
    for (a, b) in engine
        .batch_generate(&prompts, &greedy(15))
        .unwrap()
        .into_iter()
        .zip(engine.batch_generate(&prompts, &only_the_likeliest).unwrap())
    {
        assert_eq!(a.unwrap().tokens, b.unwrap().tokens);
    }
}

#[test]
fn of_equally_likely_tokens_the_lowest_id_wins() {
    let mut model = tiny_model();
    let (n_vocab, n_embd) = (model.descriptor.n_vocab, model.descriptor.n_embd);
    // Token 2 i + 1 has the same row of the head as token 2 i.
    let mut random = Random::new(3);
    let rows: Vec<f32> = (0..n_vocab / 2 * n_embd)
        .map(|_| random.below(2001) as f32 / 1000.0 - 1.0)
        .collect();
    let head: Vec<f32> = rows.chunks(n_embd).flat_map(|row| [row, row].concat()).collect();
    model.set("output.weight", &head);
    let engine = Engine::start(executor(&model, 64, 2), EngineConfig::default());
    for output in engine.batch_generate(&prompts(9), &greedy(12)).unwrap() {
        let ids = output.unwrap().generated.into_iter().map(|token| token.id);
        assert!(ids.clone().all(|id| id % 2 == 0), "{:?}", ids.collect::<Vec<_>>());
    }
}

#[test]
fn forward_batch_gives_the_logits_of_one_pass() {
    let tokens = &prompts(4)[3];
    let expected = generate::all_logits(&mut executor(&tiny_model(), 16, 1), tokens).unwrap();
    let config = EngineConfig {
        max_step_tokens: 5,
        ..EngineConfig::default()
    };
    let engine = Engine::start(executor(&tiny_model(), 16, 2), config);
    assert_eq!(engine.forward_batch(tokens).unwrap(), expected);
    let n_vocab = engine.limits().n_vocab;
    assert_eq!(
        engine.prefill_batch(tokens).unwrap(),
        expected[expected.len() - n_vocab..]
    );
}

#[test]
fn samples_of_one_prompt_equal_requests_of_their_own() {
    let prompt = prompts(2).remove(1);
    let params = GenerateParams {
        n_samples: 5,
        ..sampled(20, 25)
    };
    let outputs = engine(64).generate_samples(&prompt, &params).unwrap();
    for (sample, output) in (0..).zip(outputs) {
        let expected = alone(std::slice::from_ref(&prompt), &sampled(20 + sample, 25)).remove(0);
        assert_eq!(bits(&output.unwrap()), bits(&expected));
    }
}

#[test]
fn a_sliding_window_in_a_small_pool_equals_one_in_a_large_pool() {
    let mut descriptor = tiny_llama();
    for layer in &mut descriptor.layers {
        layer.attention_mut().window = Some(24);
    }
    let model = TinyModel::random(descriptor, TensorType::Q8_0, 12);
    let prompts = prompts(6);
    let outputs = |n_pages| {
        let engine = Engine::start(executor(&model, n_pages, 2), EngineConfig::default());
        assert_eq!(engine.limits().kv_window, Some(24));
        let outputs = engine.batch_generate(&prompts, &sampled(9, 120)).unwrap();
        outputs
            .into_iter()
            .map(|output| output.unwrap().generated)
            .collect::<Vec<_>>()
    };
    // A sequence of 140 tokens would need nine pages if none were given back.
    assert_eq!(outputs(5), outputs(100));
}

#[test]
fn a_request_whose_logits_are_not_finite_fails_alone() {
    let mut model = tiny_model();
    let n_embd = model.descriptor.n_embd;
    let mut embedding: Vec<f32> = (0..model.descriptor.n_vocab * n_embd)
        .map(|i| (i % 13) as f32 - 6.0)
        .collect();
    embedding[5 * n_embd] = f32::NAN;
    model.set("token_embd.weight", &embedding);
    let engine = Engine::start(executor(&model, 16, 2), EngineConfig::default());
    let params = GenerateParams {
        sampling: SamplingParams {
            logit_bias: vec![(5, f32::NEG_INFINITY)],
            ..SamplingParams::default()
        },
        ..greedy(8)
    };
    let good = vec![4; 20];
    let expected = engine.generate(&good, &params).unwrap();
    // The bad prompt fills whole pages, which must not be found by the next request of the same prompt.
    let prompts = [good.clone(), vec![5; 40], good];
    for _round in 0..2 {
        let outputs = engine.batch_generate(&prompts, &params).unwrap();
        let error = outputs[1].as_ref().unwrap_err();
        assert_eq!(error.to_string(), "the model produced logits that are not finite");
        for output in [&outputs[0], &outputs[2]] {
            assert_eq!(output.as_ref().unwrap().tokens, expected.tokens);
        }
    }
    assert_eq!(engine.stats().n_pages_in_use, 0);
}
