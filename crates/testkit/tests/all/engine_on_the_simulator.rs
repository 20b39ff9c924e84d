//! The engine over the CUDA backend on the simulated device: the shipped kernels, interpreted, batched by the scheduler.
//!
//! Kernels for few rows and for many add the terms of a product in different orders, so a batch does not always have the bits
//! of a sequence alone. If the order is the same, bits are compared; otherwise tokens are, and two tokens may replace each
//! other only if the sequence alone had them as equally likely, within the tolerance.

use tokenmill_backend::{Executor, KvType, SamplingParams};
use tokenmill_cuda_exec::CudaBackend;
use tokenmill_gguf::TensorType;
use tokenmill_model::ModelOptions;
use tokenmill_sched::{Engine, EngineConfig, GenerateParams, Output, Speculation};
use tokenmill_sim_driver::{SimOptions, Simulator};
use tokenmill_testkit::{Random, TinyModel, engines, sizes, tiny_llama};

/// Largest number of rows for which the kernels of few rows are used.
const FEW_ROWS: usize = 8;

/// Log-probabilities this close count as equal: f32 sums of some hundred terms in another order, of numbers of size 10, through
/// the layer and an f16 store whose last bit may round the other way (one part in 2,000 of a value).
const TOLERANCE: f32 = 0.02;

/// One layer, for every instruction is interpreted.
fn model() -> TinyModel {
    let mut descriptor = tiny_llama();
    descriptor.layers.truncate(1);
    TinyModel::random(descriptor, TensorType::F16, 11)
}

fn options() -> ModelOptions {
    ModelOptions {
        n_ctx: Some(64),
        max_batch_tokens: 64,
        max_batch_seqs: 33,
        max_logit_rows: 33,
        n_pages: Some(33 * 4),
        kv_type: KvType::F16,
        ..ModelOptions::default()
    }
}

fn executor(model: &TinyModel, options: &ModelOptions, uses_graphs: bool) -> impl Executor + Send + 'static {
    let backend = engines::gpu();
    let backend = backend.with_graphs(uses_graphs);
    engines::tiny(model, backend, options)
}

/// Starts an engine as the product does, on the simulated device.
fn with_cache(options: &ModelOptions) -> Engine {
    Engine::start(executor(&model(), options, true), EngineConfig::default())
}

/// Returns the CPU's tokens for each prompt alone.
fn on_cpu(prompts: &[Vec<u32>], params: &GenerateParams, n_ctx: usize) -> Vec<Output> {
    let model = model();
    let backend = engines::cpu(1);
    let options = ModelOptions {
        n_ctx: Some(n_ctx),
        n_pages: None,
        ..options()
    };
    let executor = engines::tiny(&model, backend, &options);
    let config = EngineConfig {
        uses_prefix_cache: false,
        ..EngineConfig::default()
    };
    alone(&Engine::start(executor, config), prompts, params)
}

fn engine(steps_in_flight: usize, uses_graphs: bool) -> Engine {
    let config = EngineConfig {
        steps_in_flight: Some(steps_in_flight),
        uses_prefix_cache: false,
        ..EngineConfig::default()
    };
    Engine::start(executor(&model(), &options(), uses_graphs), config)
}

fn greedy(max_tokens: usize, stop_tokens: Vec<u32>) -> GenerateParams {
    GenerateParams {
        sampling: SamplingParams {
            n_logprobs: Some(2),
            ..SamplingParams::default()
        },
        max_tokens: Some(max_tokens),
        stop_tokens,
        ..GenerateParams::default()
    }
}

fn prompts(n: usize, max_len: usize) -> Vec<Vec<u32>> {
    let n_vocab = tiny_llama().n_vocab;
    let mut random = Random::new(5);
    (0..n)
        .map(|_| {
            let len = 1 + random.below(max_len);
            (0..len).map(|_| random.below(n_vocab) as u32).collect()
        })
        .collect()
}

fn alone(engine: &Engine, prompts: &[Vec<u32>], params: &GenerateParams) -> Vec<Output> {
    prompts
        .iter()
        .map(|prompt| engine.generate(prompt, params).unwrap())
        .collect()
}

/// Tokens with the bits of their log-probabilities.
fn bits(output: &Output) -> Vec<(u32, u32)> {
    let of_token = |token: &tokenmill_sched::Token| (token.id, token.logprob.unwrap_or_default().to_bits());
    output.generated.iter().map(of_token).collect()
}

/// Compares with the sequence alone. Returns whether they diverge at a tie.
fn parts_at_a_tie(found: &Output, alone: &Output) -> bool {
    let both = found.generated.iter().zip(&alone.generated);
    let parting = both.clone().position(|(found, alone)| found.id != alone.id);
    let n_common = parting.unwrap_or(found.generated.len().min(alone.generated.len()));
    for (found, alone) in both.take(n_common) {
        let (found, alone) = (found.logprob.unwrap(), alone.logprob.unwrap());
        assert!((found - alone).abs() <= TOLERANCE, "{found} {alone}");
    }
    // One of them may have ended at a position where the other has one of two equally likely tokens.
    let has_parted = parting.is_some() || found.generated.len() != alone.generated.len();
    if has_parted {
        let at = &alone.generated.get(n_common).expect("the one alone goes on").top;
        assert!(at[0].logprob - at[1].logprob <= TOLERANCE, "{at:?}");
    }
    has_parted
}

/// Checks that at most one of the sequences diverges from its tokens alone, and only at a tie.
fn check_ties(found: &[Output], expected: &[Output]) {
    let pairs = found.iter().zip(expected);
    let n_parted = pairs
        .filter(|(found, alone)| parts_at_a_tie(found, alone))
        .count();
    let n_all = found.len();
    assert!(n_parted <= 1, "{n_parted} of {n_all} sequences part at ties");
}

#[test]
fn batched_greedy_equals_single_for_every_size_up_to_33_with_ragged_lengths_and_staggered_ends() {
    const N_TOKENS: usize = 4;
    let engine = engine(2, true);
    let prompts = prompts(33, 3);
    let free = alone(&engine, &prompts[..1], &greedy(N_TOKENS, Vec::new()));
    // A token that some of them generate, so that they end at different steps.
    let stop = free[0].generated[2].id;
    let params = greedy(N_TOKENS, vec![stop]);
    let single = alone(&engine, &prompts, &params);
    assert!(single[0].generated.len() <= 2, "the first stops early");
    assert!(
        single.iter().any(|output| output.generated.len() == N_TOKENS),
        "and others do not"
    );
    let (mut n_compared, mut n_ties) = (0, 0);
    // The limits of the sizes that steps are padded to.
    let edges = [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33];
    for n in sizes("prompts of a batch", prompts.len(), &edges) {
        let outputs = engine.batch_generate(&prompts[..n], &params).unwrap();
        for (found, single) in outputs.into_iter().zip(&single) {
            n_compared += 1;
            n_ties += usize::from(parts_at_a_tie(&found.unwrap(), single));
        }
    }
    assert!(
        n_ties * 50 <= n_compared,
        "{n_ties} of {n_compared} part at a tie"
    );
}

#[test]
fn few_rows_are_computed_as_one_row_is_to_the_bit() {
    let engine = engine(1, true);
    // One token each, so that no step has more rows than sequences.
    let prompts: Vec<Vec<u32>> = (0..FEW_ROWS as u32).map(|own| vec![own * 11 % 96]).collect();
    let params = greedy(5, Vec::new());
    let single = alone(&engine, &prompts, &params);
    for n in 1..=FEW_ROWS {
        let outputs = engine.batch_generate(&prompts[..n], &params).unwrap();
        for (found, single) in outputs.into_iter().zip(&single) {
            assert_eq!(bits(&found.unwrap()), bits(single), "of {n}");
        }
    }
}

#[test]
fn guesses_change_no_token_and_come_out() {
    let phrase = [3, 8, 21, 40];
    let prompts: Vec<Vec<u32>> = (0..3)
        .map(|first| (0..10).map(|at| phrase[(first + at) % 4]).collect())
        .collect();
    let mut params = greedy(24, Vec::new());
    // A text of four words, in which many drafts are right and some are wrong.
    params.sampling.logit_bias = phrase.map(|id| (id, 3.0)).to_vec();
    let start = |speculation, steps_in_flight| {
        let config = EngineConfig {
            speculation,
            steps_in_flight,
            ..EngineConfig::default()
        };
        Engine::start(executor(&model(), &options(), true), config)
    };
    let expected = alone(&start(Speculation::Off, None), &prompts, &params);
    for steps_in_flight in [None, Some(1)] {
        let engine = start(Speculation::Ngram { max_draft: 5 }, steps_in_flight);
        let single = alone(&engine, &prompts, &params);
        let together: Vec<Output> = (engine.batch_generate(&prompts, &params).unwrap().into_iter())
            .map(Result::unwrap)
            .collect();
        for found in [single, together] {
            check_ties(&found, &expected);
        }
        let drafts = engine.stats().scheduler.drafts;
        eprintln!("{steps_in_flight:?}: {drafts:?}");
        assert!(drafts.accepted_tokens >= 30, "{drafts:?}");
        assert!(drafts.draft_tokens > drafts.accepted_tokens, "{drafts:?}");
    }
    // Rows that were not measured yet count as cheap, so the engine drafts at least once even when times decide.
    let engine = start(Speculation::Auto { max_draft: 5 }, None);
    check_ties(&alone(&engine, &prompts, &params), &expected);
    let drafts = engine.stats().scheduler.drafts;
    eprintln!("auto: {drafts:?}");
    assert!(drafts.accepted_tokens >= 1, "{drafts:?}");
}

#[test]
fn a_draft_model_and_a_layer_guess_on_the_device_of_their_model() {
    let prompts = prompts(2, 6);
    let params = greedy(12, Vec::new());
    let expected = alone(&engine(2, true), &prompts, &params);
    let layer = || {
        let mut descriptor = tiny_llama();
        descriptor.layers.truncate(1);
        descriptor.reads_hidden = true;
        TinyModel::random(descriptor, TensorType::F16, 12)
    };
    for (speculation, guesser) in [
        (Speculation::Draft { max_draft: 3 }, model()),
        (Speculation::Mtp { max_draft: 2 }, layer()),
    ] {
        let device = Simulator::new(&SimOptions::default()).device();
        let on_device = |model: &TinyModel| {
            let backend = CudaBackend::new(device.clone()).expect("the simulator loads the kernels");
            engines::tiny(model, backend, &options())
        };
        let config = EngineConfig {
            speculation,
            ..EngineConfig::default()
        };
        let engine = Engine::start_with_draft(on_device(&model()), on_device(&guesser), config);
        let together = engine.batch_generate(&prompts, &params).unwrap();
        for (found, alone) in together.into_iter().zip(&expected) {
            assert!(!parts_at_a_tie(&found.unwrap(), alone), "the seed has no tie");
        }
        let stats = engine.stats();
        assert!(!stats.has_draft_failed && stats.failed_steps == 0, "{stats:?}");
        let drafts = stats.scheduler.model_drafts;
        assert!(drafts.draft_tokens > 0, "{speculation:?}: {drafts:?}");
        if let Speculation::Draft { .. } = speculation {
            assert!(
                drafts.accepted_tokens * 10 >= drafts.draft_tokens * 9,
                "{drafts:?}"
            );
        }
    }
}

#[test]
fn replayed_steps_equal_eager_steps_to_the_bit() {
    let prompts = prompts(5, 7);
    let params = greedy(5, Vec::new());
    let [replayed, eager] =
        [true, false].map(|uses_graphs| alone(&engine(2, uses_graphs), &prompts, &params));
    for (replayed, eager) in replayed.iter().zip(&eager) {
        assert_eq!(bits(replayed), bits(eager));
    }
}

#[test]
fn a_context_beyond_600_tokens_continues_as_on_the_cpu() {
    const N_CTX: usize = 656;
    let options = ModelOptions {
        n_ctx: Some(N_CTX),
        max_batch_tokens: 256,
        n_pages: Some(2 * N_CTX / 16),
        ..options()
    };
    let mut random = Random::new(9);
    let n_vocab = tiny_llama().n_vocab;
    let prompt: Vec<u32> = (0..615).map(|_| random.below(n_vocab) as u32).collect();
    let params = greedy(6, Vec::new());
    let engine = with_cache(&options);
    let expected = on_cpu(std::slice::from_ref(&prompt), &params, N_CTX).remove(0);
    let first = engine.generate(&prompt, &params).unwrap();
    assert_eq!(first.usage.cached_tokens, 0);
    assert!(!parts_at_a_tie(&first, &expected), "the seed has no tie");
    // The next turn of the conversation finds all whole pages of the first.
    let longer = [&first.tokens[..], &prompt[..9]].concat();
    let expected = on_cpu(std::slice::from_ref(&longer), &params, N_CTX).remove(0);
    let second = engine.generate(&longer, &params).unwrap();
    assert_eq!(second.usage.cached_tokens, 608);
    assert!(!parts_at_a_tie(&second, &expected), "the seed has no tie");
}

#[test]
fn preemption_and_the_host_tier_change_no_token() {
    let options = ModelOptions {
        n_pages: Some(7),
        n_host_pages: 16,
        ..options()
    };
    let params = greedy(24, Vec::new());
    let prompts: Vec<Vec<u32>> = prompts(6, 3)
        .into_iter()
        .map(|own| [&[7; 16][..], &own].concat())
        .collect();
    let expected = on_cpu(&prompts, &params, 64);
    let engine = with_cache(&options);
    let (mut n_ties, mut n_outputs) = (0, 0);
    // The pages that are found depend on the steps in which the prompts arrive.
    for _ in 0..10 {
        let outputs = engine.batch_generate(&prompts, &params).unwrap();
        n_outputs += outputs.len();
        for (found, alone) in outputs.into_iter().zip(&expected) {
            n_ties += usize::from(parts_at_a_tie(&found.unwrap(), alone));
        }
        let stats = engine.stats();
        if n_outputs > prompts.len() && stats.scheduler.preemptions > 0 && stats.pool.host_hits > 0 {
            break;
        }
    }
    let stats = engine.stats();
    assert!(
        stats.scheduler.preemptions > 0 && stats.pool.hits > 0 && stats.pool.host_hits > 0,
        "{stats:?}"
    );
    assert_eq!(stats.failed_steps, 0);
    assert!(6 * n_ties <= n_outputs, "{n_ties} of {n_outputs} part at a tie");
}
