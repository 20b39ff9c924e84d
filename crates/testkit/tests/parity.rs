//! The backends that every machine has against reference data.
//!
//! The naive one computes in f32 on dequantized weights and meets the f32 limit in every type; the CPU's meets it for
//! exact types, and the limits for 8-bit activations for the others.

use tokenmill_backend::KvType;
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_model::Model;
use tokenmill_quant::{CpuFeatures, format};
use tokenmill_testkit::{
    Comparisons, NaiveBackend, Reference,
    parity::{ActivationKind, ParityDevice, compare},
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

const CPU: ParityDevice = ParityDevice {
    name: "cpu",
    activations: ActivationKind::Q8,
    load: |model, options| {
        let backend = CpuBackend::new(None, CpuFeatures::detect())?;
        Ok(Box::new(model.load_on(backend, options, &mut |_| {})?))
    },
};

/// Rows that exceed a limit with activations of 8 bits, and why. The naive backend meets the f32 limit in them.
const FLIPS: &[(&str, &str, &str)] = &[
    (
        "glm4_moe",
        "Q4_K_M",
        "a choice between experts that are nearly as good turns over; the reference program's own KL over all prompts is 8.3e-3",
    ),
    (
        "qwen3_next",
        "Q4_K_M",
        "choices between experts that are nearly as good turn over; the reference program's own KL is 3.5e-2, ours 7.6e-2",
    ),
];

fn check_all(row: &'static str, device: &ParityDevice) {
    let mut comparisons = Comparisons::of(row);
    for folder in comparisons.networks() {
        let reference = Reference::open(&folder).unwrap();
        let check = |ty: &str, model: &Model, kv_type| {
            let comparison = compare(&reference, ty, model, device, kv_type).unwrap();
            assert!(
                comparison.failures.is_empty(),
                "{} {ty} with {kv_type:?} KV: {comparison:?}",
                folder.display()
            );
        };
        for (ty, file) in &reference.facts.types {
            let Some(model) = comparisons.open(Model::open(folder.join(&file.file))) else {
                continue;
            };
            let tensors = model.weights().infos();
            if let Some(tensor) = tensors.iter().find(|tensor| format(tensor.ty).is_none()) {
                comparisons.skip(&format!("tensors of type {} are not computed", tensor.ty));
                continue;
            }
            let is_rounded = device.activations == ActivationKind::Q8;
            let flip = (FLIPS.iter()).find(|(name, of, _)| is_rounded && folder.ends_with(name) && of == ty);
            if let Some((.., reason)) = flip {
                comparisons.skip(reason);
                continue;
            }
            check(ty, &model, KvType::F32);
            comparisons.compared(1);
            if ty == "F32" {
                check(ty, &model, KvType::F16);
                comparisons.compared(1);
            }
        }
    }
}

#[test]
fn the_naive_backend_meets_the_f32_limit_in_every_type() {
    check_all("logits, naive backend", &NAIVE);
}

#[test]
fn the_cpu_meets_the_limits_of_its_arithmetic() {
    check_all("logits, CPU", &CPU);
}
