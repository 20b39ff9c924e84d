//! Tests each kind of GPU that users have, with 99 KiB of shared memory for a thread block (RTX 30, 40 and 50), 163 KiB or 227 KiB.
//!
//! Grids depend on the number of multiprocessors, and kernels on the compute capability. Results do not depend on the GPU, except where it
//! has wgmma, for which these steps are too small.

use tokenmill_backend::KvType;
use tokenmill_cuda_exec::{CudaBackend, CudaExecError, Device, DeviceOptions, Ops, families};
use tokenmill_gguf::TensorType;
use tokenmill_model::ModelOptions;
use tokenmill_sim_driver::{SimOptions, Simulator};
use tokenmill_testkit::engines;

use super::scene::{OnGpu, advance, model, options, sequences};

/// Compute capabilities of the A100, RTX 3090, RTX 4090, H200 and RTX 5090.
const CAPABILITIES: [(i32, i32); 5] = [(8, 0), (8, 6), (8, 9), (9, 0), (12, 0)];

fn card(capability: (i32, i32)) -> Simulator {
    Simulator::new(&SimOptions {
        capability,
        ..SimOptions::default()
    })
}

/// Computes the logits of a prompt step of three sequences and of three decode steps, the last of them replayed; returns also how many
/// graphs were captured and replayed.
fn logits(capability: (i32, i32), ty: TensorType, kv_type: KvType) -> (Vec<Vec<f32>>, (u64, u64)) {
    let (simulator, model) = (card(capability), model(ty));
    let backend = CudaBackend::new(simulator.device()).expect("its driver takes the kernels");
    let options = ModelOptions { kv_type, ..options() };
    let executor = engines::tiny(&model, backend, &options);
    let mut gpu = OnGpu { simulator, executor };
    let mut sequences = sequences(3);
    let mut all = Vec::new();
    for _ in 0..4 {
        let step = advance(&mut gpu.executor, sequences.iter_mut().collect());
        all.extend(step.expect("a step on a GPU without a fault"));
    }
    (all, gpu.simulator.graph_counts())
}

#[test]
fn every_card_gives_the_same_bits() {
    for (ty, kv_type) in [
        (TensorType::Q4_0, KvType::F16),
        (TensorType::Q8_0, KvType::Q8_0),
        (TensorType::F16, KvType::F32),
    ] {
        let (expected, graphs) = logits(CAPABILITIES[0], ty, kv_type);
        assert!(graphs.0 > 0 && graphs.1 > 1, "{graphs:?}");
        for capability in &CAPABILITIES[1..] {
            let (found, graphs_of_it) = logits(*capability, ty, kv_type);
            assert!(found == expected, "{capability:?} {ty:?} {kv_type:?}");
            assert_eq!(graphs_of_it, graphs, "{capability:?}");
        }
    }
}

/// A kernel that wants more shared memory than a GPU has fails to load.
#[test]
fn every_kernel_that_a_card_gets_fits_it() {
    for capability in CAPABILITIES {
        let device = card(capability).device();
        let mut ops = Ops::load(&device).unwrap();
        for keys in KvType::ALL {
            for values in KvType::ALL {
                if tokenmill_cuda_exec::KvStore::takes([keys, values]) {
                    ops.load_store([keys, values]).unwrap();
                    ops.load_runs([keys, values]).unwrap();
                }
            }
        }
        ops.load_shared().unwrap();
        let missing = |name: &str| {
            let found = families(&device)
                .into_iter()
                .find(|family| family.name.contains(name));
            found.expect("a family of this name").missing.is_some()
        };
        assert_eq!(missing("9 rows and more"), capability != (9, 0), "{capability:?}");
        assert_eq!(missing("begin early"), capability < (9, 0), "{capability:?}");
        assert!(
            !missing("few rows") && !missing("f16 on tensor cores"),
            "{capability:?}"
        );
    }
}

#[test]
fn a_card_that_is_too_old_is_refused_by_name() {
    let simulator = card((7, 5));
    let opened = Device::open_with(&Simulator::api(), simulator.ordinal(), DeviceOptions::default());
    let error = opened.unwrap_err();
    assert!(
        matches!(&error, CudaExecError::ComputeCapability { found: (7, 5), .. }),
        "{error:?}"
    );
    let said = error.to_string();
    assert!(
        said.contains(Simulator::DEVICE_NAME) && said.contains("7.5") && said.contains("8.0"),
        "{said}"
    );
}
