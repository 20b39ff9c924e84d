//! [`DeviceChoice`]: where a model computes, and the load that follows from it.
//!
//! Separate from the model so that one file decides between devices. Invariant: a choice is obeyed or refused; only
//! [`DeviceChoice::Auto`] goes on with another device, and then says why.

use std::{fmt, str::FromStr, time::Duration};

use tokenmill_backend::{BackendError, Executor};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_cuda_exec as cuda;
use tokenmill_cuda_exec::CudaBackend;

use crate::{LoadError, LoadProgress, Model, ModelOptions};

/// Where a model computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The CPU.
    #[default]
    Cpu,
    /// A GPU, by its number among those that the driver shows; an error where it cannot be used.
    Cuda {
        /// The number.
        ordinal: usize,
    },
    /// The first GPU where it can be used for the model, else the CPU.
    Auto,
}

/// What a text that names no device is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is no device; say `auto`, `cpu`, `cuda` or `cuda:N`")]
pub struct DeviceChoiceError {
    found: String,
}

impl FromStr for DeviceChoice {
    type Err = DeviceChoiceError;

    fn from_str(text: &str) -> Result<Self, DeviceChoiceError> {
        let error = || DeviceChoiceError {
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

/// A loaded model and where it computes.
pub struct Loaded {
    /// What computes.
    pub executor: Box<dyn Executor + Send>,
    /// Where.
    pub device: LoadedDevice,
}

/// Where a loaded model computes.
#[derive(Debug)]
pub enum LoadedDevice {
    /// On the CPU.
    Cpu {
        /// Why not on the GPU, where [`DeviceChoice::Auto`] would have preferred it.
        passed_over: Option<LoadError>,
    },
    /// On a GPU.
    Cuda {
        /// Its number.
        ordinal: usize,
        /// Its name.
        name: String,
        /// What the driver took to load the kernels; it compiles them where a machine loads them for the first time.
        kernels_took: Duration,
    },
}

impl fmt::Display for LoadedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu { .. } => f.write_str("CPU"),
            Self::Cuda { ordinal, name, .. } => write!(f, "GPU {ordinal} ({name})"),
        }
    }
}

impl Model {
    /// Loads the network on the device that the options choose.
    ///
    /// # Errors
    /// As [`Self::load_on`], and [`LoadError::Gpu`] where a GPU was asked for and cannot be used.
    pub fn load(
        &self,
        options: &ModelOptions,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Box<dyn Executor + Send>, LoadError> {
        Ok(self.load_where(options, on_progress)?.executor)
    }

    /// Loads the network as [`Self::load`] does, and says where.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_where(
        &self,
        options: &ModelOptions,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Loaded, LoadError> {
        match options.device {
            DeviceChoice::Cpu => self.load_on_cpu(options, None, on_progress),
            DeviceChoice::Cuda { ordinal } => {
                let device = cuda::Device::open(ordinal).map_err(|error| LoadError::Gpu(error.into()))?;
                self.load_on_gpu(device, ordinal, options, on_progress)
            }
            DeviceChoice::Auto => {
                let attempt = (cuda::Device::open(0).map_err(|error| LoadError::Gpu(error.into())))
                    .and_then(|device| self.load_on_gpu(device, 0, options, on_progress));
                match attempt {
                    Ok(loaded) => Ok(loaded),
                    Err(reason @ LoadError::Gpu(_)) => self.load_on_cpu(options, Some(reason), on_progress),
                    // The file is at fault, and would be on any device.
                    Err(error) => Err(error),
                }
            }
        }
    }

    fn load_on_cpu(
        &self,
        options: &ModelOptions,
        passed_over: Option<LoadError>,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Loaded, LoadError> {
        let mut backend = CpuBackend::new(options.n_threads, options.cpu_features)?;
        if let Some(n_threads) = options.n_prefill_threads {
            backend.set_prefill_threads(n_threads)?;
        }
        Ok(Loaded {
            executor: Box::new(self.load_on(backend, options, on_progress)?),
            device: LoadedDevice::Cpu { passed_over },
        })
    }

    /// Refuses a matrix that no kernel reads before anything is uploaded.
    fn check_types(&self) -> Result<(), LoadError> {
        let without_kernel = (self.weights().infos().into_iter())
            .find(|info| info.dims.len() > 1 && cuda::modules::type_suffix(info.ty).is_none());
        match without_kernel {
            None => Ok(()),
            Some(info) => Err(LoadError::Gpu(BackendError::UnsupportedType {
                tensor: info.name,
                ty: info.ty.name(),
                device: "the CUDA backend",
            })),
        }
    }

    /// Loads the network on an opened GPU.
    ///
    /// # Errors
    /// As [`Self::load_on`], where what the GPU refuses is [`LoadError::Gpu`].
    pub fn load_on_gpu(
        &self,
        device: cuda::Device,
        ordinal: usize,
        options: &ModelOptions,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Loaded, LoadError> {
        self.check_types()?;
        let name = device.info().name.clone();
        let backend = CudaBackend::new(device).map_err(|error| LoadError::Gpu(error.into()))?;
        let executor = (self.load_on(backend, options, on_progress)).map_err(|error| match error {
            LoadError::Backend(error) => LoadError::Gpu(error),
            other => other,
        })?;
        let (_, kernels_took) = executor.backend().device().module_loads();
        Ok(Loaded {
            executor: Box::new(executor),
            device: LoadedDevice::Cuda {
                ordinal,
                name,
                kernels_took,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_or_refused() {
        let check = |text: &str, expected| assert_eq!(text.parse().ok(), expected, "{text}");
        check("cpu", Some(DeviceChoice::Cpu));
        check("auto", Some(DeviceChoice::Auto));
        check("cuda", Some(DeviceChoice::Cuda { ordinal: 0 }));
        check("cuda:3", Some(DeviceChoice::Cuda { ordinal: 3 }));
        for wrong in ["", "gpu", "cuda:", "cuda:-1", "CUDA", "cuda:1x"] {
            check(wrong, None);
        }
    }
}
