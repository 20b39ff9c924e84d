//! Every split of networks of four layers gives the logits of the whole network, to the bit on two backends of the host.

use tokenmill_backend::{Executor, KeyHeads, KvType, Side};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_gguf::{GgufFile, TensorType};
use tokenmill_model::{
    DeltaGates, DeltaNetDescriptor, Descriptor, MixerDescriptor, Model, ModelOptions, OutputHead, build,
};
use tokenmill_placed::{LayerPlacement, Placed, Placement, StepThresholds};
use tokenmill_sim_driver::{Fault, SimOptions, Simulator};
use tokenmill_testkit::{
    EXPERT_VARIANTS, Random, TinyModel, engines,
    generate::{all_logits, greedy},
    tiny_experts, tiny_llama,
};

const N_LAYERS: usize = 4;

fn cpu() -> CpuBackend {
    engines::cpu(2)
}

/// Four layers like the first.
fn deepened(mut descriptor: Descriptor) -> Descriptor {
    descriptor.layers.truncate(1);
    let layer = descriptor.layers[0].clone();
    descriptor.layers.resize(N_LAYERS, layer);
    descriptor
}

/// As Qwen3.5: three layers of delta nets, then one of attention.
fn hybrid() -> Descriptor {
    let mut descriptor = deepened(tiny_llama());
    for layer in &mut descriptor.layers[..N_LAYERS - 1] {
        layer.mixer = MixerDescriptor::DeltaNet(DeltaNetDescriptor {
            n_k_heads: 2,
            n_v_heads: 4,
            head_dim_k: 8,
            head_dim_v: 8,
            n_taps: 4,
            key_heads: KeyHeads::Grouped,
            gates: DeltaGates::Apart,
        });
    }
    descriptor
}

/// As Qwen2-MoE: experts next to a network for all tokens, which has a gate.
fn with_shared_network() -> Descriptor {
    let mut descriptor = tiny_experts();
    let (_, change) = (EXPERT_VARIANTS.iter())
        .find(|(name, _)| *name == "a shared network with a gate")
        .expect("a variant");
    change(&mut descriptor);
    deepened(descriptor)
}

fn networks() -> [(&'static str, Descriptor); 4] {
    [
        ("a shared network with a gate", with_shared_network()),
        ("llama", deepened(tiny_llama())),
        ("qwen3moe", deepened(tiny_experts())),
        ("qwen35", hybrid()),
    ]
}

fn options() -> ModelOptions {
    ModelOptions {
        max_batch_tokens: 64,
        max_batch_seqs: 4,
        max_logit_rows: 64,
        kv_type: KvType::F16,
        ..ModelOptions::default()
    }
}

/// Lists all placements of whole layers in order, then every choice of halves for one layer, then random ones.
fn placements(n_random: usize) -> Vec<Vec<LayerPlacement>> {
    let side = |is_device| if is_device { Side::Device } else { Side::Host };
    let mut all: Vec<_> = (0..=N_LAYERS)
        .map(|first| {
            (0..N_LAYERS)
                .map(|layer_idx| LayerPlacement::whole(side(layer_idx >= first)))
                .collect()
        })
        .collect();
    for bits in 0..8 {
        let one = LayerPlacement {
            mixer: side(bits & 1 > 0),
            ffn: side(bits & 2 > 0),
            experts: side(bits & 4 > 0),
        };
        all.push(vec![one; N_LAYERS]);
    }
    let mut random = Random::new(9);
    for _ in 0..n_random {
        let mut one = || LayerPlacement {
            mixer: side(random.below(2) == 0),
            ffn: side(random.below(2) == 0),
            experts: side(random.below(2) == 0),
        };
        all.push((0..N_LAYERS).map(|_| one()).collect());
    }
    all
}

/// Returns the logits of a prompt, and of tokens that follow one by one.
fn outcome(executor: &mut dyn Executor) -> (Vec<u32>, Vec<u32>) {
    let prompt: Vec<u32> = (0..21).map(|idx| (idx * 7 + 3) % 96).collect();
    let logits = all_logits(executor, &prompt).unwrap();
    let tokens = greedy(executor, &prompt[..5], 12).unwrap();
    (logits.iter().map(|logit| logit.to_bits()).collect(), tokens)
}

#[test]
fn every_split_of_four_layers_computes_the_bits_of_the_whole() {
    for (name, descriptor) in networks() {
        let model = TinyModel::random(descriptor, TensorType::Q8_0, 5);
        let mut whole = engines::tiny(&model, cpu(), &options());
        let expected = outcome(&mut whole);
        for layers in placements(20) {
            let placement = Placement::new(&model.descriptor.shape(), layers.clone());
            let backend = Placed::new(cpu(), cpu(), placement);
            let mut split = engines::tiny(&model, backend, &options());
            assert_eq!(outcome(&mut split), expected, "{name}: {layers:?}");
        }
    }
}

#[test]
fn every_threshold_gives_the_same_tokens() {
    let place = LayerPlacement {
        mixer: Side::Host,
        ffn: Side::Device,
        experts: Side::Device,
    };
    for (name, descriptor) in networks() {
        let model = TinyModel::random(descriptor, TensorType::F16, 5);
        let mut whole = engines::tiny(&model, cpu(), &options());
        let (_, expected) = outcome(&mut whole);
        for n_tokens in [1, 2, 32, usize::MAX] {
            let placement = Placement::new(&model.descriptor.shape(), vec![place; N_LAYERS]);
            let backend = Placed::new(cpu(), cpu(), placement.with_min_device_tokens(n_tokens));
            let mut split = engines::tiny(&model, backend, &options());
            assert_eq!(outcome(&mut split).1, expected, "{name}: {n_tokens}");
        }
    }
}

#[test]
fn a_threshold_that_is_set_after_steps_were_recorded_changes_no_token() {
    let place = LayerPlacement {
        mixer: Side::Host,
        ffn: Side::Device,
        experts: Side::Device,
    };
    let model = TinyModel::random(deepened(tiny_llama()), TensorType::F16, 5);
    let mut whole = engines::tiny(&model, cpu(), &options());
    let expected = greedy(&mut whole, &[5, 17, 33], 6).unwrap();
    let placement = Placement::new(&model.descriptor.shape(), vec![place; N_LAYERS]);
    let backend = Placed::new(cpu(), engines::gpu(), placement.with_min_device_tokens(2));
    let mut split = engines::tiny(&model, backend, &options());
    let apart = [(1, usize::MAX), (usize::MAX, 1)].map(|(decode, other)| StepThresholds { decode, other });
    let alike = [2, 1, 3, usize::MAX].map(StepThresholds::of_all);
    for thresholds in alike.into_iter().chain(apart) {
        split.backend_mut().set_thresholds(thresholds);
        assert_eq!(
            greedy(&mut split, &[5, 17, 33], 6).unwrap(),
            expected,
            "{thresholds:?}"
        );
    }
}

#[test]
fn splits_with_the_simulated_gpu_give_the_tokens_of_the_whole() {
    for (name, descriptor) in networks() {
        // Exact weights: the two sides add in different orders, and round nothing to 8 bits.
        let model = TinyModel::random(descriptor, TensorType::F16, 5);
        let tokens = |executor: &mut dyn Executor| greedy(executor, &[5, 17, 33, 2, 80], 6).unwrap();
        let expected = tokens(&mut engines::tiny(&model, cpu(), &options()));
        for layers in placements(2) {
            let placement = Placement::new(&model.descriptor.shape(), layers.clone());
            let backend = Placed::new(cpu(), engines::gpu(), placement);
            let mut split = engines::tiny(&model, backend, &options());
            assert_eq!(tokens(&mut split), expected, "{name}: {layers:?}");
        }
    }
}

#[test]
fn a_tied_head_has_the_bits_of_the_whole_on_either_side_of_a_border() {
    let mut descriptor = deepened(tiny_llama());
    descriptor.head = OutputHead::Tied;
    let model = TinyModel::random(descriptor, TensorType::Q8_0, 5);
    let expected = outcome(&mut engines::tiny(&model, cpu(), &options()));
    let bytes = model.to_gguf().unwrap();
    let opened = Model::from_gguf(GgufFile::from_bytes(&bytes).unwrap()).unwrap();
    // The bytes of the weights on both sides, by the number of layers on the device.
    let weights: Vec<usize> = (0..=N_LAYERS)
        .map(|n_on_device| {
            let placement = Placement::last_layers(&model.descriptor.shape(), n_on_device);
            let backend = Placed::new(cpu(), cpu(), placement);
            let plan = opened.plan(&backend, &options()).unwrap();
            let mut split = engines::tiny(&model, backend, &options());
            assert_eq!(outcome(&mut split), expected, "{n_on_device} layers");
            plan.weights_bytes + plan.on_host.expect("two sides").weights_bytes
        })
        .collect();
    // A table of 96 by 64, 34 bytes for each 32 weights. Both sides have it, unless the device has all layers.
    let table_bytes = 96 * 64 / 32 * 34;
    let (whole, split) = weights.split_last().unwrap();
    assert_eq!(split, [whole + table_bytes; N_LAYERS]);
}

#[test]
fn a_side_allocates_for_its_own_parts() {
    let model = TinyModel::random(deepened(tiny_llama()), TensorType::Q8_0, 5);
    let bytes = model.to_gguf().unwrap();
    let opened = Model::from_gguf(GgufFile::from_bytes(&bytes).unwrap()).unwrap();
    let plan = |layers: Vec<LayerPlacement>| {
        let placement = Placement::new(&model.descriptor.shape(), layers);
        opened
            .plan(&Placed::new(cpu(), cpu(), placement), &options())
            .unwrap()
    };
    let on_device = plan(vec![LayerPlacement::whole(Side::Device); N_LAYERS]);
    let on_host = plan(vec![LayerPlacement::whole(Side::Host); N_LAYERS]);
    let [host, all_host] = [&on_device, &on_host].map(|plan| plan.on_host.as_deref().expect("two sides"));
    assert_eq!((host.kv_bytes, on_host.kv_bytes), (0, 0));
    assert_eq!(on_device.kv_bytes, all_host.kv_bytes);
    // The device has the head in any case, and no rows of layers but those that it reads.
    assert_eq!(host.activations_bytes, 0);
    assert!(on_host.activations_bytes < on_device.activations_bytes);
    // A slot that values of layers share with the logits is whole on either side.
    let (host, device) = (all_host.activations_bytes, on_device.activations_bytes);
    assert!(host <= device, "{host} on the host, {device} on the device");
    let mut half = vec![LayerPlacement::whole(Side::Device); N_LAYERS];
    half[0] = LayerPlacement::whole(Side::Host);
    half[1] = half[0];
    let half = plan(half);
    assert_eq!(half.kv_bytes, half.on_host.as_deref().unwrap().kv_bytes);
    assert_eq!(half.kv_bytes * 2, on_device.kv_bytes);
    let without_ffn = plan(vec![
        LayerPlacement {
            ffn: Side::Host,
            ..LayerPlacement::whole(Side::Device)
        };
        N_LAYERS
    ]);
    // Three matrices, 96 by 64, 34 bytes for each 32 weights.
    let ffn_bytes = N_LAYERS * 3 * 96 * 64 / 32 * 34;
    let moved = on_device.weights_bytes - without_ffn.weights_bytes;
    assert!(moved >= ffn_bytes, "{moved} of {ffn_bytes}");
}

#[test]
fn a_network_that_cannot_be_split_is_refused_before_a_weight_is_uploaded() {
    let mut descriptor = tiny_llama();
    // The second layer reads keys of the host, and its sinks are on the device.
    descriptor.layers[1].attention_mut().shares_kv_of = Some(0);
    descriptor.layers[1].attention_mut().has_sinks = true;
    let model = TinyModel::random(descriptor, TensorType::Q8_0, 5);
    let load = |n_on_device| {
        let placement = Placement::last_layers(&model.descriptor.shape(), n_on_device);
        let backend = Placed::new(cpu(), cpu(), placement);
        let mut n_uploads = 0;
        let built = build(&model.descriptor, &model, backend, &options(), &mut |_| {
            n_uploads += 1;
        });
        (built.err().map(|error| error.to_string()), n_uploads)
    };
    let (error, n) = load(1);
    let error = error.expect("the layers cannot be apart");
    assert!(error.contains("weights and keys are apart"), "{error}");
    assert_eq!(n, 0, "{error}");
    let (error, n) = load(2);
    assert_eq!(error, None);
    assert!(n > 0);
}

#[test]
fn the_devices_part_of_decode_steps_is_replayed() {
    let place = LayerPlacement {
        mixer: Side::Host,
        ffn: Side::Device,
        experts: Side::Device,
    };
    // Quantized weights, so that the quantized forms of rows must be those of the copied rows.
    let model = TinyModel::random(deepened(tiny_llama()), TensorType::Q8_0, 5);
    let run = |uses_graphs, fault: Option<Fault>| {
        let simulator = Simulator::new(&SimOptions::default());
        let device = engines::gpu_of(&simulator).with_graphs(uses_graphs);
        let placement = Placement::new(&model.descriptor.shape(), vec![place; N_LAYERS]);
        let backend = Placed::new(cpu(), device, placement);
        let mut split = engines::tiny(&model, backend, &options());
        if let Some(fault) = fault {
            simulator.inject(fault);
        }
        let tokens = greedy(&mut split, &[5, 17, 33], 7).unwrap();
        assert!(!simulator.is_capturing());
        (tokens, simulator.graph_counts())
    };
    let (expected, counts) = run(false, None);
    assert_eq!(counts, (0, 0));
    let (tokens, (n_captured, n_replayed)) = run(true, None);
    assert_eq!(tokens, expected);
    // A feed-forward network of each layer; the head comes with the last. One prompt, one step that is recorded, five replayed.
    assert_eq!((n_captured, n_replayed), (4, 20));
    for fault in [Fault::BeginCapture, Fault::EndCapture] {
        let (tokens, (_, n_replayed)) = run(true, Some(fault));
        assert_eq!((tokens, n_replayed), (expected.clone(), 0), "{fault:?}");
    }
}
