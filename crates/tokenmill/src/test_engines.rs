//! Engines of tiny models with every kind of memory, for tests of sessions and prefix folders.
//!
//! Invariant: the same call makes the same model, to the bit.

use tokenmill_backend::SamplingParams;
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_gguf::TensorType;
use tokenmill_model::{Descriptor, ModelExecutor, ModelOptions, WindowPages, build};
use tokenmill_quant::CpuFeatures;
use tokenmill_sched::{GenerateParams, Output};
use tokenmill_testkit::{Random, TinyModel, tiny_llama};

/// A number in place of the one that identifies a network.
pub(crate) const IDENTITY: u128 = 77;

pub(crate) fn options(n_pages: usize) -> ModelOptions {
    ModelOptions {
        n_ctx: Some(512),
        max_batch_tokens: 64,
        max_batch_seqs: 3,
        max_logit_rows: 3,
        n_pages: Some(n_pages),
        window_pages: WindowPages::Own,
        ..ModelOptions::default()
    }
}

pub(crate) fn model(change: fn(&mut Descriptor)) -> TinyModel {
    let mut descriptor = tiny_llama();
    change(&mut descriptor);
    TinyModel::random(descriptor, TensorType::F32, 31)
}

/// An executor of a model on two threads.
pub(crate) fn executor(model: &TinyModel, options: &ModelOptions) -> ModelExecutor {
    let backend = CpuBackend::new(Some(2), CpuFeatures::detect()).unwrap();
    build(&model.descriptor, model, backend, options, &mut |_| {}).unwrap()
}

pub(crate) fn params(max_tokens: usize) -> GenerateParams {
    GenerateParams {
        max_tokens: Some(max_tokens),
        sampling: SamplingParams {
            temperature: 0.9,
            seed: 5,
            n_logprobs: Some(1),
            ..SamplingParams::default()
        },
        ..GenerateParams::default()
    }
}

/// Tokens and log-probabilities, as bits.
pub(crate) fn bits(output: &Output) -> Vec<(u32, u32)> {
    let of_token = |token: &tokenmill_sched::Token| (token.id, token.logprob.map_or(0, f32::to_bits));
    output.generated.iter().map(of_token).collect()
}

pub(crate) fn random_tokens(seed: u64, n: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..n)
        .map(|_| random.below(tiny_llama().n_vocab) as u32)
        .collect()
}
