//! Launches that begin before earlier ones are done: which launches, on which GPUs, and that they change nothing.

use tokenmill_cuda_exec::{CudaBackend, Launches};
use tokenmill_gguf::TensorType;
use tokenmill_model::{Descriptor, ModelOptions};
use tokenmill_sim_driver::{SimOptions, Simulator};
use tokenmill_testkit::{TinyModel, engines, tiny_experts, tiny_llama};

use super::scene::{greedy, options, sample, sequences};

/// Counts the launches of a replayed step: all, and those that may begin early. Also returns the tokens of `n_seqs` sequences
/// after three steps.
fn replayed(
    model: &TinyModel,
    n_seqs: usize,
    options: &ModelOptions,
    capability: (i32, i32),
    launches: Launches,
) -> (u64, u64, Vec<u32>) {
    let simulator = Simulator::new(&SimOptions {
        capability,
        ..SimOptions::default()
    });
    let backend = CudaBackend::new(simulator.device_with_launches(launches)).unwrap();
    let mut executor = engines::tiny(model, backend, options);
    let mut all = sequences(n_seqs);
    for _ in 0..4 {
        sample(&mut executor, all.iter_mut().collect(), &greedy()).unwrap();
    }
    let count = || -> (u64, u64) {
        let n_all = simulator.counters().values().map(|(n, _)| n).sum();
        (n_all, simulator.n_early_launches())
    };
    let before = count();
    let replays = simulator.graph_counts().1;
    sample(&mut executor, all.iter_mut().collect(), &greedy()).unwrap();
    assert_eq!(simulator.graph_counts().1, replays + 1);
    let after = count();
    let tokens = all.into_iter().flat_map(|sequence| sequence.tokens).collect();
    (after.0 - before.0, after.1 - before.1, tokens)
}

/// A network whose decode steps are one chain: all its launches but the first may begin early, on GPUs that can do it.
#[track_caller]
fn check(descriptor: Descriptor, ty: TensorType, n_seqs: usize) {
    let model = TinyModel::random(descriptor, ty, 21);
    let (n_launches, n_early, tokens) = replayed(&model, n_seqs, &options(), (9, 0), Launches::Early);
    assert_eq!(n_early, n_launches - 1, "{}", ty.name());
    let in_order = replayed(&model, n_seqs, &options(), (9, 0), Launches::InOrder);
    assert_eq!(in_order, (n_launches, 0, tokens), "{} in order", ty.name());
    // On 9.0 K-quants are multiplied by other kernels, which convert rows to f16 first. So these two are compared with each other.
    let (n_older, n_early_there, tokens) = replayed(&model, n_seqs, &options(), (8, 9), Launches::Early);
    assert!(
        n_older <= n_launches && n_early_there == 0,
        "{} on 8.9",
        ty.name()
    );
    let newer = replayed(&model, n_seqs, &options(), (12, 0), Launches::Early);
    assert_eq!(newer, (n_older, n_older - 1, tokens), "{} on 12.0", ty.name());
}

#[test]
fn the_launches_of_a_dense_network_begin_early_but_the_first() {
    for ty in [TensorType::Q4_0, TensorType::F16, TensorType::Q8_0] {
        check(tiny_llama(), ty, 4);
    }
}

#[test]
fn the_launches_of_a_network_with_experts_begin_early_but_the_first() {
    check(tiny_experts(), TensorType::Q4_0, 4);
}

#[test]
fn the_launches_of_k_quants_by_more_than_eight_rows_begin_early_but_the_first() {
    // Rows are superblocks, and heads of 32 quantize the output of attention.
    let mut descriptor = tiny_llama();
    descriptor.n_embd = 256;
    descriptor.ropes[0].head_dim = 32;
    descriptor.ropes[0].n_dims = 32;
    for layer in &mut descriptor.layers {
        let attention = layer.attention_mut();
        attention.n_heads = 8;
        attention.n_kv_heads = 4;
        attention.head_dim_k = 32;
        attention.head_dim_v = 32;
        layer.dense_mut().n_ff = 256;
    }
    // Gated bands, and strips of 16; those of Q6_K by 20 rows are low bands.
    for (ty, n_seqs) in [(TensorType::Q4_K, 12), (TensorType::Q6_K, 20)] {
        check(descriptor.clone(), ty, n_seqs);
    }
}
