//! Counts the engine's allocations in decode steps besides the executor's: scheduling, batches, commits and events.

use tokenmill_backend::{PAGE_TOKENS, SamplingParams};
use tokenmill_gguf::TensorType;
use tokenmill_model::{Descriptor, ModelOptions};
use tokenmill_sched::{Engine, EngineConfig, Event, GenerateParams, Generation};
use tokenmill_testkit::{TinyModel, engines};

const N_SEQS: usize = 3;
/// Tokens of the first request before counting starts.
const N_BEFORE: usize = 40;
/// Tokens of each request while allocations are counted: several pages.
const N_COUNTED: usize = 4 * PAGE_TOKENS;
/// Tokens of all requests while allocations are counted.
pub(crate) const N_TOKENS: usize = N_SEQS * N_COUNTED;
/// Most bytes for a token. Its text and pages are kept in lists that double.
pub(crate) const MAX_BYTES_PER_TOKEN: usize = 64;

/// Counts the bytes that decode steps of [`N_SEQS`] requests allocate, over [`N_COUNTED`] tokens of each.
pub(crate) fn bytes_of_steps(descriptor: &Descriptor, sampling: &SamplingParams, n_ctx: usize) -> usize {
    let model = TinyModel::random(descriptor.clone(), TensorType::Q8_0, 5);
    let options = ModelOptions {
        n_ctx: Some(n_ctx),
        max_batch_tokens: 64,
        max_batch_seqs: N_SEQS,
        max_logit_rows: N_SEQS,
        n_pages: Some(N_SEQS * n_ctx / PAGE_TOKENS),
        ..ModelOptions::default()
    };
    let executor = engines::tiny(&model, engines::cpu(2), &options);
    let engine = Engine::start(executor, EngineConfig::default());
    let params = GenerateParams {
        sampling: sampling.clone(),
        max_tokens: Some(n_ctx - PAGE_TOKENS),
        ..GenerateParams::default()
    };
    let mut requests: Vec<Generation> = (0..N_SEQS)
        .map(|seq_idx| {
            let prompt = (0..12).map(|at| (at * 7 + seq_idx as u32) % 96).collect();
            engine.submit(prompt, params.clone()).expect("there is room")
        })
        .collect();
    take(&mut requests, N_BEFORE);
    super::counted(|| take(&mut requests, N_COUNTED))
}

/// Takes `n` tokens of each request.
fn take(requests: &mut [Generation], n: usize) {
    for _ in 0..n {
        for request in &mut *requests {
            let event = request.next().expect("the request goes on");
            assert!(matches!(event, Event::Token(_)), "{event:?}");
        }
    }
}
