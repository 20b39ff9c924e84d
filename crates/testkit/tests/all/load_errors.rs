//! Errors in a model are reported when it is loaded, by name, and never by a panic.

use tokenmill_cpu_exec::CpuBackend;
use tokenmill_gguf::{GgufFile, TensorType};
use tokenmill_model::{Descriptor, LoadError, Model, ModelOptions, architectures};
use tokenmill_quant::CpuFeatures;
use tokenmill_testkit::{Random, TinyModel, engines, tiny_experts, tiny_llama};

fn tiny() -> TinyModel {
    TinyModel::random(tiny_llama(), TensorType::F32, 1)
}

/// Writes the model as a file, opens and loads it.
fn load(model: &TinyModel) -> Result<(), LoadError> {
    load_bytes(&model.to_gguf().unwrap(), &ModelOptions::default())
}

fn load_bytes(bytes: &[u8], options: &ModelOptions) -> Result<(), LoadError> {
    let model = Model::from_gguf(GgufFile::from_bytes(bytes)?)?;
    load_file(&model, options)
}

fn load_file(model: &Model, options: &ModelOptions) -> Result<(), LoadError> {
    let backend = CpuBackend::new(Some(1), CpuFeatures::detect())?;
    engines::load(model, backend, options).map(drop)
}

#[track_caller]
fn check(change: impl FnOnce(&mut TinyModel), expected: &str) {
    let mut model = tiny();
    change(&mut model);
    assert_eq!(load(&model).unwrap_err().to_string(), expected);
}

#[test]
fn a_sound_model_loads() {
    load(&tiny()).unwrap();
}

#[test]
fn a_missing_tensor_is_named() {
    check(
        |model| model.remove("blk.1.ffn_up.weight"),
        "tensor `blk.1.ffn_up.weight` is missing",
    );
    check(
        |model| model.remove("token_embd.weight"),
        "tensor `token_embd.weight` is missing",
    );
    check(
        |model| model.remove("output_norm.weight"),
        "tensor `output_norm.weight` is missing",
    );
}

#[test]
fn a_count_of_experts_that_the_tensors_do_not_have_is_named() {
    let mut model = TinyModel::random(tiny_experts(), TensorType::F32, 1);
    model.add_zeros("blk.1.ffn_up_exps.weight", &[64, 32, 7]);
    let load = engines::build(
        &model.descriptor,
        &model,
        engines::cpu(1),
        &ModelOptions::default(),
    );
    assert_eq!(
        load.map(drop).unwrap_err().to_string(),
        "tensor `blk.1.ffn_up_exps.weight` holds 7 experts, but the model's expert count is 8"
    );
}

/// Returns the tiny model's file with another number under a key.
fn with_count(key: &str, value: u32) -> Vec<u8> {
    let mut bytes = tiny().to_gguf().unwrap();
    let at = bytes.windows(key.len()).position(|part| part == key.as_bytes());
    // After the key come its type and its value, four bytes each.
    let start = at.expect("the file has the key") + key.len() + 4;
    bytes[start..start + 4].copy_from_slice(&value.to_le_bytes());
    bytes
}

#[test]
fn a_value_that_makes_no_sense_is_named_with_its_key() {
    for (key, value, expected) in [
        (
            "llama.attention.head_count",
            0,
            "the model's head count is 0, expected at least 1 (key `llama.attention.head_count`)",
        ),
        (
            "llama.attention.head_count_kv",
            3,
            "the model's KV head count is 3, expected a divisor of the head count (key `llama.attention.head_count_kv`)",
        ),
        (
            "llama.context_length",
            0,
            "the model's context length is 0, expected at least 1 (key `llama.context_length`)",
        ),
        (
            "llama.rope.dimension_count",
            7,
            "the model's rope dimension count is 7, expected even and at least 2 (key `llama.rope.dimension_count`)",
        ),
        (
            "llama.block_count",
            9,
            "metadata key `llama.block_count` is 9, but the file has tensors of 2 layers",
        ),
        (
            "llama.block_count",
            1,
            "metadata key `llama.block_count` is 1, but the file has tensors of 2 layers",
        ),
    ] {
        // The first occurrence of a key that is a prefix of others is its own.
        let error = load_bytes(&with_count(key, value), &ModelOptions::default()).unwrap_err();
        assert_eq!(error.to_string(), expected, "{key} {value}");
    }
    check(
        |model| model.add_zeros("blk.0.ffn_up_exps.weight", &[64, 32, 7]),
        "tensor `blk.0.ffn_up_exps.weight` holds 7 experts, but the model's expert count is 0",
    );
}

#[test]
fn a_wrong_shape_is_named() {
    check(
        |model| model.add_zeros("blk.0.attn_k.weight", &[64, 33]),
        "tensor `blk.0.attn_k.weight` has shape [64, 33], expected [64, 32]",
    );
    check(
        |model| model.add_zeros("blk.0.attn_norm.weight", &[63]),
        "tensor `blk.0.attn_norm.weight` has shape [63], expected [64]",
    );
    check(
        |model| model.add_zeros("token_embd.weight", &[32, 96]),
        "tensor `token_embd.weight` has shape [32, 96], expected [64, 96] (key `llama.embedding_length`)",
    );
}

#[test]
fn a_tensor_that_would_be_ignored_is_refused() {
    check(
        |model| model.add_zeros("blk.0.attn_q_norm.weight", &[16]),
        "tensor `blk.0.attn_q_norm.weight` has no place in a `llama` network; this variant is not supported",
    );
}

#[test]
fn vectors_must_be_finite() {
    let mut weights = vec![1.0; 64];
    weights[7] = f32::NAN;
    check(
        |model| model.set("blk.1.ffn_norm.weight", &weights),
        "tensor `blk.1.ffn_norm.weight` holds NaN at index 7; the file is damaged",
    );
}

#[test]
fn numbers_that_would_make_others_infinite_are_named() {
    let mut divisors = vec![1.0; 8];
    divisors[3] = 0.0;
    let mut model = tiny();
    model.add_zeros("rope_freqs.weight", &[divisors.len()]);
    model.set("rope_freqs.weight", &divisors);
    assert_eq!(
        load(&model).unwrap_err().to_string(),
        "tensor `rope_freqs.weight` holds 0 at index 3, expected numbers above 0; the file is damaged"
    );
    for (change, expected) in [
        (
            (|it: &mut Descriptor| it.norm.eps = f32::INFINITY) as fn(&mut Descriptor),
            "the model's norm epsilon is inf, expected a number, not negative",
        ),
        (
            |it| it.norm.eps = f32::NAN,
            "the model's norm epsilon is NaN, expected a number, not negative",
        ),
        (
            |it| it.layers[1].attention_mut().scale = f32::INFINITY,
            "the model's attention scale is inf, expected a positive number",
        ),
        (
            |it| it.layers[0].attention_mut().softcap = Some(0.0),
            "the model's attention softcap is 0, expected a positive number",
        ),
        (
            |it| it.logit_scale = f32::NAN,
            "the model's logit scale is NaN, expected a number",
        ),
    ] {
        let mut descriptor = tiny_llama();
        change(&mut descriptor);
        assert_eq!(descriptor.validate().unwrap_err().to_string(), expected);
    }
}

#[test]
fn an_unknown_architecture_lists_the_known_ones() {
    let bytes = tiny().to_gguf().unwrap();
    // The names have the same length, so the file stays well-formed.
    let text = b"general.architecture";
    let at = bytes
        .windows(text.len())
        .position(|window| window == text)
        .unwrap()
        + text.len()
        + 12;
    let mut changed = bytes.clone();
    changed[at..at + 5].copy_from_slice(b"rwkv7");
    let error = load_bytes(&changed, &ModelOptions::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "architecture `rwkv7` is not supported; supported are {}",
            architectures().join(", ")
        )
    );
}

#[test]
fn options_that_cannot_be_granted_are_named() {
    let bytes = tiny().to_gguf().unwrap();
    let check = |options: ModelOptions, expected: &str| {
        let error = load_bytes(&bytes, &options).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    check(
        ModelOptions {
            n_ctx: Some(0),
            ..Default::default()
        },
        "the size of the context is 0, expected at least 1",
    );
    check(
        ModelOptions {
            n_pages: Some(usize::MAX),
            ..Default::default()
        },
        &format!(
            "the size of all contexts together, in pages of 16 tokens, is {}, expected at most {}",
            usize::MAX,
            u32::MAX / 16
        ),
    );
    check(
        ModelOptions {
            n_host_pages: usize::MAX,
            ..Default::default()
        },
        &format!(
            "option `n_host_pages` is {}, expected at most {}",
            usize::MAX,
            u32::MAX / 16
        ),
    );
    check(
        ModelOptions {
            max_batch_tokens: usize::MAX / 2,
            ..Default::default()
        },
        &format!(
            "the number of tokens in a step is {}, expected at most 1048576",
            usize::MAX / 2
        ),
    );
}

#[test]
fn a_backend_of_no_threads_is_refused() {
    let refused = CpuBackend::new(Some(0), CpuFeatures::detect());
    assert_eq!(
        refused.err().map(|error| error.to_string()).as_deref(),
        Some("starting threads failed: 0 threads were requested; choose 1 to 1024")
    );
}

/// Loads a file that is truncated to `n_bytes` after `n_progress` reports of progress; 0 truncates it before the
/// load.
fn load_cut(n_progress: usize, n_bytes: u64) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, tiny().to_gguf().unwrap()).unwrap();
    let model = Model::open(&path).unwrap();
    let cut = || {
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(n_bytes).unwrap();
    };
    let mut n_seen = 0;
    if n_progress == 0 {
        cut();
    }
    let backend = engines::cpu(2);
    let mut on_progress = |_| {
        n_seen += 1;
        if n_seen == n_progress {
            cut();
        }
    };
    let options = ModelOptions::default();
    let result = model.load_on(backend, &options, &mut on_progress);
    let message = result.map(drop).unwrap_err().to_string();
    message.replace(&format!("{}/", folder.path().display()), "")
}

#[test]
fn a_file_that_shrinks_is_an_error_that_names_the_tensor() {
    let n_bytes = tiny().to_gguf().unwrap().len();
    let check = |n_progress, cut_to: usize, name: &str| {
        assert_eq!(
            load_cut(n_progress, cut_to as u64),
            format!(
                "cannot read tensor `{name}`: tiny.gguf was opened with {n_bytes} bytes and has become shorter; \
                 leave the file alone while it is read"
            )
        );
    };
    // The embedding is read first and stored last; a norm and then the matrices of the layer follow.
    check(0, n_bytes - 32, "token_embd.weight");
    check(1, 0, "blk.0.attn_norm.weight");
    check(2, 0, "blk.0.attn_k.weight");
}

/// Any change of bytes gives an error or a model, never a panic or an endless allocation.
#[test]
fn damaged_metadata_never_panics() {
    let bytes = tiny().to_gguf().unwrap();
    let header_len = bytes.len() - 64 * 96 * 8;
    let mut random = Random::new(2);
    let (mut n_errors, mut n_loaded) = (0, 0);
    for _ in 0..3000 {
        let mut damaged = bytes.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(header_len.min(4000));
            damaged[at] = random.bits() as u8;
        }
        let Ok(file) = GgufFile::from_bytes(&damaged) else {
            continue;
        };
        let options = ModelOptions {
            n_ctx: Some(64),
            ..Default::default()
        };
        match Model::from_gguf(file).and_then(|model| load_file(&model, &options)) {
            Ok(()) => n_loaded += 1,
            Err(_) => n_errors += 1,
        }
    }
    assert!(
        n_errors > 100 && n_loaded > 10,
        "{n_errors} errors, {n_loaded} loaded"
    );
}
