//! A matrix may be a part of a tensor: files that join tensors give the numbers of files that do not.

use tokenmill_cpu_exec::CpuBackend;
use tokenmill_gguf::TensorType;
use tokenmill_model::{Ignorable, ModelOptions, build};
use tokenmill_quant::CpuFeatures;
use tokenmill_testkit::{TinyModel, VARIANTS, generate::all_logits, tiny_llama};

fn logits(model: &TinyModel) -> Vec<f32> {
    let backend = CpuBackend::new(Some(1), CpuFeatures::detect()).unwrap();
    let mut executor = build(
        &model.descriptor,
        model,
        backend,
        &ModelOptions::default(),
        &mut |_| {},
    )
    .unwrap();
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
        let backend = CpuBackend::new(Some(1), CpuFeatures::detect()).unwrap();
        let options = ModelOptions::default();
        let found = build(&model.descriptor, &model, backend, &options, &mut |_| {}).err();
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
