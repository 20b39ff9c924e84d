//! Adapters on the CUDA backend over the simulated device: the same scenes as on the CPU.

use tokenmill_backend::{Adapter, AdapterError, AdapterId, Executor};
use tokenmill_cuda_exec::CudaBackend;
use tokenmill_gguf::{GgufFile, TensorType};
use tokenmill_model::{FfnDescriptor, Model};
use tokenmill_sim_driver::{SimOptions, Simulator};
use tokenmill_testkit::{
    NaiveBackend, Random, TinyModel,
    engines::{self, Loaded},
    tiny_llama,
};

use crate::adapter_scene::{add_all, id, options, play, random_adapter, sequences, tiny};

type Gpu = Loaded<CudaBackend>;

fn on(simulator: &Simulator, model: &Model, change: impl FnOnce(CudaBackend) -> CudaBackend) -> Gpu {
    let backend = engines::gpu_of(simulator);
    engines::load(model, change(backend), &options()).expect("a tiny model loads")
}

/// Returns a layer whose rows divide into superblocks.
fn wide(ty: TensorType) -> Model {
    let mut descriptor = tiny_llama();
    descriptor.layers.truncate(1);
    descriptor.n_embd = 256;
    let layer = &mut descriptor.layers[0];
    let attention = layer.attention_mut();
    (attention.head_dim_k, attention.head_dim_v) = (64, 64);
    let FfnDescriptor::Dense(ffn) = &mut layer.ffn else {
        unreachable!("the tiny network is dense")
    };
    ffn.n_ff = 256;
    descriptor.ropes[0].head_dim = 64;
    let bytes = TinyModel::random(descriptor, ty, 1).to_gguf().unwrap();
    Model::from_gguf(GgufFile::from_bytes(&bytes).unwrap()).unwrap()
}

fn random_adapters(model: &Model, random: &mut Random) -> Vec<Adapter> {
    ([1, 4, 16, 33].into_iter())
        .map(|rank| random_adapter(model, rank, random))
        .collect()
}

#[test]
fn four_adapters_in_a_batch_of_eight_compute_the_bits_of_each_alone() {
    for (ty, model) in [
        (TensorType::F32, tiny(TensorType::F32)),
        (TensorType::Q4_0, tiny(TensorType::Q4_0)),
        (TensorType::Q4_K, wide(TensorType::Q4_K)),
    ] {
        let simulator = Simulator::new(&SimOptions::default());
        let mut executor = on(&simulator, &model, |backend| backend.with_batch_invariance(true));
        let mut random = Random::new(7);
        let mut scene = sequences(executor.limits().n_vocab, &mut random);
        let plain: Vec<_> = scene.iter().map(|(tokens, _)| (tokens.clone(), None)).collect();
        let expected_plain = play(&mut executor, &plain);
        add_all(&mut executor, &random_adapters(&model, &mut random));
        for (_, adapter) in scene.iter_mut().take(2) {
            *adapter = None;
        }
        let together = play(&mut executor, &scene);
        for (seq_idx, sequence) in scene.iter().enumerate() {
            let alone = play(&mut executor, std::slice::from_ref(sequence)).remove(0);
            assert!(together[seq_idx] == alone, "{ty}: sequence {seq_idx}");
            let is_plain = together[seq_idx] == expected_plain[seq_idx];
            assert_eq!(is_plain, sequence.1.is_none(), "{ty}: sequence {seq_idx}");
        }
        assert!(play(&mut executor, &plain) == expected_plain, "{ty}");
    }
}

#[test]
fn the_products_of_adapters_are_the_formula() {
    let model = tiny(TensorType::F32);
    let simulator = Simulator::new(&SimOptions::default());
    let mut executor = on(&simulator, &model, |backend| backend);
    let mut naive = engines::load(&model, NaiveBackend::new(), &options()).unwrap();
    let mut random = Random::new(3);
    let scene = sequences(executor.limits().n_vocab, &mut random);
    let adapters = random_adapters(&model, &mut random);
    add_all(&mut executor, &adapters);
    add_all(&mut naive, &adapters);
    let found = play(&mut executor, &scene).concat();
    let expected = play(&mut naive, &scene).concat();
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.into_iter().zip(expected) {
        // Sums of a few hundred products in another order.
        assert!(
            (found - expected).abs() < 1e-3 * expected.abs().max(1.0),
            "{found} {expected}"
        );
    }
}

/// Returns the logits of one decode step of three sequences, with these adapters in their order.
fn decode(executor: &mut Gpu, adapters: [Option<AdapterId>; 3]) -> Vec<Vec<f32>> {
    let scene = adapters.map(|adapter| (vec![5, 9], adapter));
    play(executor, &scene)
}

#[test]
fn a_captured_step_serves_whatever_adapters_its_rows_have() {
    let model = tiny(TensorType::Q8_0);
    let mut random = Random::new(5);
    let adapters = random_adapters(&model, &mut random);
    let play_all = |uses_graphs: bool| {
        let simulator = Simulator::new(&SimOptions::default());
        let mut executor = on(&simulator, &model, |backend| backend.with_graphs(uses_graphs));
        let without = decode(&mut executor, [None; 3]);
        add_all(&mut executor, &adapters[..3]);
        // Places for four adapters. The largest rank comes first: buffers that captured steps use move only if a larger rank
        // comes.
        let mut found = vec![decode(&mut executor, [Some(id(3)), None, Some(id(1))])];
        let (n_made, n_replayed) = simulator.graph_counts();
        for adapters in [
            [Some(id(1)), Some(id(2)), Some(id(3))],
            [Some(id(2)), Some(id(2)), Some(id(2))],
            [None, None, Some(id(3))],
        ] {
            found.push(decode(&mut executor, adapters));
        }
        // An adapter is removed, and another with the same rank gets other memory.
        executor.remove_adapter(id(2));
        executor.add_adapter(id(7), &adapters[0], -1.0).unwrap();
        found.push(decode(&mut executor, [Some(id(7)), None, Some(id(1))]));
        let graphs = simulator.graph_counts();
        assert_eq!(graphs.0, n_made, "no step was captured again");
        assert_eq!(graphs.1 - n_replayed, if uses_graphs { 8 } else { 0 });
        found.push(decode(&mut executor, [None; 3]));
        assert!(found[5] == without);
        // A larger rank moves buffers that captured steps use.
        executor.add_adapter(id(8), &adapters[3], 1.0).unwrap();
        found.push(decode(&mut executor, [Some(id(8)), None, Some(id(1))]));
        found
    };
    let (captured, eager) = (play_all(true), play_all(false));
    assert!(captured == eager);
    for (step, rows) in captured.iter().enumerate().take(4) {
        assert!(*rows != captured[5], "step {step} is none without adapters");
    }
    assert_eq!(captured[4][1], captured[5][1], "a row without one");
}

#[test]
fn steps_without_adapters_launch_what_they_did_before_any_came() {
    let model = tiny(TensorType::Q8_0);
    let simulator = Simulator::new(&SimOptions::default());
    let mut executor = on(&simulator, &model, |backend| backend.with_graphs(false));
    let device = executor.backend().device().clone();
    let launches = |executor: &mut Gpu, adapters| {
        let (n_launches, n_copies) = (device.n_launches(), simulator.copy_counts().0);
        decode(executor, adapters);
        [
            device.n_launches() - n_launches,
            simulator.copy_counts().0 - n_copies,
        ]
    };
    let before = launches(&mut executor, [None; 3]);
    executor
        .add_adapter(id(1), &random_adapter(&model, 4, &mut Random::new(1)), 1.0)
        .unwrap();
    assert_eq!(launches(&mut executor, [None; 3]), before);
    let with = launches(&mut executor, [None, Some(id(1)), None]);
    assert!(
        with[0] > before[0] && with[1] == before[1] + 2,
        "{with:?} {before:?}"
    );
    executor.remove_adapter(id(1));
    assert_eq!(launches(&mut executor, [None; 3]), before);
}

#[test]
fn an_adapter_that_does_not_fit_is_refused_and_costs_nothing() {
    let model = tiny(TensorType::F32);
    let simulator = Simulator::new(&SimOptions {
        total_bytes: 160 << 20,
        ..SimOptions::default()
    });
    let mut executor = on(&simulator, &model, |backend| backend);
    let mut random = Random::new(2);
    let small = random_adapter(&model, 2, &mut random);
    executor.add_adapter(id(1), &small, 1.0).unwrap();
    let expected = decode(&mut executor, [Some(id(1)), None, None]);
    let device = executor.backend().device().clone();
    let room_bytes = executor.backend().room_bytes().unwrap() as usize;
    let rank = 2 * room_bytes / small.n_bytes() + 1;
    let free_bytes = device.free_bytes().unwrap();
    let error = executor
        .add_adapter(id(2), &random_adapter(&model, 2 * rank, &mut random), 1.0)
        .unwrap_err();
    assert!(
        matches!(&error, AdapterError::Device { reason } if reason.contains("adapters") && reason.contains("free")),
        "{error}"
    );
    assert_eq!(device.free_bytes().unwrap(), free_bytes);
    assert!(decode(&mut executor, [Some(id(1)), None, None]) == expected);
    // A removed adapter leaves its memory to the next.
    executor
        .add_adapter(id(3), &random_adapter(&model, 2, &mut random), 1.0)
        .unwrap();
    assert!(device.free_bytes().unwrap() < free_bytes);
    executor.remove_adapter(id(3));
    assert_eq!(device.free_bytes().unwrap(), free_bytes);
}
