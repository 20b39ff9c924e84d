//! Recurrent states: planned to the byte, and captured with the steps that change them.

use tokenmill_backend::{BackendError, KeyHeads};
use tokenmill_gguf::TensorType;
use tokenmill_model::{
    DeltaGates, DeltaNetDescriptor, LoadError, MixerDescriptor, ModelOptions, Presence, ShortConvDescriptor,
    SsmDescriptor, SsmKind,
};
use tokenmill_sim_driver::{SimOptions, Simulator};
use tokenmill_testkit::{TinyModel, engines, tiny_llama};

use super::scene::{OnGpu, advance, assert_same_bits, options, sequences};

/// Returns a layer of each kind, then attention.
pub(crate) fn hybrid() -> TinyModel {
    let mut descriptor = tiny_llama();
    let delta_net = MixerDescriptor::DeltaNet(DeltaNetDescriptor {
        n_k_heads: 2,
        n_v_heads: 4,
        head_dim_k: 12,
        head_dim_v: 16,
        n_taps: 4,
        key_heads: KeyHeads::Grouped,
        gates: DeltaGates::Apart,
    });
    let short_conv = MixerDescriptor::ShortConv(ShortConvDescriptor {
        n_channels: 100,
        n_taps: 3,
        bias: Presence::Absent,
    });
    let mamba_2 = MixerDescriptor::Ssm(SsmDescriptor {
        kind: SsmKind::Mamba2 { has_norm: true },
        n_heads: 4,
        head_dim: 16,
        n_groups: 2,
        n_state: 20,
        n_taps: 4,
        conv_bias: Presence::Required,
        bias: Presence::Absent,
    });
    let attention = descriptor.layers[0].clone();
    for mixer in [delta_net, short_conv, mamba_2] {
        let mut layer = attention.clone();
        layer.mixer = mixer;
        descriptor.layers.insert(0, layer);
    }
    TinyModel::random(descriptor, TensorType::F32, 31)
}

#[test]
fn the_plan_counts_states_to_the_byte() {
    let gpu = OnGpu::of(&hybrid(), &options(), |backend| backend);
    let [reserved, taken] = gpu.executor.backend().device().reserved_and_taken_bytes();
    assert_eq!(taken, reserved);
}

#[test]
fn a_replayed_step_changes_states_as_an_eager_one() {
    let model = hybrid();
    // Five are padded to eight; padding has no state.
    for n_seqs in [1, 5] {
        let play = |gpu: &mut OnGpu| -> Vec<Vec<f32>> {
            let mut all = sequences(n_seqs);
            (0..5)
                .flat_map(|_| advance(&mut gpu.executor, all.iter_mut().collect()).unwrap())
                .collect()
        };
        let mut eager = OnGpu::of(&model, &options(), |backend| backend.with_graphs(false));
        let mut replayed = OnGpu::of(&model, &options(), |backend| backend);
        let expected = play(&mut eager);
        assert_same_bits(&format!("{n_seqs} sequences"), &expected, &play(&mut replayed));
        assert_eq!(eager.simulator.graph_counts(), (0, 0));
        assert_eq!(replayed.simulator.graph_counts(), (1, 4), "{n_seqs} sequences");
    }
}

#[test]
fn a_state_does_not_depend_on_the_sequences_beside_it() {
    let model = hybrid();
    let play = |n_seqs: usize| -> Vec<Vec<f32>> {
        let mut gpu = OnGpu::of(&model, &options(), |backend| backend);
        let mut all = sequences(n_seqs);
        let steps = (0..4).map(|_| advance(&mut gpu.executor, all.iter_mut().collect()).unwrap());
        steps.map(|mut rows| rows.swap_remove(0)).collect()
    };
    let (alone, together) = (play(1), play(4));
    for (step, (alone, together)) in alone.iter().zip(&together).enumerate() {
        for (a, b) in alone.iter().zip(together) {
            // Products of one row and of several add in different orders.
            assert!((a - b).abs() <= 1e-4, "step {step}: {b} instead of {a}");
        }
    }
}

#[test]
fn a_state_with_rows_too_long_is_refused_before_anything_is_uploaded() {
    let load = |head_dim_k| {
        let mut descriptor = tiny_llama();
        descriptor.layers[0].mixer = MixerDescriptor::DeltaNet(DeltaNetDescriptor {
            n_k_heads: 1,
            n_v_heads: 1,
            head_dim_k,
            head_dim_v: 4,
            n_taps: 2,
            key_heads: KeyHeads::Grouped,
            gates: DeltaGates::Apart,
        });
        let model = TinyModel::random(descriptor, TensorType::F32, 31);
        let simulator = Simulator::new(&SimOptions::default());
        let loaded = engines::build(&model.descriptor, &model, engines::gpu_of(&simulator), &options());
        (loaded.err(), simulator)
    };
    assert!(load(512).0.is_none());
    let (error, simulator) = load(513);
    let Some(LoadError::Backend(error @ BackendError::Unsupported { .. })) = error else {
        panic!("{error:?}");
    };
    assert_eq!(
        error.to_string(),
        "the CUDA backend does not support recurrent states with rows of 513 values, only of up to 512"
    );
    assert_eq!(simulator.copy_counts(), (0, 0));
}

#[test]
fn states_that_do_not_fit_are_named_as_what_is_too_large() {
    let simulator = Simulator::new(&SimOptions {
        total_bytes: 400 << 20,
        ..SimOptions::default()
    });
    let backend = engines::gpu_of(&simulator);
    let model = hybrid();
    let many = ModelOptions {
        n_states: Some(1 << 18),
        ..options()
    };
    let error = engines::build(&model.descriptor, &model, backend, &many).err();
    let Some(LoadError::Backend(error @ BackendError::DoesNotFit { .. })) = error else {
        panic!("{error:?}");
    };
    let message = error.to_string();
    assert!(
        message.contains("MiB are for the recurrent states of the sequences; run fewer of them at a time"),
        "{message}"
    );
    assert_eq!(simulator.copy_counts(), (0, 0));
}
