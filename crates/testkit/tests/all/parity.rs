//! The backends that every machine has against reference data.
//!
//! The naive one computes in f32 on dequantized weights and meets the f32 limit in every type; the CPU's meets it for
//! exact types, and the limits for 8-bit activations for the others.

use tokenmill_backend::KvType;
use tokenmill_model::Model;
use tokenmill_quant::format;
use tokenmill_testkit::{
    Comparisons, Reference, engines,
    parity::{ParityDevice, compare, known_miss},
};

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
            if let Some(reason) = known_miss(&folder, ty, device.activations) {
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
    check_all("logits, naive backend", &engines::NAIVE);
}

#[test]
fn the_cpu_meets_the_limits_of_its_arithmetic() {
    check_all("logits, CPU", &engines::CPU);
}
