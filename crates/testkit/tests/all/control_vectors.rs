//! Control vectors: a direction after a layer adds the same as a bias of the layer's last product.

use std::path::Path;

use tokenmill_backend::KvType;
use tokenmill_gguf::{GgufFile, GgufWriter, TensorType};
use tokenmill_model::{ControlVector, LoadError, Model, ModelOptions};
use tokenmill_testkit::{NaiveBackend, Random, TinyModel, engines, generate::all_logits, tiny_llama};

/// Returns a control vector's file with one direction.
fn file(arch: &str, name: &str, values: &[f32]) -> GgufFile {
    let mut writer = GgufWriter::new();
    writer
        .metadata_mut()
        .insert("general.architecture", arch)
        .unwrap();
    writer
        .add_tensor(name, TensorType::F32, &[values.len() as u64])
        .unwrap();
    let mut writer = writer.write_header(Vec::new()).unwrap();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    writer.write(&bytes).unwrap();
    GgufFile::from_bytes(&writer.finish().unwrap()).unwrap()
}

fn vector(name: &str, values: &[f32]) -> Result<ControlVector, LoadError> {
    ControlVector::from_gguf(&file("controlvector", name, values), Path::new("control.gguf"))
}

fn model(change: impl FnOnce(&mut TinyModel)) -> Model {
    let mut tiny = TinyModel::random(tiny_llama(), TensorType::F32, 1);
    change(&mut tiny);
    Model::from_gguf(GgufFile::from_bytes(&tiny.to_gguf().unwrap()).unwrap()).unwrap()
}

fn options() -> ModelOptions {
    ModelOptions {
        n_ctx: Some(32),
        max_logit_rows: 32,
        kv_type: KvType::F32,
        ..ModelOptions::default()
    }
}

fn logits(model: &Model) -> Vec<f32> {
    let mut executor = engines::load(model, engines::cpu(2), &options()).unwrap();
    all_logits(&mut executor, &[3, 1, 4, 1, 5, 9, 2, 6]).unwrap()
}

fn naive_logits(model: &Model) -> Vec<f32> {
    let mut executor = engines::load(model, NaiveBackend::new(), &options()).unwrap();
    all_logits(&mut executor, &[3, 1, 4, 1, 5, 9, 2, 6]).unwrap()
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f32]) {
    for (found, expected) in found.iter().zip(expected) {
        // The same sums in another order.
        assert!(
            (found - expected).abs() < 1e-4 * expected.abs().max(1.0),
            "{found} {expected}"
        );
    }
}

#[test]
fn a_direction_is_a_bias_behind_its_layer() {
    let n_embd = tiny_llama().n_embd;
    let direction = Random::new(4).values(n_embd);
    let plain = logits(&model(|_| {}));
    let biased = logits(&model(|tiny| {
        tiny.add_zeros("blk.1.ffn_down.bias", &[n_embd]);
        tiny.set(
            "blk.1.ffn_down.bias",
            &direction.iter().map(|value| 0.5 * value).collect::<Vec<_>>(),
        );
    }));
    let vector = vector("direction.1", &direction).unwrap();
    let with = |scale, layers| {
        let mut model = model(|_| {});
        model.add_control_vector(&vector, scale, &layers).unwrap();
        model
    };
    let steered = with(0.5, 0..=usize::MAX);
    assert_close(&logits(&steered), &biased);
    assert_close(&naive_logits(&steered), &biased);
    assert!(logits(&steered) != plain);
    // Two add up; layers out of the range get nothing.
    let mut twice = with(0.25, 1..=1);
    twice.add_control_vector(&vector, 0.25, &(1..=1)).unwrap();
    assert_close(&logits(&twice), &biased);
    assert!(logits(&with(0.5, 2..=9)) == plain);
}

#[test]
fn what_is_no_control_vector_of_the_model_is_refused() {
    let n_embd = tiny_llama().n_embd;
    let refuse = |read: Result<ControlVector, LoadError>, part: &str| {
        let mut model = model(|_| {});
        let error = read.and_then(|vector| model.add_control_vector(&vector, 1.0, &(0..=usize::MAX)));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(part) && !error.contains(char::from(10)), "{error}");
    };
    refuse(vector("direction.1", &[1.0]), "direction.1");
    refuse(vector("direction.99", &vec![1.0; n_embd]), "99");
    refuse(vector("direction.0", &vec![1.0; n_embd]), "`direction.0`");
    refuse(vector("blk.1", &vec![1.0; n_embd]), "`blk.1`");
    refuse(vector("direction.1", &vec![f32::NAN; n_embd]), "not finite");
    let other = file("llama", "direction.1", &[1.0]);
    refuse(
        ControlVector::from_gguf(&other, Path::new("a.gguf")),
        "architecture` is llama",
    );
}

#[test]
fn scales_that_make_a_direction_infinite_are_refused() {
    let n_embd = tiny_llama().n_embd;
    let large = vector("direction.1", &vec![1e30; n_embd]).unwrap();
    let mut model = model(|_| {});
    model.add_control_vector(&large, 1.0, &(0..=usize::MAX)).unwrap();
    let refused = model
        .add_control_vector(&large, 1e10, &(0..=usize::MAX))
        .unwrap_err();
    assert!(matches!(refused, LoadError::InfiniteControl { .. }), "{refused}");
}
