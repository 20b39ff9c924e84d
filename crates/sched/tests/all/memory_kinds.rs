//! Every kind of memory of a sequence on a real network: keys and values, windows, latent rows, recurrent states.
//!
//! Two claims for each kind. A request gives the same bits whatever else runs, however its prompt is cut, on any number of
//! threads, after a prefix hit, a restored snapshot or a preemption. And a conversation computes no token again that the cache
//! holds: of each turn's prompt, only the tokens after the last whole page that was computed before.

use tokenmill_backend::{Executor, KvType, SamplingParams};
use tokenmill_gguf::TensorType;
use tokenmill_model::{Descriptor, ModelOptions, WindowPages};
use tokenmill_sched::{Engine, EngineConfig, EngineStats, GenerateParams, Output, Token};
use tokenmill_testkit::{MEMORY_KINDS, Random, TinyModel, engines, tiny_llama};

const PAGE: usize = 16;

/// Room for nine sequences, or for as many as a test says.
fn ample() -> ModelOptions {
    ModelOptions {
        n_ctx: Some(1024),
        max_batch_tokens: 64,
        max_batch_seqs: 9,
        max_logit_rows: 9,
        n_pages: Some(160),
        window_pages: WindowPages::Own,
        ..ModelOptions::default()
    }
}

fn model(change: fn(&mut Descriptor)) -> TinyModel {
    let mut descriptor = tiny_llama();
    change(&mut descriptor);
    TinyModel::random(descriptor, TensorType::F32, 31)
}

/// Each kind with its model, and the first kind once more with quantized weights.
fn models() -> impl Iterator<Item = (u64, &'static str, TinyModel)> {
    let kinds = MEMORY_KINDS.iter().map(|(name, change)| (*name, model(*change)));
    let quantized = TinyModel::random(tiny_llama(), TensorType::Q8_0, 11);
    let all = kinds.chain([("quantized weights", quantized)]);
    (0..).zip(all).map(|(kind, (name, model))| (kind, name, model))
}

fn executor(
    model: &TinyModel,
    options: &ModelOptions,
    n_threads: usize,
) -> impl Executor + Send + use<> + 'static {
    engines::tiny(model, engines::cpu(n_threads), options)
}

fn has_states(model: &TinyModel) -> bool {
    model.descriptor.state_layers().next().is_some()
}

/// Filters, penalties and log-probabilities, so that every part of a row must agree.
fn sampled(seed: u64, max_tokens: usize) -> GenerateParams {
    GenerateParams {
        max_tokens: Some(max_tokens),
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
        ..GenerateParams::default()
    }
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

fn random_tokens(random: &mut Random, n: usize) -> Vec<u32> {
    (0..n)
        .map(|_| random.below(tiny_llama().n_vocab) as u32)
        .collect()
}

/// Prompts of 1 to 130 tokens, most of which begin alike.
fn prompts(random: &mut Random, n: usize) -> Vec<Vec<u32>> {
    let shared = random_tokens(random, 90);
    (0..n)
        .map(|_| {
            let n_shared = random.below(shared.len() + 1);
            let n_own = 1 + random.below(40);
            [&shared[..n_shared], &random_tokens(random, n_own)].concat()
        })
        .collect()
}

/// Returns the output of each prompt in an engine of its own that computes it in one piece.
fn alone(model: &TinyModel, prompts: &[Vec<u32>], params: &GenerateParams) -> Vec<Vec<u32>> {
    let options = ModelOptions {
        max_batch_seqs: 1,
        ..ample()
    };
    let config = EngineConfig {
        uses_prefix_cache: false,
        max_running: 1,
        max_step_tokens: 64,
        ..EngineConfig::default()
    };
    let engine = Engine::start(executor(model, &options, 1), config);
    (prompts.iter())
        .map(|prompt| bits(&engine.generate(prompt, params).unwrap()))
        .collect()
}

#[track_caller]
fn assert_same(
    name: &str,
    engine: &Engine,
    prompts: &[Vec<u32>],
    params: &GenerateParams,
    expected: &[Vec<u32>],
) -> EngineStats {
    let outputs = engine.batch_generate(prompts, params).unwrap();
    for (idx, (output, expected)) in outputs.into_iter().zip(expected).enumerate() {
        assert_eq!(bits(&output.unwrap()), *expected, "{name}, prompt {idx}");
    }
    engine.stats()
}

#[test]
fn company_chunks_threads_and_reuse_change_no_bit() {
    for (kind, name, model) in models() {
        let mut random = Random::new(kind);
        let prompts = prompts(&mut random, 7);
        let params = sampled(kind, 20);
        let expected = alone(&model, &prompts, &params);
        for (n_threads, max_step_tokens, max_running, steps_in_flight) in
            [(2, 64, 7, 1), (1, 64, 3, 2), (3, 13, 5, 1), (2, 1, 2, 2)]
        {
            let config = EngineConfig {
                max_step_tokens,
                max_running,
                steps_in_flight: Some(steps_in_flight),
                ..EngineConfig::default()
            };
            let engine = Engine::start(executor(&model, &ample(), n_threads), config);
            // Once with a cold prefix cache, once with a warm one.
            let cold = assert_same(name, &engine, &prompts, &params, &expected);
            let warm = assert_same(name, &engine, &prompts, &params, &expected);
            assert!(
                warm.scheduler.cached_tokens > cold.scheduler.cached_tokens,
                "{name}: {warm:?}"
            );
        }
    }
}

/// Heads of 32 columns, so that keys and values can be stored in blocks.
fn heads_of_32(descriptor: &mut Descriptor) {
    descriptor.n_embd = 128;
    for rope in &mut descriptor.ropes {
        rope.head_dim = 32;
        rope.n_dims = 32;
    }
    for layer in &mut descriptor.layers {
        layer.attention_mut().head_dim_k = 32;
        layer.attention_mut().head_dim_v = 32;
    }
}

#[test]
fn keys_and_values_in_blocks_change_no_bit_with_their_company_either() {
    let model = model(heads_of_32);
    let mut random = Random::new(7);
    let prompts = prompts(&mut random, 7);
    let params = sampled(7, 60);
    let mut all = Vec::new();
    for (key_type, value_type) in [
        (KvType::Q4_0, KvType::Q4_0),
        (KvType::Q8_0, KvType::Q4_0),
        (KvType::Q4_0, KvType::F16),
        (KvType::E4M3, KvType::E4M3),
        (KvType::F16, KvType::E4M3),
        (KvType::F16, KvType::F16),
    ] {
        let options = ModelOptions {
            kv_type: key_type,
            kv_value_type: Some(value_type),
            ..ample()
        };
        let engine = |options: &ModelOptions, n_threads, max_running, max_step_tokens, uses_prefix_cache| {
            let config = EngineConfig {
                max_running,
                max_step_tokens,
                uses_prefix_cache,
                ..EngineConfig::default()
            };
            Engine::start(executor(&model, options, n_threads), config)
        };
        let alone = engine(&options, 1, 1, 64, false);
        let expected: Vec<_> = (prompts.iter())
            .map(|prompt| bits(&alone.generate(prompt, &params).unwrap()))
            .collect();
        let name = format!("{key_type}, {value_type}");
        for (n_threads, max_running, max_step_tokens) in [(2, 7, 64), (3, 5, 13), (1, 2, 1)] {
            let engine = engine(&options, n_threads, max_running, max_step_tokens, true);
            let cold = assert_same(&name, &engine, &prompts, &params, &expected);
            let warm = assert_same(&name, &engine, &prompts, &params, &expected);
            assert!(
                warm.scheduler.cached_tokens > cold.scheduler.cached_tokens,
                "{name}"
            );
        }
        let crowded = ModelOptions {
            n_pages: Some(14),
            n_host_pages: 8,
            ..options
        };
        let stats = assert_same(
            &name,
            &engine(&crowded, 2, 9, 64, true),
            &prompts,
            &params,
            &expected,
        );
        assert!(stats.pool.downloads > 0, "{name}: {stats:?}");
        all.push(expected);
    }
    all.dedup();
    assert_eq!(all.len(), 6, "each type rounds in its own way");
}

#[test]
fn preemption_and_the_host_tier_change_no_bit() {
    let mut n_host_hits = 0;
    for (kind, name, model) in models() {
        let mut random = Random::new(100 + kind);
        let prompts = prompts(&mut random, 6);
        let params = sampled(kind, 60);
        let expected = alone(&model, &prompts, &params);
        // The longest prompt fits, and not much more.
        let options = ModelOptions {
            n_pages: Some(14),
            n_host_pages: 8,
            n_states: has_states(&model).then_some(11),
            ..ample()
        };
        let engine = Engine::start(executor(&model, &options, 2), EngineConfig::default());
        let stats = assert_same(name, &engine, &prompts, &params, &expected);
        let has_windows_alone = model.descriptor.kv_window().is_some();
        assert!(
            stats.scheduler.preemptions > 0 || has_windows_alone,
            "{name}: {stats:?}"
        );
        assert!(stats.pool.downloads > 0, "{name}: {stats:?}");
        assert_eq!(
            (stats.n_pages_in_use, stats.n_window_pages_in_use),
            (0, 0),
            "{name}"
        );
        n_host_hits += stats.pool.host_hits;
    }
    assert!(n_host_hits > 0, "no page came back from the host tier");
}

#[test]
fn pages_of_windows_do_not_grow_with_the_context() {
    for (name, change) in MEMORY_KINDS.iter().filter(|(name, _)| name.contains("window")) {
        let model = model(*change);
        let widest = model.descriptor.kv_windows().into_iter().flatten().max().unwrap();
        let load = |n_ctx: usize| {
            let options = ModelOptions {
                n_ctx: Some(n_ctx),
                n_pages: Some(n_ctx.div_ceil(PAGE)),
                max_batch_seqs: 1,
                ..ample()
            };
            Engine::start(executor(&model, &options, 2), EngineConfig::default())
        };
        let engine = load(32_768);
        let limits = engine.limits();
        let n_pages = (limits.window_group).map_or(limits.n_pages, |group| group.n_pages);
        // The window and two pages, as much again for the cache, and two steps of 64 tokens.
        assert_eq!(n_pages, 2 * (widest.div_ceil(PAGE) + 2) + 2 * 4, "{name}");
        assert_eq!(load(4096).limits().window_group, limits.window_group, "{name}");
        if let Some(group) = limits.window_group {
            assert_eq!((limits.n_pages, group.window), (2048, widest), "{name}");
        }
        // A long sequence runs in them.
        let prompt = random_tokens(&mut Random::new(9), 900);
        let output = engine.generate(&prompt, &sampled(1, 30)).unwrap();
        assert_eq!(output.generated.len(), 30, "{name}");
    }
}

#[test]
fn two_conversations_in_turn_keep_their_windows() {
    for (kind, (name, change)) in MEMORY_KINDS.iter().enumerate() {
        let model = model(*change);
        if !name.contains("window") || has_states(&model) {
            continue;
        }
        // As many pages of windows as the model asks for: each prompt is longer than they are together.
        let options = ModelOptions {
            n_pages: None,
            max_batch_seqs: 1,
            ..ample()
        };
        let engine = Engine::start(executor(&model, &options, 2), EngineConfig::default());
        let mut random = Random::new(300 + kind as u64);
        let mut conversations = [0; 2].map(|_| (random_tokens(&mut random, 400), 0));
        for turn in 0..4 {
            for (tokens, n_held) in &mut conversations {
                let output = engine.generate(tokens, &sampled(turn, 5)).unwrap();
                let whole_pages = *n_held / PAGE * PAGE;
                assert_eq!(output.usage.cached_tokens, whole_pages, "{name}, turn {turn}");
                *n_held = output.tokens.len() - 1;
                *tokens = output.tokens;
                tokens.extend(random_tokens(&mut random, 12));
            }
        }
        let stats = engine.stats();
        assert!(
            stats.pool.evictions + stats.window_pool.evictions > 0,
            "{name}: {stats:?}"
        );
    }
}

#[test]
fn the_host_tier_has_as_many_pages_for_windows_as_for_other_layers() {
    let model = model(|descriptor| descriptor.layers[0].attention_mut().window = Some(24));
    let options = ModelOptions {
        n_host_pages: 100,
        max_batch_seqs: 1,
        ..ample()
    };
    let engine = Engine::start(executor(&model, &options, 1), EngineConfig::default());
    let limits = engine.limits();
    let of_windows = limits.window_group.unwrap();
    assert!(of_windows.n_pages < 100);
    assert_eq!((limits.n_host_pages, of_windows.n_host_pages), (100, 100));
}

#[test]
fn a_conversation_of_20_turns_computes_no_token_again_that_the_cache_holds() {
    for (kind, name, model) in models() {
        let options = ModelOptions {
            n_pages: Some(64),
            max_batch_seqs: 1,
            ..ample()
        };
        let engine = Engine::start(executor(&model, &options, 2), EngineConfig::default());
        let mut random = Random::new(200 + kind);
        let n_first = 40 + random.below(40);
        let mut tokens = random_tokens(&mut random, n_first);
        let (mut n_held, mut n_computed) = (0, 0);
        for turn in 0..20 {
            let params = sampled(turn, 1 + random.below(30));
            let n_prompt = tokens.len();
            let output = engine.generate(&tokens, &params).unwrap();
            if turn % 6 == 5 {
                let expected = alone(&model, std::slice::from_ref(&tokens), &params);
                assert_eq!(bits(&output), expected[0], "{name}, turn {turn}");
            }
            let whole_pages = n_held / PAGE * PAGE;
            assert_eq!(output.usage.cached_tokens, whole_pages, "{name}, turn {turn}");
            n_computed += n_prompt - output.usage.cached_tokens;
            // The last token sampled was never an input.
            n_held = output.tokens.len() - 1;
            tokens = output.tokens;
            let n_message = 1 + random.below(25);
            tokens.extend(random_tokens(&mut random, n_message));
        }
        let counters = engine.stats().scheduler;
        let counted = (counters.prompt_tokens - counters.cached_tokens) as usize;
        assert_eq!(counted, n_computed, "{name}");
        assert!(
            n_computed < tokens.len() + 20 * PAGE,
            "{name}: {n_computed} computed"
        );
    }
}
