//! The devices of the parity check that every machine has. Tests and the command share them. Invariant: each
//! states the arithmetic for its limits.

use tokenmill_backend::BackendError;
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_cuda_exec::CudaBackend;
use tokenmill_quant::CpuFeatures;
use tokenmill_sim_driver::{SimOptions, Simulator};

use super::load;
use crate::{
    NaiveBackend,
    parity::{ActivationKind, ParityDevice},
};

/// Plain f32 loops on dequantized weights.
pub const NAIVE: ParityDevice = ParityDevice {
    name: "naive",
    activations: ActivationKind::F32,
    load: |model, options| Ok(load(model, NaiveBackend::new(), options)?),
};

/// The CPU, with as many threads as it has cores.
pub const CPU: ParityDevice = ParityDevice {
    name: "cpu",
    activations: ActivationKind::Q8,
    load: |model, options| {
        let backend = CpuBackend::new(None, CpuFeatures::detect())?;
        Ok(load(model, backend, options)?)
    },
};

/// The CUDA backend on the simulated device: every kernel interpreted, with every check on.
pub const SIM: ParityDevice = ParityDevice {
    name: "sim",
    activations: ActivationKind::Q8,
    load: |model, options| {
        let device = Simulator::new(&SimOptions::default()).device();
        let backend = CudaBackend::new(device).map_err(BackendError::from)?;
        Ok(load(model, backend, options)?)
    },
};
