//! The CUDA backend on the simulated device against reference data: a subset that is quick enough for every change.
//! `cargo lab parity --device sim` runs all of it.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use tokenmill_backend::KvType;
use tokenmill_model::Model;
use tokenmill_testkit::{Comparisons, Reference, engines, parity::compare};

/// Exact types of each architecture, where greedy tokens are compared; one of each layout of quantized weights, experts, and each kind
/// of recurrent layer; and rare features: latent rows, embeddings of each layer, several streams, xIELU, chunks.
const CASES: [(&str, &str, KvType); 27] = [
    ("parity/llama", "F32", KvType::F16),
    ("parity/llama", "BF16", KvType::F32),
    ("parity/llama", "Q4_K_M", KvType::F32),
    ("parity/llama", "Q5_K_M", KvType::F32),
    ("parity/llama", "Q6_K", KvType::F32),
    ("parity/llama", "Q8_0", KvType::F32),
    ("parity/llama", "Q3_K_M", KvType::F32),
    ("parity/llama", "F16", KvType::F32),
    ("parity/olmo2", "F32", KvType::F32),
    ("parity/qwen2", "F32", KvType::F32),
    ("parity/qwen3", "F32", KvType::F32),
    ("parity/qwen2_moe", "F32", KvType::F32),
    ("parity/gpt_oss_mxfp4", "MXFP4", KvType::F32),
    ("parity/lfm2", "F32", KvType::F32),
    ("parity/mamba", "F32", KvType::F32),
    ("parity/mamba2", "F32", KvType::F32),
    ("parity/qwen3_5", "F32", KvType::F32),
    ("parity2/kimi_linear", "F32", KvType::F32),
    ("parity/deepseek_v3", "F32", KvType::F16),
    ("parity/gemma4", "F32", KvType::F32),
    ("parity2/gemma3n", "F32", KvType::F32),
    ("parity2/apertus", "F32", KvType::F32),
    ("parity2/llama4_chunked", "F32", KvType::F16),
    ("networks/jina_v2", "BF16", KvType::F32),
    ("networks/jina_v2_code", "BF16", KvType::F32),
    ("networks/jina_v3", "BF16", KvType::F32),
    ("networks/glm4_7_flash", "BF16", KvType::F32),
];

/// Variants that exist only as a folder.
const FOLDERS: [&str; 3] = [
    "networks/command_r_norms",
    "networks/stablelm_norms",
    "networks/nemotron_latent",
];

#[test]
fn folders_of_variants_meet_the_limits_on_the_simulated_gpu() {
    let mut comparisons = Comparisons::of("logits of folders, simulated GPU");
    for fixture in FOLDERS {
        let path = comparisons
            .find(&format!("{fixture}/hf"))
            .expect("in the core set");
        let reference = Reference::open(path.parent().expect("a folder lies in a folder")).unwrap();
        let model = Model::from_hf(&path, &path.join("config.json")).unwrap();
        let comparison = compare(&reference, "F32", &model, &engines::SIM, KvType::F32).unwrap();
        assert!(comparison.failures.is_empty(), "{fixture}: {comparison:?}");
        let (n_equal, n_safe) = comparison.greedy.expect("weights are exact");
        assert!(n_equal == n_safe && n_safe > 0, "{fixture}");
        comparisons.compared(1);
    }
}

#[test]
fn the_simulated_gpu_meets_the_limits_of_its_arithmetic() {
    let comparisons = Mutex::new(Comparisons::of("logits, simulated GPU"));
    let next = AtomicUsize::new(0);
    // The launches of these small networks are too short for the simulator's own threads.
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(&case) = CASES.get(next.fetch_add(1, Ordering::Relaxed)) {
                    check(case, &comparisons);
                }
            });
        }
    });
}

/// Compares a model with the reference data, if it is there.
fn check((fixture, ty, kv_type): (&str, &str, KvType), comparisons: &Mutex<Comparisons>) {
    let found = || {
        let mut comparisons = comparisons.lock().expect("no case has failed");
        let path = comparisons.find(&format!("{fixture}/model-{ty}.gguf"))?;
        let model = comparisons.open(Model::open(&path))?;
        Some((path, model))
    };
    let Some((path, model)) = found() else { return };
    let reference = Reference::open(path.parent().expect("a file lies in a folder")).unwrap();
    let comparison = compare(&reference, ty, &model, &engines::SIM, kv_type).unwrap();
    assert!(
        comparison.failures.is_empty(),
        "{fixture} {ty} with {kv_type:?} KV: {comparison:?}"
    );
    if let Some((n_equal, n_safe)) = comparison.greedy {
        assert!(n_equal == n_safe && n_safe > 0, "{fixture} {ty}");
    }
    comparisons.lock().expect("no case has failed").compared(1);
}
