//! The devices that models are compared on.
//!
//! A real GPU may be absent. Invariant: an absent device is never skipped silently; if it was requested by name, that is an
//! error.

use tokenmill_backend::BackendError;
use tokenmill_cuda_exec::CudaBackend;
use tokenmill_testkit::{
    engines::{self, CPU, NAIVE, SIM},
    parity::{ActivationKind, ParityDevice},
};

use crate::gpu;

/// Which devices to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum DeviceChoice {
    /// The CPU backend.
    Cpu,
    /// Plain f32 loops on dequantized weights.
    Naive,
    /// The CUDA backend on the simulated device: every kernel interpreted, with every check on.
    Sim,
    /// The CUDA backend on the first GPU.
    Cuda,
    /// All of them that there are.
    All,
}

const CUDA: ParityDevice = ParityDevice {
    name: "cuda",
    activations: ActivationKind::Q8,
    load: |model, options| {
        let device = gpu::open().map_err(|error| BackendError::Unavailable { source: error.into() })?;
        let backend = CudaBackend::new(device).map_err(BackendError::from)?;
        Ok(engines::load(model, backend, options)?)
    },
};

/// Returns the devices of a choice.
///
/// # Errors
/// A GPU that was requested by name and cannot be opened.
pub(super) fn devices(choice: DeviceChoice) -> anyhow::Result<Vec<ParityDevice>> {
    Ok(match choice {
        DeviceChoice::Cpu => vec![CPU],
        DeviceChoice::Naive => vec![NAIVE],
        DeviceChoice::Sim => vec![SIM],
        DeviceChoice::Cuda => {
            gpu::open()?;
            vec![CUDA]
        }
        DeviceChoice::All => {
            let mut devices = vec![CPU, NAIVE, SIM];
            match gpu::open() {
                Ok(_) => devices.push(CUDA),
                Err(error) => println!("cuda: left out, {error:#}"),
            }
            devices
        }
    })
}
