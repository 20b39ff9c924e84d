//! [`Device`]: where a model computes, and the load on it.
//!
//! Separate from the model so that one file decides between devices. Invariant: a choice is obeyed or refused; only
//! [`Device::Auto`] falls back to another device and says why.

use std::str::FromStr;

use tokenmill_backend::BackendError;
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_model::{LoadError, LoadProgress, Model, ModelOptions};
use tokenmill_placed::{BatchThreshold, DeviceLayers, PartsRequest, PlacementRequest};
use tokenmill_quant::CpuFeatures;

use crate::{
    Error, SplitObserver, gpu,
    loaded::{Loaded, LoadedDevice},
    machine_memory::{available_bytes, check_available, check_memory, machine_bytes},
};

/// Where a model computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The CPU.
    Cpu,
    /// A GPU, by its number among those that the driver shows; an error where it cannot be used.
    Cuda {
        /// The number.
        ordinal: usize,
    },
    /// The first GPU where it can be used for the model, else the CPU.
    #[default]
    Auto,
}

/// What a text that names no device is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is no device; say `auto`, `cpu`, `cuda` or `cuda:N`")]
pub struct DeviceError {
    found: String,
}

impl FromStr for Device {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let error = || DeviceError {
            found: text.to_owned(),
        };
        match text {
            "cpu" => Ok(Self::Cpu),
            "auto" => Ok(Self::Auto),
            "cuda" => Ok(Self::Cuda { ordinal: 0 }),
            _ => {
                let number = text.strip_prefix("cuda:").ok_or_else(error)?;
                let ordinal = number.parse().map_err(|_| error())?;
                Ok(Self::Cuda { ordinal })
            }
        }
    }
}

/// What a model computes with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compute {
    /// Where.
    pub device: Device,
    /// Threads of the CPU; `None` takes one for each processor.
    pub n_threads: Option<usize>,
    /// Threads of the CPU in steps that compute prompts; `None` takes as many as for generating.
    pub n_prefill_threads: Option<usize>,
    /// Whether a GPU measures what the time of its steps goes to, for [`Executor::trace`](tokenmill_backend::Executor::trace).
    pub is_traced: bool,
    /// Instruction sets of the CPU; narrowing them forces a path, and changes no result.
    pub cpu_features: CpuFeatures,
    /// What of the model the GPU gets, where there is one; the CPU computes the rest.
    pub placement: PlacementRequest,
    /// Is shown the plan of a load that is split, before anything is loaded.
    pub on_split: Option<SplitObserver>,
}

impl Default for Compute {
    fn default() -> Self {
        Self {
            device: Device::default(),
            n_threads: None,
            n_prefill_threads: None,
            is_traced: false,
            cpu_features: CpuFeatures::detect(),
            placement: PlacementRequest::default(),
            on_split: None,
        }
    }
}

impl Compute {
    /// The CPU backend that these options describe.
    ///
    /// # Errors
    /// [`LoadError::Backend`] where the threads cannot be started.
    pub fn cpu_backend(&self) -> Result<CpuBackend, LoadError> {
        let mut backend = CpuBackend::new(self.n_threads, self.cpu_features)?;
        if let Some(n_threads) = self.n_prefill_threads {
            backend.set_prefill_threads(n_threads)?;
        }
        Ok(backend)
    }
}

/// Loads a network on the device that `compute` chooses, and says where that is.
///
/// # Errors
/// [`Error::Load`] as [`Model::load_on`], [`Error::Gpu`] where a GPU was asked for and cannot be used, [`Error::SplitTooLarge`]
/// and [`Error::NoExperts`] where not what was asked for can be on it, and
/// [`Error::NotEnoughMemory`] of a load on the CPU that is larger than the machine's memory.
pub fn load(
    model: &Model,
    options: &ModelOptions,
    compute: &Compute,
    on_progress: &mut dyn FnMut(LoadProgress),
) -> Result<Loaded, Error> {
    match compute.device {
        Device::Cpu => load_on_cpu(model, options, compute, None, on_progress),
        Device::Cuda { ordinal } => load_on_gpu(model, ordinal, options, compute, on_progress),
        Device::Auto => {
            let loaded = match load_on_gpu(model, 0, options, compute, on_progress) {
                // What does not fit as a whole is split.
                Err(Error::Gpu(BackendError::DoesNotFit { .. })) if compute.placement.is_whole() => {
                    let compute = Compute {
                        placement: PlacementRequest {
                            layers: DeviceLayers::Auto,
                            ..compute.placement
                        },
                        ..compute.clone()
                    };
                    gpu::load_split(model, 0, options, &compute, on_progress)
                }
                loaded => loaded,
            };
            match loaded {
                Ok(loaded) => Ok(loaded),
                Err(reason @ (Error::Gpu(_) | Error::SplitTooLarge { .. })) => {
                    load_on_cpu(model, options, compute, Some(reason), on_progress)
                }
                // The file is at fault, and would be on any device.
                Err(error) => Err(error),
            }
        }
    }
}

fn load_on_gpu(
    model: &Model,
    ordinal: usize,
    options: &ModelOptions,
    compute: &Compute,
    on_progress: &mut dyn FnMut(LoadProgress),
) -> Result<Loaded, Error> {
    let n_layers = model.descriptor().layers.len();
    let is_whole = compute.placement.is_whole()
        || matches!(compute.placement, PlacementRequest { layers: DeviceLayers::Last(n), n_host_experts: 0, parts, threshold: BatchThreshold::Tokens(1) }
            if n >= n_layers && parts == PartsRequest::default());
    if is_whole {
        gpu::load(model, ordinal, compute.is_traced, options, on_progress)
    } else {
        gpu::load_split(model, ordinal, options, compute, on_progress)
    }
}

fn load_on_cpu(
    model: &Model,
    options: &ModelOptions,
    compute: &Compute,
    passed_over: Option<Error>,
    on_progress: &mut dyn FnMut(LoadProgress),
) -> Result<Loaded, Error> {
    let backend = compute.cpu_backend()?;
    let plan = model.plan(&backend, options)?;
    check_memory(&plan, machine_bytes())?;
    check_available(&plan, available_bytes())?;
    Ok(Loaded {
        executor: Box::new(model.load_on(backend, options, on_progress)?),
        device: LoadedDevice::Cpu { passed_over },
        plan,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_or_refused() {
        let check = |text: &str, expected| assert_eq!(text.parse().ok(), expected, "{text}");
        check("cpu", Some(Device::Cpu));
        check("auto", Some(Device::Auto));
        check("cuda", Some(Device::Cuda { ordinal: 0 }));
        check("cuda:3", Some(Device::Cuda { ordinal: 3 }));
        for wrong in ["", "gpu", "cuda:", "cuda:-1", "CUDA", "cuda:1x"] {
            check(wrong, None);
        }
    }
}
