//! The load on a GPU, and the refusal of it in a build without CUDA.
//!
//! Separate from the choice of the device, so that CUDA is named in one file. Invariant: a build without CUDA refuses a GPU
//! that was asked for, and says that it was left out.

#[cfg(feature = "cuda")]
pub(crate) use with_cuda::load;
#[cfg(not(feature = "cuda"))]
pub use without_cuda::CudaLeftOut;
#[cfg(not(feature = "cuda"))]
pub(crate) use without_cuda::load;

/// Whether this build computes on GPUs and the machine has a driver for them.
pub fn has_gpu_driver() -> bool {
    #[cfg(feature = "cuda")]
    return tokenmill_cuda_exec::has_driver();
    #[cfg(not(feature = "cuda"))]
    false
}

#[cfg(feature = "cuda")]
mod with_cuda {
    use tokenmill_cuda_exec::{CudaBackend, CudaExecError, Device};
    use tokenmill_model::{LoadError, LoadProgress, Model, ModelOptions};

    use crate::{Error, Loaded, LoadedDevice};

    pub(crate) fn load(
        model: &Model,
        ordinal: usize,
        is_traced: bool,
        options: &ModelOptions,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Loaded, Error> {
        let open = || -> Result<_, CudaExecError> {
            let device = Device::open(ordinal)?;
            let name = device.info().name.clone();
            let mut backend = CudaBackend::new(device)?;
            if is_traced {
                backend = backend.with_trace()?;
            }
            Ok((name, backend))
        };
        let (name, backend) = open().map_err(|error| Error::Gpu(error.into()))?;
        let plan = model.plan(&backend, options)?;
        let executor = (model.load_on(backend, options, on_progress)).map_err(|error| match error {
            LoadError::Backend(error) => Error::Gpu(error),
            other => Error::Load(other),
        })?;
        let (_, kernels_took) = executor.backend().device().module_loads();
        Ok(Loaded {
            executor: Box::new(executor),
            device: LoadedDevice::Cuda {
                ordinal,
                name,
                kernels_took,
            },
            plan,
        })
    }
}

#[cfg(not(feature = "cuda"))]
mod without_cuda {
    use tokenmill_backend::BackendError;
    use tokenmill_model::{LoadProgress, Model, ModelOptions};

    use crate::{Error, Loaded};

    /// This build computes on the CPU only.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
    #[error("this program was built without CUDA; build it with the feature `cuda`")]
    pub struct CudaLeftOut;

    pub(crate) fn load(
        _: &Model,
        _: usize,
        _: bool,
        _: &ModelOptions,
        _: &mut dyn FnMut(LoadProgress),
    ) -> Result<Loaded, Error> {
        Err(CudaLeftOut.into())
    }

    impl From<CudaLeftOut> for Error {
        fn from(error: CudaLeftOut) -> Self {
            Self::Gpu(BackendError::Unavailable {
                source: Box::new(error),
            })
        }
    }
}
