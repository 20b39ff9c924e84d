//! The engine over the CUDA backend on the simulated device: the shipped kernels, interpreted, batched by the scheduler.
//!
//! Kernels for few rows and for many add the terms of a product in different orders, so a batch is not bound to the bits of
//! a sequence alone. Where the order is the same, bits are compared; elsewhere tokens are, and two tokens may be taken
//! for each other only where the sequence alone held them for equally likely, within the tolerance.

use tokenmill_backend::{Executor, KvType, SamplingParams};
use tokenmill_cuda_exec::CudaBackend;
use tokenmill_gguf::TensorType;
use tokenmill_model::{ModelOptions, build};
use tokenmill_sched::{Engine, EngineConfig, GenerateParams, Output};
use tokenmill_sim_driver::{SimOptions, Simulator};
use tokenmill_testkit::{Random, TinyModel, tiny_llama};

/// Largest number of rows for which the kernels of few rows are taken.
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

fn executor(model: &TinyModel, uses_graphs: bool) -> impl Executor + Send + 'static {
    let options = ModelOptions {
        n_ctx: Some(64),
        max_batch_tokens: 64,
        max_batch_seqs: 33,
        max_logit_rows: 33,
        n_pages: Some(33 * 4),
        kv_type: KvType::F16,
        ..ModelOptions::default()
    };
    let device = Simulator::new(&SimOptions::default()).device();
    let backend = CudaBackend::new(device).expect("the simulator loads the kernels");
    let backend = backend.with_graphs(uses_graphs);
    build(&model.descriptor, model, backend, &options, &mut |_| {}).unwrap()
}

fn engine(steps_in_flight: usize, uses_graphs: bool) -> Engine {
    let config = EngineConfig {
        steps_in_flight: Some(steps_in_flight),
        uses_prefix_cache: false,
        ..EngineConfig::default()
    };
    Engine::start(executor(&model(), uses_graphs), config)
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

/// Compares with the sequence alone. Returns whether they part at a tie.
fn parts_at_a_tie(found: &Output, alone: &Output) -> bool {
    let both = found.generated.iter().zip(&alone.generated);
    let parting = both.clone().position(|(found, alone)| found.id != alone.id);
    let n_common = parting.unwrap_or(found.generated.len().min(alone.generated.len()));
    for (found, alone) in both.take(n_common) {
        let (found, alone) = (found.logprob.unwrap(), alone.logprob.unwrap());
        assert!((found - alone).abs() <= TOLERANCE, "{found} {alone}");
    }
    // One of them may have ended where the other has one of two equally likely tokens.
    let has_parted = parting.is_some() || found.generated.len() != alone.generated.len();
    if has_parted {
        let at = &alone.generated.get(n_common).expect("the one alone goes on").top;
        assert!(at[0].logprob - at[1].logprob <= TOLERANCE, "{at:?}");
    }
    has_parted
}

#[test]
fn batched_greedy_equals_single_for_every_size_up_to_33_with_ragged_lengths_and_staggered_ends() {
    const N_TOKENS: usize = 4;
    let engine = engine(2, true);
    let prompts = prompts(33, 3);
    let free = alone(&engine, &prompts, &greedy(N_TOKENS, Vec::new()));
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
    for n in 1..=prompts.len() {
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
fn replayed_steps_equal_eager_steps_to_the_bit() {
    let prompts = prompts(5, 7);
    let params = greedy(5, Vec::new());
    let [replayed, eager] =
        [true, false].map(|uses_graphs| alone(&engine(2, uses_graphs), &prompts, &params));
    for (replayed, eager) in replayed.iter().zip(&eager) {
        assert_eq!(bits(replayed), bits(eager));
    }
}
