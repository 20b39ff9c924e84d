//! A layer that drafts further tokens: the hidden states that it reads reach captured steps, and their memory is planned.

use tokenmill_backend::{Executor, ForwardBatch, RowOutput};
use tokenmill_gguf::TensorType;
use tokenmill_testkit::{
    Random, TinyModel, engines,
    generate::{ids, run},
    tiny_llama,
};

use super::scene::{OnGpu, options};

fn layer() -> TinyModel {
    let mut descriptor = tiny_llama();
    descriptor.layers.truncate(1);
    descriptor.reads_hidden = true;
    TinyModel::random(descriptor, TensorType::F32, 48)
}

/// Returns the logits after a part of a text and after each of four further tokens, for three sequences. Each token has its own
/// state.
fn logits(executor: &mut dyn Executor) -> Vec<Vec<f32>> {
    let mut random = Random::new(3);
    let n_embd = executor.limits().n_embd;
    let mut n_stored = [0, 0, 0];
    let mut all = Vec::new();
    for step in 0..5 {
        let mut batch = ForwardBatch::default();
        for (seq_idx, n_stored) in n_stored.iter_mut().enumerate() {
            let n_new = if step == 0 { 2 + seq_idx } else { 1 };
            let tokens: Vec<u32> = (0..n_new).map(|_| random.below(96) as u32).collect();
            let first_page = 2 * seq_idx as u32;
            batch.push_sequence(ids(&tokens), *n_stored as u32, &[first_page, first_page + 1]);
            batch.want_last(RowOutput::Logits);
            *n_stored += n_new;
        }
        let states = (0..batch.n_tokens() * n_embd).map(|_| random.below(2000) as f32 / 1000.0 - 1.0);
        batch.hidden_inputs.extend(states);
        all.push(run(executor, &batch).unwrap().logits);
    }
    all
}

#[test]
fn hidden_states_reach_captured_steps() {
    let model = layer();
    let mut cpu = engines::tiny(&model, engines::cpu(1), &options());
    let expected = logits(&mut cpu);
    let mut gpu = OnGpu::of(&model, &options(), |backend| backend);
    let [reserved, taken] = gpu.executor.backend().device().reserved_and_taken_bytes();
    assert_eq!(taken, reserved);
    let found = logits(&mut gpu.executor);
    assert_eq!(
        gpu.simulator.graph_counts(),
        (1, 4),
        "steps of three are padded to four"
    );
    for (step, (expected, found)) in expected.iter().zip(&found).enumerate() {
        for (a, b) in expected.iter().zip(found) {
            assert!((a - b).abs() <= 1e-3, "step {step}: {b} instead of {a}");
        }
    }
}
