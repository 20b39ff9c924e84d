//! Tests that each kernel is either launched by a check at the first use of a GPU, or is listed here with a
//! reason.
//!
//! A new kernel fails this test until it is checked or listed. Invariant: a row of the list that no unchecked
//! kernel matches is an error too.

use std::collections::BTreeSet;

use tokenmill_backend::KvType;
use tokenmill_cuda_exec::{DeviceOptions, HeadsNeed, Needs, WideProducts, check_kernels, modules};
use tokenmill_gguf::TensorType;
use tokenmill_sim_driver::{SimOptions, Simulator};

/// Reason for kernels that only the steps of some architectures launch.
const STEPS: &str = "kernels of some architectures, whose steps are compared with the CPU's";
/// Reason for kernels that the steps of most architectures launch.
const ALL_STEPS: &str = "the steps of every model are compared with the CPU's";

/// Kernels that no check of kernels launches, as `module/` or `module/kernel`, and the reason.
const UNCHECKED: &[(&str, &str)] = &[
    ("elementwise/", ALL_STEPS),
    ("latent_attention/", STEPS),
    ("layers/", STEPS),
    ("route/weigh_choices", STEPS),
    ("streams/", STEPS),
];

/// Types of weights that have all kernels of all types among them.
const TYPES: [TensorType; 6] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::Q4_0,
    TensorType::Q8_0,
    TensorType::Q4_K,
    TensorType::Q6_K,
];

/// Returns the types of keys and values that a module is compiled for, if it is one of several.
fn store_of(module: &str) -> &'static str {
    ["e4m3_e4m3", "f32_f32", "q8_0_q8_0", "mixed"]
        .into_iter()
        .find(|store| module.ends_with(store))
        .unwrap_or("")
}

/// Returns the names of the launched kernels, with the types of the store where several modules have kernels of one name.
fn launched_by(needs: &Needs, wide: WideProducts) -> BTreeSet<(String, String)> {
    let simulator = Simulator::new(&SimOptions::default());
    let device = simulator.device_as(DeviceOptions {
        wide,
        ..DeviceOptions::default()
    });
    check_kernels(&device, needs).unwrap_or_else(|finding| panic!("{finding}"));
    let [keys, values] = needs.kv_types;
    let store = if keys == values {
        format!("{keys}_{values}")
    } else {
        "mixed".to_owned()
    };
    let with_store = |name: String| {
        let store = if name.contains("_of_types") {
            store.as_str()
        } else {
            ""
        };
        (name, store.to_owned())
    };
    simulator.counters().into_keys().map(with_store).collect()
}

#[test]
fn every_kernel_is_checked_or_has_a_reason() {
    let of_store = |kv_types: [KvType; 2]| {
        let dims = if kv_types == [KvType::F16; 2] {
            vec![64, 128, 192, 256]
        } else {
            vec![64, 128, 256]
        };
        // Kernels that are not matrix operations differ by the group, and not by the width.
        let groups = [1, 2, 4, 8].into_iter().map(|group| HeadsNeed { dim: 64, group });
        Needs {
            types: Vec::new(),
            table_types: Vec::new(),
            expert_types: Vec::new(),
            kv_types,
            heads: (dims.into_iter().map(|dim| HeadsNeed { dim, group: 2 }))
                .chain(groups.filter(|_| kv_types[0] != KvType::F16))
                .collect(),
            is_recurrent: false,
            is_batch_invariant: false,
        }
    };
    let of_types = Needs {
        types: TYPES.to_vec(),
        table_types: TYPES.to_vec(),
        expert_types: TYPES.to_vec(),
        heads: Vec::new(),
        is_recurrent: true,
        ..of_store([KvType::F16; 2])
    };
    let mut runs: Vec<(Needs, WideProducts)> = [
        [KvType::F16; 2],
        [KvType::F32; 2],
        [KvType::Q8_0; 2],
        [KvType::E4M3; 2],
        [KvType::Q8_0, KvType::F16],
    ]
    .map(|kv_types| (of_store(kv_types), WideProducts::WhereThere))
    .to_vec();
    for wide in [WideProducts::WhereThere, WideProducts::Never] {
        runs.push((of_types.clone(), wide));
    }
    runs.push((of_store([KvType::F16; 2]), WideProducts::Never));
    let mut launched = BTreeSet::new();
    for (needs, wide) in &runs {
        launched.extend(launched_by(needs, *wide));
    }

    let mut used = BTreeSet::new();
    let mut missing = Vec::new();
    for module in modules::names() {
        let ptx = modules::ptx(module).expect("a module of the archive");
        for kernel in ptx.split(".entry ").skip(1) {
            let end = kernel.find(|c: char| !c.is_alphanumeric() && c != '_');
            let name = &kernel[..end.expect("parameters follow")];
            let store = if name.contains("_of_types") {
                store_of(module)
            } else {
                ""
            };
            if launched.contains(&(name.to_owned(), store.to_owned())) {
                continue;
            }
            let full = format!("{module}/{name}");
            match UNCHECKED.iter().find(|(prefix, _)| full.starts_with(prefix)) {
                Some((prefix, _)) => _ = used.insert(*prefix),
                None => missing.push(full),
            }
        }
    }
    assert!(missing.is_empty(), "neither checked nor listed: {missing:#?}");
    let listed: BTreeSet<&str> = UNCHECKED.iter().map(|(prefix, _)| *prefix).collect();
    assert_eq!(used, listed, "rows that no unchecked kernel matches");
}
