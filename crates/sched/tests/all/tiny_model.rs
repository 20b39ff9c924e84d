//! The engine on a quantized network on the CPU: batches of every size, and a window in fewer pages than a sequence fills.
//!
//! `memory_kinds` has the claims that hold for every kind of memory.

use tokenmill_backend::{Executor, SamplingParams};
use tokenmill_gguf::TensorType;
use tokenmill_model::ModelOptions;
use tokenmill_sched::{Engine, EngineConfig, GenerateParams};
use tokenmill_testkit::{Random, TinyModel, engines, generate, tiny_llama};

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

fn greedy(max_tokens: usize) -> GenerateParams {
    GenerateParams {
        max_tokens: Some(max_tokens),
        ..GenerateParams::default()
    }
}

/// Filters, penalties and log-probabilities.
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

#[test]
fn batched_greedy_equals_single_for_every_size_up_to_33_with_ragged_lengths_and_staggered_ends() {
    let model = TinyModel::random(tiny_llama(), TensorType::Q8_0, 11);
    let batched = Engine::start(executor(&model, 33 * 8, 2), EngineConfig::default());
    let mut single = executor(&model, 8, 1);
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
            .flat_map(|output| output.unwrap().generated)
            .map(|token| (token.id, token.logprob, token.top))
            .collect::<Vec<_>>()
    };
    // A sequence of 140 tokens would need nine pages if none were given back.
    assert_eq!(outputs(5), outputs(100));
}
