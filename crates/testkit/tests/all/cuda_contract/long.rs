//! Tests captured steps over contexts of several splits with f16 keys and values, as models have after some hundred tokens.
//!
//! The other scenes have one split of 64 positions in f32, which uses another kernel.

use tokenmill_backend::{KvType, PAGE_TOKENS};
use tokenmill_cuda_exec::CudaBackend;
use tokenmill_gguf::TensorType;
use tokenmill_model::ModelOptions;
use tokenmill_testkit::Random;

use super::scene::{OnGpu, Sequence, advance, assert_same_bits, options};

const N_CTX: usize = 512;
/// Prompt lengths: six splits, six splits of which the last is full, and one split with a partly filled page.
const PROMPTS: [usize; 3] = [330, 383, 50];
const TYPE: TensorType = TensorType::Q8_0;

fn long() -> ModelOptions {
    ModelOptions {
        n_ctx: Some(N_CTX),
        n_pages: Some(PROMPTS.len() * N_CTX / PAGE_TOKENS),
        kv_type: KvType::F16,
        ..options()
    }
}

fn gpu(change: impl FnOnce(CudaBackend) -> CudaBackend) -> OnGpu {
    OnGpu::with(TYPE, &long(), change)
}

fn sequences() -> Vec<Sequence> {
    let mut random = Random::new(23);
    let n_pages = N_CTX / PAGE_TOKENS;
    (PROMPTS.iter().enumerate())
        .map(|(idx, &n_tokens)| Sequence {
            tokens: (0..n_tokens).map(|_| random.below(96) as u32).collect(),
            n_stored: 0,
            pages: ((idx * n_pages) as u32..((idx + 1) * n_pages) as u32).collect(),
        })
        .collect()
}

/// Computes the logits of the prompts and of five decode steps. The second step has one split more than the first, and the last has one
/// sequence less.
fn logits(gpu: &mut OnGpu) -> Vec<Vec<f32>> {
    let mut sequences = sequences();
    let mut all = Vec::new();
    for step in 0..6 {
        let n = if step == 5 { 2 } else { 3 };
        let rows = advance(&mut gpu.executor, sequences.iter_mut().take(n).collect());
        all.extend(rows.expect("a step on a GPU without a fault"));
    }
    all
}

#[test]
fn replays_over_several_splits_have_the_bits_of_eager_steps() {
    let mut eager = gpu(|backend| backend.with_graphs(false));
    let expected = logits(&mut eager);
    assert_eq!(eager.simulator.graph_counts(), (0, 0));
    let mut captured = gpu(|backend| backend);
    assert_same_bits("captured and replayed", &expected, &logits(&mut captured));
    let (n_captured, n_replayed) = captured.simulator.graph_counts();
    assert!(n_captured >= 2 && n_replayed >= 4, "{n_captured}, {n_replayed}");
    // The kernel for f16 keys and values, with splits that other thread blocks sum.
    let counters = captured.simulator.counters();
    let (n_launches, _) = counters["turn_attention_f16_d64"];
    assert!(n_launches > 0, "{:?}", counters.keys());
}
