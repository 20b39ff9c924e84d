//! The backends that every machine has against reference data.
//!
//! The naive one computes in f32 on dequantized weights and meets the f32 limit in every type; the CPU's meets it for
//! exact types, and the limits for 8-bit activations for the others.

use tokenmill_backend::KvType;
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_model::Model;
use tokenmill_quant::{CpuFeatures, format};
use tokenmill_testkit::{
    NaiveBackend, Reference,
    parity::{ActivationKind, ParityDevice, compare},
    test_data,
};

const NAIVE: ParityDevice = ParityDevice {
    name: "naive",
    activations: ActivationKind::F32,
    load: |model, options| {
        Ok(Box::new(model.load_on(
            NaiveBackend::new(),
            options,
            &mut |_| {},
        )?))
    },
};

const FIXTURES: [&str; 7] = [
    "llama",
    "llama3_rope",
    "llama_bias_linear",
    "mistral",
    "qwen2",
    "qwen2_yarn",
    "qwen3",
];

const CPU: ParityDevice = ParityDevice {
    name: "cpu",
    activations: ActivationKind::Q8,
    load: |model, options| {
        let backend = CpuBackend::new(None, CpuFeatures::detect())?;
        Ok(Box::new(model.load_on(backend, options, &mut |_| {})?))
    },
};

fn check_all(test: &str, device: &ParityDevice) {
    let Some(data) = test_data(test) else {
        return;
    };
    let mut n_compared = 0;
    for fixture in FIXTURES {
        let folder = data.join("parity").join(fixture);
        let reference = Reference::open(&folder).unwrap();
        let check = |ty: &str, model: &Model, kv_type| {
            let comparison = compare(&reference, ty, model, device, kv_type).unwrap();
            assert!(
                comparison.failures.is_empty(),
                "{fixture} {ty} with {kv_type:?} KV: {comparison:?}"
            );
        };
        for (ty, file) in &reference.facts.types {
            let model = Model::open(folder.join(&file.file)).unwrap();
            if model
                .weights()
                .infos()
                .iter()
                .any(|tensor| format(tensor.ty).is_none())
            {
                eprintln!("{fixture} {ty}: no format for one of its tensors");
                continue;
            }
            check(ty, &model, KvType::F32);
            n_compared += 1;
        }
        let model = Model::open(folder.join("model-F32.gguf")).unwrap();
        check("F32", &model, KvType::F16);
    }
    assert!(n_compared >= 14, "every fixture has at least two types");
}

#[test]
fn the_naive_backend_meets_the_f32_limit_in_every_type() {
    check_all("naive parity", &NAIVE);
}

#[test]
fn the_cpu_meets_the_limits_of_its_arithmetic() {
    check_all("CPU parity", &CPU);
}
