//! Costs of a step: launches, copies, waits, and the memory that was planned.

use std::collections::BTreeMap;

use tokenmill_backend::{Executor as _, KvType};
use tokenmill_cuda_exec::modules::PAIRS;
use tokenmill_gguf::TensorType;
use tokenmill_model::ModelOptions;
use tokenmill_sim_driver::{SimOptions, Simulator};
use tokenmill_testkit::{TinyModel, engines, tiny_llama};

use super::scene::{OnGpu, advance, greedy, options, sample, sequences};

#[test]
fn a_replayed_step_is_one_upload_one_graph_one_copy_back_and_one_wait() {
    let mut gpu = OnGpu::new(TensorType::Q4_0);
    let mut all = sequences(4);
    for _ in 0..2 {
        sample(&mut gpu.executor, all.iter_mut().collect(), &greedy()).unwrap();
    }
    let device = gpu.executor.backend().device().clone();
    for _ in 0..3 {
        let (copies, graphs) = (gpu.simulator.copy_counts(), gpu.simulator.graph_counts());
        let (n_launches, n_waits) = (device.n_launches(), device.n_waits());
        let n_bytes = gpu.simulator.downloaded_bytes();
        sample(&mut gpu.executor, all.iter_mut().collect(), &greedy()).unwrap();
        let found = gpu.simulator.copy_counts();
        assert_eq!(
            (found.0 - copies.0, found.1 - copies.1),
            (1, 1),
            "copies up and down"
        );
        let found = gpu.simulator.graph_counts();
        assert_eq!(
            (found.0 - graphs.0, found.1 - graphs.1),
            (0, 1),
            "graphs made and replayed"
        );
        assert_eq!(
            device.n_launches() - n_launches,
            0,
            "launches outside of the graph"
        );
        assert_eq!(device.n_waits() - n_waits, 1);
        assert_eq!(
            gpu.simulator.downloaded_bytes() - n_bytes,
            4 * 4,
            "four ids come down"
        );
    }
}

/// Makes a dense llama whose matrices have type `ty`, except those named in `others`.
fn llama_of(n_layers: usize, ty: TensorType, others: &[(&str, TensorType)]) -> TinyModel {
    // Heads of 32, as attention quantizes its output in groups of 32; real ones have 64 and more. Rows are blocks of K types.
    let mut descriptor = tiny_llama();
    descriptor.n_embd = 256;
    descriptor.ropes[0].head_dim = 32;
    descriptor.ropes[0].n_dims = 32;
    let mut layer = descriptor.layers[0].clone();
    layer.attention_mut().n_heads = 8;
    layer.attention_mut().n_kv_heads = 4;
    layer.attention_mut().head_dim_k = 32;
    layer.attention_mut().head_dim_v = 32;
    layer.dense_mut().n_ff = 256;
    descriptor.layers = vec![layer; n_layers];
    let mut model = TinyModel::random(descriptor, ty, 3);
    for layer_idx in 0..n_layers {
        for (name, ty) in others {
            model.set_type(&format!("blk.{layer_idx}.{name}.weight"), *ty, 4);
        }
    }
    model
}

/// Counts how often each kernel runs in a decode step.
fn launches_of_a_step(model: &TinyModel, kv_type: KvType) -> BTreeMap<String, u64> {
    let simulator = Simulator::new(&SimOptions::default());
    let backend = engines::gpu_of(&simulator);
    let options = ModelOptions { kv_type, ..options() };
    let mut executor = engines::tiny(model, backend, &options);
    let mut all = sequences(1);
    sample(&mut executor, all.iter_mut().collect(), &greedy()).unwrap();
    let before = simulator.counters();
    sample(&mut executor, all.iter_mut().collect(), &greedy()).unwrap();
    (simulator.counters().into_iter())
        .map(|(name, (n, _))| {
            let n_before = before.get(&name).map_or(0, |(n, _)| *n);
            (name, n - n_before)
        })
        .filter(|(_, n)| *n > 0)
        .collect()
}

/// Counts how often each kernel runs in a layer of such a llama.
fn launches_of_a_layer(
    ty: TensorType,
    others: &[(&str, TensorType)],
    kv_type: KvType,
) -> BTreeMap<String, u64> {
    let with_layers = |n_layers: usize| launches_of_a_step(&llama_of(n_layers, ty, others), kv_type);
    let (two, three) = (with_layers(2), with_layers(3));
    (three.into_iter())
        .map(|(name, n)| {
            let n_before = two.get(&name).copied().unwrap_or(0);
            (name, n - n_before)
        })
        .filter(|(_, n)| *n > 0)
        .collect()
}

fn counts(of: &[(&str, u64)]) -> BTreeMap<String, u64> {
    (of.iter())
        .filter(|(_, n)| *n > 0)
        .map(|(name, n)| ((*name).to_owned(), *n))
        .collect()
}

#[test]
fn a_dense_llama_layer_is_eight_launches_and_seven_with_f16_keys() {
    // q, k and v; output; down. The norm before attention and the one before the feed-forward network, each with the addition before it.
    let products = [("add_norm_held", 2), ("matvec_gated_m1", 1), ("matvec_m1", 3)];
    let apart = counts(&[&products[..], &[("rope_kv_f32", 1), ("attention_f32_g2", 1)]].concat());
    let at_once = counts(&[&products[..], &[("turn_attention_f16_d64", 1)]].concat());
    for ty in [
        TensorType::F32,
        TensorType::F16,
        TensorType::BF16,
        TensorType::Q4_0,
    ] {
        let found = launches_of_a_layer(ty, &[], KvType::F32);
        assert_eq!(found, apart, "{}", ty.name());
    }
    let found = launches_of_a_layer(TensorType::Q4_0, &[], KvType::F16);
    assert_eq!(found, at_once);
}

#[test]
fn a_layer_of_k_quants_is_five_launches_for_one_row() {
    let expected = counts(&[
        ("matvec_normed_m1", 1),
        ("turn_attention_f16_d64", 1),
        ("matvec_add_m1", 2),
        ("matvec_gated_normed_m1", 1),
    ]);
    for ty in [TensorType::Q4_K, TensorType::Q6_K] {
        let found = launches_of_a_layer(ty, &[], KvType::F16);
        assert_eq!(found, expected, "{}", ty.name());
    }
}

#[test]
fn a_layer_of_mixed_types_has_no_more_launches() {
    let in_strips = |ty| {
        u64::from(matches!(
            ty,
            TensorType::Q4_K | TensorType::Q5_K | TensorType::Q6_K
        ))
    };
    for [of_most, of_some] in PAIRS {
        // `most` is for output and gate, `some` for down, and `both` for the pair.
        let (most, some) = (in_strips(of_most), in_strips(of_some));
        let both = most * some;
        let expected = counts(&[
            ("attention_f32_g2", 1),
            ("rope_kv_f32", 1),
            ("add_norm_held", 2 - most - both),
            ("matvec_add_m1", most + some),
            ("matvec_m1", 2 - most - some),
            ("matvec_gated_normed_m1", most),
            ("matvec_gated_m1", 1 - most),
            ("matvec_pair_normed_m1", both),
            ("matvec_pair_m1", 1 - both),
        ]);
        let others = [("attn_v", of_some), ("ffn_down", of_some)];
        let found = launches_of_a_layer(of_most, &others, KvType::F32);
        assert_eq!(found, expected, "{} and {}", of_most.name(), of_some.name());
    }
}

#[test]
fn a_row_alone_has_the_bits_of_one_next_to_another() {
    // The products of one row norm and add, those of two do not.
    for (ty, others) in [
        (
            TensorType::Q4_K,
            &[("attn_v", TensorType::Q6_K), ("ffn_down", TensorType::Q6_K)][..],
        ),
        (TensorType::Q5_K, &[]),
        (TensorType::Q3_K, &[("ffn_down", TensorType::Q4_K)]),
    ] {
        let model = llama_of(3, ty, others);
        let decode = |n_seqs: usize| {
            let backend = engines::gpu();
            let options = ModelOptions {
                kv_type: KvType::F16,
                ..options()
            };
            let mut executor = engines::tiny(&model, backend, &options);
            let mut all = sequences(2);
            for sequence in &mut all {
                advance(&mut executor, vec![sequence]).unwrap();
            }
            let step = |_| {
                let rows = advance(&mut executor, all.iter_mut().take(n_seqs).collect()).unwrap();
                rows[0].iter().map(|logit| logit.to_bits()).collect::<Vec<_>>()
            };
            (0..3).map(step).collect::<Vec<_>>()
        };
        assert!(decode(1) == decode(2), "{}", ty.name());
    }
}

#[test]
fn the_plan_is_what_is_allocated_to_the_byte() {
    for ty in [
        TensorType::F32,
        TensorType::F16,
        TensorType::Q8_0,
        TensorType::Q4_0,
    ] {
        let gpu = OnGpu::new(ty);
        let [reserved, taken] = gpu.executor.backend().device().reserved_and_taken_bytes();
        assert!(reserved > 0);
        assert_eq!(taken, reserved, "{}", ty.name());
    }
}

#[test]
fn nothing_is_allocated_after_the_load() {
    let mut gpu = OnGpu::new(TensorType::Q4_0);
    let free = gpu.executor.backend().device().free_bytes().unwrap();
    let mut all = sequences(9);
    for n_seqs in [9, 4, 9, 1] {
        advance(&mut gpu.executor, all.iter_mut().take(n_seqs).collect()).unwrap();
        sample(
            &mut gpu.executor,
            all.iter_mut().take(n_seqs).collect(),
            &greedy(),
        )
        .unwrap();
    }
    assert_eq!(gpu.executor.backend().device().free_bytes().unwrap(), free);
}

#[test]
fn a_trace_tells_where_the_time_of_each_phase_went() {
    let mut gpu = OnGpu::with(TensorType::Q4_0, &options(), |backend| {
        backend.with_trace().unwrap()
    });
    let mut plain = OnGpu::new(TensorType::Q4_0);
    assert_eq!(plain.executor.trace(), None);
    let (mut all, mut expected) = (sequences(3), sequences(3));
    for _ in 0..4 {
        sample(&mut gpu.executor, all.iter_mut().collect(), &greedy()).unwrap();
        sample(&mut plain.executor, expected.iter_mut().collect(), &greedy()).unwrap();
    }
    for (traced, plain) in all.iter().zip(&expected) {
        assert_eq!(traced.tokens, plain.tokens);
    }
    assert_eq!(gpu.simulator.graph_counts(), plain.simulator.graph_counts());
    let trace = gpu.executor.trace().unwrap();
    assert_eq!((trace.prefill.n_steps, trace.decode.n_steps), (1, 3));
    // Three sequences are padded to four.
    assert_eq!(trace.decode.n_tokens, 12);
    for times in [trace.prefill, trace.decode] {
        assert!(
            times.compute_ms > times.upload_ms && times.upload_ms > 0.0,
            "{times:?}"
        );
        assert!(times.download_ms > 0.0, "{times:?}");
    }
    assert!(trace.prefill.compute_ms > trace.decode.compute_ms / 3.0);
}
