//! Tables of embeddings that stay in their file: the same logits, less memory, and a clear error if the file changes.

use std::fs;

use tokenmill_backend::StepError;
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_gguf::{GgufFile, TensorType};
use tokenmill_model::{Model, ModelOptions, OutputHead};
use tokenmill_testkit::{
    TinyModel,
    engines::{self, Loaded},
    generate::{self, RunError},
    tiny_llama,
};

/// Two threads, each with its own buffer.
fn backend(table_bytes: Option<usize>) -> CpuBackend {
    let mut backend = engines::cpu(2);
    backend.leave_tables_in_files(table_bytes);
    backend
}

/// Writes a model to a separate file.
fn written(head: OutputHead, ty: TensorType) -> tempfile::NamedTempFile {
    let mut descriptor = tiny_llama();
    descriptor.head = head;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(
        file.path(),
        TinyModel::random(descriptor, ty, 5).to_gguf().unwrap(),
    )
    .unwrap();
    file
}

fn load(file: &tempfile::NamedTempFile, table_bytes: Option<usize>) -> Loaded<CpuBackend> {
    let model = Model::from_gguf(GgufFile::open(file.path()).unwrap()).unwrap();
    let options = ModelOptions::default();
    engines::load(&model, backend(table_bytes), &options).unwrap()
}

fn weights_bytes(file: &tempfile::NamedTempFile, table_bytes: Option<usize>) -> usize {
    let model = Model::from_gguf(GgufFile::open(file.path()).unwrap()).unwrap();
    let plan = model.plan(&backend(table_bytes), &ModelOptions::default());
    plan.unwrap().weights_bytes
}

const TOKENS: [u32; 5] = [3, 95, 0, 3, 41];

#[test]
fn logits_are_the_same_to_the_bit_and_the_plan_has_no_table() {
    for ty in [
        TensorType::F32,
        TensorType::F16,
        TensorType::Q8_0,
        TensorType::Q4_0,
    ] {
        let file = written(OutputHead::Own, ty);
        let expected = generate::all_logits(&mut load(&file, None), &TOKENS).unwrap();
        let found = generate::all_logits(&mut load(&file, Some(0)), &TOKENS).unwrap();
        assert_eq!(found, expected, "{}", ty.name());
        let table_bytes = 96 * ty.row_bytes(64).unwrap();
        for (least, missing) in [(0, table_bytes), (table_bytes, table_bytes), (table_bytes + 1, 0)] {
            let [all, left] = [None, Some(least)].map(|least| weights_bytes(&file, least));
            assert_eq!(
                all - left,
                missing,
                "{}, tables of {least} bytes and more",
                ty.name()
            );
        }
    }
}

#[test]
fn a_table_that_is_the_head_too_is_in_memory() {
    let file = written(OutputHead::Tied, TensorType::Q8_0);
    assert_eq!(weights_bytes(&file, Some(0)), weights_bytes(&file, None));
}

#[test]
fn a_file_that_was_changed_fails_the_step_by_name() {
    let file = written(OutputHead::Own, TensorType::Q8_0);
    let mut executor = load(&file, Some(0));
    let logits = generate::all_logits(&mut executor, &TOKENS).unwrap();
    let bytes = fs::read(file.path()).unwrap();
    // Another table of the same length, as a copy over the file leaves it.
    fs::write(file.path(), vec![0; bytes.len()]).unwrap();
    let longer_ago = fs::File::options().write(true).open(file.path()).unwrap();
    longer_ago.set_modified(std::time::UNIX_EPOCH).unwrap();
    let error = generate::all_logits(&mut executor, &TOKENS).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, RunError::Step(StepError::WeightsChanged { .. })),
        "{text}"
    );
    for part in [
        "token_embd.weight",
        &file.path().display().to_string(),
        "was changed while the model was in use",
    ] {
        assert!(text.contains(part), "{text}");
    }
    // A truncated file is reported as well.
    fs::write(file.path(), &bytes[..bytes.len() / 2]).unwrap();
    generate::all_logits(&mut executor, &TOKENS).unwrap_err();
    // A file whose name was given to another one is still open, and does not change.
    let replaced = written(OutputHead::Own, TensorType::Q8_0);
    let mut executor = load(&replaced, Some(0));
    let other = tempfile::NamedTempFile::new().unwrap();
    fs::write(other.path(), vec![0; bytes.len()]).unwrap();
    fs::rename(other.path(), replaced.path()).unwrap();
    assert_eq!(generate::all_logits(&mut executor, &TOKENS).unwrap(), logits);
    // With the table in memory the file is no longer needed.
    fs::write(file.path(), &bytes).unwrap();
    let mut in_memory = load(&file, None);
    fs::write(file.path(), vec![0; bytes.len()]).unwrap();
    assert_eq!(generate::all_logits(&mut in_memory, &TOKENS).unwrap(), logits);
}

#[test]
fn a_model_in_memory_keeps_its_table_there() {
    let model = Model::from_gguf(
        GgufFile::from_bytes(
            &TinyModel::random(tiny_llama(), TensorType::Q8_0, 5)
                .to_gguf()
                .unwrap(),
        )
        .unwrap(),
    );
    let model = model.unwrap();
    let bytes = |least| {
        let plan = model.plan(&backend(least), &ModelOptions::default()).unwrap();
        plan.weights_bytes
    };
    assert_eq!(bytes(Some(0)), bytes(None));
}
