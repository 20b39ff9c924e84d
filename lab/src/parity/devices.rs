//! The devices that models are compared on.
//!
//! Separate from the comparison because a device may be absent: a real GPU. Invariant: an absent device is never passed over
//! silently; where it was asked for by name, that is an error.

use tokenmill_backend::BackendError;
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_cuda_exec::CudaBackend;
use tokenmill_quant::CpuFeatures;
use tokenmill_sim_driver::{SimOptions, Simulator};
use tokenmill_testkit::{
    NaiveBackend,
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

const CPU: ParityDevice = ParityDevice {
    name: "cpu",
    activations: ActivationKind::Q8,
    load: |model, options| {
        let backend = CpuBackend::new(None, CpuFeatures::detect())?;
        Ok(Box::new(model.load_on(backend, options, &mut |_| {})?))
    },
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

const SIM: ParityDevice = ParityDevice {
    name: "sim",
    activations: ActivationKind::Q8,
    load: |model, options| {
        let backend =
            CudaBackend::new(Simulator::new(&SimOptions::default()).device()).map_err(BackendError::from)?;
        Ok(Box::new(model.load_on(backend, options, &mut |_| {})?))
    },
};

const CUDA: ParityDevice = ParityDevice {
    name: "cuda",
    activations: ActivationKind::Q8,
    load: |model, options| {
        let device = gpu::open().map_err(|error| BackendError::Unavailable { source: error.into() })?;
        let backend = CudaBackend::new(device).map_err(BackendError::from)?;
        Ok(Box::new(model.load_on(backend, options, &mut |_| {})?))
    },
};

/// The devices of a choice.
///
/// # Errors
/// A GPU that was asked for by name and cannot be opened.
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
