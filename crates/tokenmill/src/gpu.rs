//! The load on a GPU, and the refusal of it in a build without CUDA.
//!
//! Separate from the choice of the device, so that CUDA is named in one file. Invariant: a build without CUDA refuses a GPU
//! that was asked for, and says that it was left out.

#[cfg(feature = "cuda")]
pub(crate) use with_cuda::{load, load_split};
#[cfg(not(feature = "cuda"))]
pub use without_cuda::CudaLeftOut;
#[cfg(not(feature = "cuda"))]
pub(crate) use without_cuda::{load, load_split};

/// Whether this build computes on GPUs and the machine has a driver for them.
pub fn has_gpu_driver() -> bool {
    #[cfg(feature = "cuda")]
    return tokenmill_cuda_exec::has_driver();
    #[cfg(not(feature = "cuda"))]
    false
}

#[cfg(feature = "cuda")]
mod with_cuda {
    use tokenmill_backend::{MemoryPlan, NetworkShape, Side};
    use tokenmill_cpu_exec::CpuBackend;
    use tokenmill_cuda_exec::{CudaBackend, CudaExecError, Device};
    use tokenmill_model::{LoadError, LoadProgress, Model, ModelOptions};
    use tokenmill_placed::{BatchThreshold, DeviceLayers, Placed, PlacementRequest};

    use crate::{
        Compute, Error, Loaded, LoadedDevice, SplitPlan, calibration,
        machine_memory::{available_bytes, check_available, check_memory, machine_bytes},
    };

    fn open(ordinal: usize, is_traced: bool) -> Result<CudaBackend, Error> {
        let open = || -> Result<_, CudaExecError> {
            let backend = CudaBackend::new(Device::open(ordinal)?)?;
            if is_traced {
                backend.with_trace()
            } else {
                Ok(backend)
            }
        };
        open().map_err(|error| Error::Gpu(error.into()))
    }

    pub(crate) fn load(
        model: &Model,
        ordinal: usize,
        is_traced: bool,
        options: &ModelOptions,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Loaded, Error> {
        let backend = open(ordinal, is_traced)?;
        let name = backend.device().info().name.clone();
        let plan = model.plan(&backend, options)?;
        let executor = (model.load_on(backend, options, on_progress)).map_err(device_error)?;
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

    fn device_error(error: LoadError) -> Error {
        match error {
            LoadError::Backend(error) => Error::Gpu(error),
            other => Error::Load(other),
        }
    }

    /// A backend made of the CPU and a GPU, and what it is asked to compute.
    struct Split<'a> {
        model: &'a Model,
        network: NetworkShape,
        options: &'a ModelOptions,
        backend: Placed<CpuBackend, CudaBackend>,
        room_bytes: u64,
    }

    impl Split<'_> {
        /// The memory of a placement.
        fn plan(&mut self, request: &PlacementRequest, level: usize) -> Result<MemoryPlan, Error> {
            (self.backend).set_placement(request.placement(&self.network, level));
            Ok(self.model.plan(&self.backend, self.options)?)
        }

        /// What of a plan is the GPU's memory: pages of the host tier are not.
        fn device_bytes(&self, plan: &MemoryPlan) -> u64 {
            let n_host_pages = self.options.n_host_pages;
            let n_window_pages = if plan.n_window_pages > 0 { n_host_pages } else { 0 };
            let on_host = (plan.kv_page_bytes.saturating_mul(n_host_pages))
                .saturating_add(plan.window_page_bytes.saturating_mul(n_window_pages));
            plan.total_bytes().saturating_sub(on_host) as u64
        }

        /// The first level of a request that fits into the GPU's memory, with its plan; or what the last one needs.
        fn first_fit(
            &mut self,
            request: &PlacementRequest,
        ) -> Result<Result<(usize, MemoryPlan), u64>, Error> {
            let (mut low, mut high) = (0, request.last_level(&self.network));
            let last = self.plan(request, high)?;
            let needed_bytes = self.device_bytes(&last);
            if needed_bytes > self.room_bytes {
                return Ok(Err(needed_bytes));
            }
            let mut found = last;
            while low < high {
                let middle = usize::midpoint(low, high);
                let plan = self.plan(request, middle)?;
                if self.device_bytes(&plan) <= self.room_bytes {
                    (high, found) = (middle, plan);
                } else {
                    low = middle + 1;
                }
            }
            (self.backend).set_placement(request.placement(&self.network, high));
            Ok(Ok((high, found)))
        }

        /// Why a request does not fit, and how many whole layers would.
        fn too_large(&mut self, needed_bytes: u64) -> Result<Error, Error> {
            let auto = PlacementRequest {
                layers: DeviceLayers::Auto,
                ..PlacementRequest::default()
            };
            let fitting_layers = match self.first_fit(&auto)? {
                Ok(_) => (self.backend.placement().layers().iter())
                    .filter(|layer| layer.mixer == Side::Device)
                    .count(),
                Err(_) => 0,
            };
            Ok(Error::SplitTooLarge {
                needed_bytes,
                free_bytes: self.room_bytes,
                fitting_layers,
                n_layers: self.network.layers.len(),
            })
        }
    }

    /// Loads a part of the network on a GPU and the rest on the CPU.
    pub(crate) fn load_split(
        model: &Model,
        ordinal: usize,
        options: &ModelOptions,
        compute: &Compute,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Loaded, Error> {
        let request = compute.placement;
        let network = model.descriptor().shape();
        if request.names_experts() && network.layers.iter().all(|layer| layer.experts.is_none()) {
            return Err(Error::NoExperts);
        }
        let device = open(ordinal, compute.is_traced)?;
        let name = device.device().info().name.clone();
        let room_bytes = device.room_bytes().map_err(|error| Error::Gpu(error.into()))?;
        let placement = request.placement(&network, 0);
        let mut split = Split {
            model,
            network,
            options,
            backend: Placed::new(compute.cpu_backend()?, device, placement),
            room_bytes,
        };
        let plan = match split.first_fit(&request)? {
            Ok((_, plan)) => plan,
            Err(needed_bytes) => return Err(split.too_large(needed_bytes)?),
        };
        let placement = split.backend.placement().clone();
        if placement.is_all_on_host() {
            let needed_bytes = {
                let one = PlacementRequest {
                    layers: DeviceLayers::Last(1),
                    ..request
                };
                let plan = split.plan(&one, 0)?;
                split.device_bytes(&plan)
            };
            return Err(split.too_large(needed_bytes)?);
        }
        if let Some(on_host) = plan.on_host.as_deref() {
            check_memory(on_host, machine_bytes())?;
            check_available(on_host, available_bytes())?;
        }
        let (n_layers, n_gpu_layers) = (
            placement.layers().len(),
            (placement.layers().iter())
                .filter(|layer| layer.mixer == Side::Device)
                .count(),
        );
        if let Some(observer) = compute.on_split {
            let weights = Side::ALL.map(|side| model.weights_by_part(&split.backend, options, side));
            let [on_host, on_device] = weights;
            observer.0(&SplitPlan {
                gpu: format!("GPU {ordinal} ({name})"),
                room_bytes,
                is_chosen: request.layers == DeviceLayers::Auto,
                placement,
                weights: [on_host?, on_device?],
                memory: plan.clone(),
            });
        }
        let mut executor = (model.load_on(split.backend, options, on_progress)).map_err(device_error)?;
        let threshold = match request.threshold {
            BatchThreshold::Tokens(n) => n,
            BatchThreshold::Measured => {
                calibration::calibrate(&mut executor).map_err(|source| Error::Calibration { source })?
            }
        };
        let (_, kernels_took) = executor.backend().device().device().module_loads();
        Ok(Loaded {
            executor: Box::new(executor),
            device: LoadedDevice::Split {
                ordinal,
                name,
                kernels_took,
                n_gpu_layers,
                n_layers,
                threshold,
            },
            plan,
        })
    }
}

#[cfg(not(feature = "cuda"))]
mod without_cuda {
    use tokenmill_backend::BackendError;
    use tokenmill_model::{LoadProgress, Model, ModelOptions};

    use crate::{Compute, Error, Loaded};

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

    pub(crate) fn load_split(
        _: &Model,
        _: usize,
        _: &ModelOptions,
        _: &Compute,
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
