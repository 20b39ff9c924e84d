//! A matrix may be a part of a tensor: files that join tensors give the numbers of files that do not.

use tokenmill_gguf::TensorType;
use tokenmill_model::{Ignorable, LatentDescriptor, MixerDescriptor, ModelOptions};
use tokenmill_testkit::{
    NaiveBackend, TinyModel, VARIANTS,
    engines::{self, Loadable},
    generate::all_logits,
    tiny_llama,
};

fn logits(model: &TinyModel) -> Vec<f32> {
    logits_on(model, engines::cpu(1))
}

fn naive_logits(model: &TinyModel) -> Vec<f32> {
    logits_on(model, NaiveBackend::new())
}

fn logits_on<B: Loadable>(model: &TinyModel, backend: B) -> Vec<f32> {
    let mut executor = engines::tiny(model, backend, &ModelOptions::default());
    all_logits(&mut executor, &[5, 6, 7, 8]).unwrap()
}

#[test]
fn joined_matrices_and_biases_give_the_bits_of_separate_ones() {
    let with_biases = VARIANTS.iter().find(|(name, _)| *name == "biases").unwrap().1;
    for ty in [TensorType::F32, TensorType::Q8_0] {
        let mut descriptor = tiny_llama();
        with_biases(&mut descriptor);
        let mut model = TinyModel::random(descriptor, ty, 3);
        let expected = logits(&model);
        for part in ["weight", "bias"] {
            let layer = |name: &str| format!("blk.0.{name}.{part}");
            let [q, k, v] = ["attn_q", "attn_k", "attn_v"].map(layer);
            model.join(&[&q, &k, &v], &layer("attn_qkv"));
            let [gate, up] = ["ffn_gate", "ffn_up"].map(layer);
            model.join(&[&gate, &up], &layer("ffn_up"));
        }
        assert_eq!(logits(&model), expected, "{ty:?}");
    }
}

#[test]
fn a_second_norm_called_after_its_place_is_found() {
    let mut model = TinyModel::random(tiny_llama(), TensorType::F32, 3);
    let expected = logits(&model);
    model.join(&["blk.1.ffn_norm.weight"], "blk.1.post_attention_norm.weight");
    assert_eq!(logits(&model), expected);
}

#[test]
fn only_tensors_that_the_architecture_lists_may_be_left() {
    let check = |name: &str, ignorable: &[Ignorable], expected: Option<&str>| {
        let mut model = TinyModel::random(tiny_llama(), TensorType::F32, 3);
        model.add_zeros(name, &[4]);
        model.descriptor.ignorable = ignorable.to_vec();
        let backend = engines::cpu(1);
        let options = ModelOptions::default();
        let found = engines::build(&model.descriptor, &model, backend, &options).err();
        assert_eq!(
            found.map(|error| error.to_string()).as_deref(),
            expected,
            "{name}"
        );
    };
    let refused = "tensor `blk.1.mask` has no place in a `llama` network; this variant is not supported";
    check("blk.1.mask", &[], Some(refused));
    check("blk.1.mask", &[Ignorable::OfLayers("mask".to_owned())], None);
    check(
        "blk.1.mask",
        &[Ignorable::OfLayers("mas".to_owned())],
        Some(refused),
    );
    check("blk.1.mask", &[Ignorable::LayersFrom(2)], Some(refused));
    check("blk.2.nextn.eh_proj.weight", &[Ignorable::LayersFrom(2)], None);
    check("mask", &[Ignorable::Tensor("mask".to_owned())], None);
}

/// Older files join the matrices of keys and values of latent attention, quantized too. The part of the keys is transposed, so it
/// becomes F32; a file whose joined tensor is F32 with the same numbers differs by the rounding of activations alone.
#[test]
fn quantized_keys_and_values_of_latent_attention_may_be_joined() {
    for ty in [TensorType::Q8_0, TensorType::Q4_0] {
        let mut descriptor = tiny_llama();
        for layer in &mut descriptor.layers {
            layer.mixer = MixerDescriptor::Latent(LatentDescriptor {
                n_heads: 4,
                q_rank: None,
                kv_rank: 32,
                plain_dim: 12,
                rotated_dim: 16,
                head_dim_v: 20,
                scale: 0.2,
                rope: Some(0),
            });
        }
        let mut quantized = TinyModel::random(descriptor, TensorType::F32, 3);
        for layer_idx in 0..2 {
            for part in ["attn_k_b", "attn_v_b"] {
                quantized.remove(&format!("blk.{layer_idx}.{part}.weight"));
            }
            quantized.add_random(&format!("blk.{layer_idx}.attn_kv_b.weight"), &[32, 4 * 32], ty, 5);
        }
        let mut exact = quantized.clone();
        for layer_idx in 0..2 {
            exact.dequantize(&format!("blk.{layer_idx}.attn_kv_b.weight"));
        }
        assert_close(&naive_logits(&quantized), &naive_logits(&exact), 1e-6);
        assert_close(&logits(&quantized), &naive_logits(&exact), 0.1);
    }
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32) {
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= tolerance, "{found}, not {expected}");
    }
}
