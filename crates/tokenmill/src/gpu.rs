//! The load on a GPU, and the refusal of it in a build without CUDA.
//!
//! Separate from the choice of the device, so that CUDA is named in one file. Invariant: a build without CUDA refuses a GPU
//! that was asked for, and says that it was left out.

#[cfg(feature = "cuda")]
pub(crate) use group::load_group;
#[cfg(feature = "cuda")]
pub use with_cuda::open_gpu;
#[cfg(feature = "cuda")]
pub(crate) use with_cuda::{load, load_split};
#[cfg(not(feature = "cuda"))]
pub use without_cuda::CudaLeftOut;
#[cfg(not(feature = "cuda"))]
pub(crate) use without_cuda::{load, load_group, load_split};

/// Whether this build computes on GPUs and the machine has a driver for them.
pub fn has_gpu_driver() -> bool {
    #[cfg(feature = "cuda")]
    return tokenmill_cuda_exec::has_driver();
    #[cfg(not(feature = "cuda"))]
    false
}

#[cfg(feature = "cuda")]
mod group;
#[cfg(feature = "cuda")]
mod guesser;
#[cfg(feature = "cuda")]
mod sums;

#[cfg(feature = "cuda")]
mod with_cuda {
    use tokenmill_backend::{MemoryPlan, NetworkShape, PAGE_TOKENS, Side};
    use tokenmill_cpu_exec::CpuBackend;
    use tokenmill_cuda_exec::{
        Buffers, Cubins, CudaBackend, CudaExecError, Device, DeviceOptions, Launches, WideProducts,
    };
    use tokenmill_model::{LoadError, LoadProgress, Model, ModelOptions};
    use tokenmill_placed::{BatchThreshold, DeviceLayers, Placed, PlacementRequest};

    use crate::{
        Compute, Error, GpuOptions, Loaded, LoadedDevice, SplitPlan, WarpgroupProducts, calibration,
        guesser::Guesser,
        machine_memory::{available_bytes, check_host_part, machine_bytes},
    };

    /// Opens a GPU by its number among those that the driver shows.
    ///
    /// # Errors
    /// [`Error::Gpu`] where it cannot be opened.
    pub fn open_gpu(ordinal: usize, options: &GpuOptions) -> Result<Device, Error> {
        let gpu_error = |error: CudaExecError| Error::Gpu(error.into());
        let cubins = options
            .cubins
            .clone()
            .map(Cubins::new)
            .transpose()
            .map_err(gpu_error)?;
        let options = DeviceOptions {
            buffers: if options.has_buffers_apart {
                Buffers::Apart
            } else {
                Buffers::Together
            },
            cubins,
            launches: if options.launches_in_order {
                Launches::InOrder
            } else {
                Launches::Early
            },
            wide: match options.warpgroup_products {
                WarpgroupProducts::WhereThere => WideProducts::WhereThere,
                WarpgroupProducts::Never => WideProducts::Never,
            },
        };
        Device::open_as(ordinal, options).map_err(gpu_error)
    }

    fn open(ordinal: usize, compute: &Compute) -> Result<CudaBackend, Error> {
        backend_of(open_gpu(ordinal, &compute.gpu)?, compute)
    }

    /// A backend on an opened GPU.
    pub(super) fn backend_of(device: Device, compute: &Compute) -> Result<CudaBackend, Error> {
        let open = || -> Result<_, CudaExecError> {
            let backend = CudaBackend::new(device)?.with_batch_invariance(compute.gpu.is_batch_invariant);
            if compute.is_traced {
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
        options: &ModelOptions,
        compute: &Compute,
        guesser: Guesser<'_>,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Loaded, Error> {
        let backend = open(ordinal, compute)?;
        load_whole(model, (ordinal, backend), options, compute, guesser, on_progress)
    }

    /// Loads all of the network on an opened GPU, and what guesses tokens next to it.
    fn load_whole(
        model: &Model,
        (ordinal, backend): (usize, CudaBackend),
        options: &ModelOptions,
        compute: &Compute,
        guesser: Guesser<'_>,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Loaded, Error> {
        let device = backend.device().clone();
        let name = device.info().name.clone();
        let room_bytes = backend.room_bytes().map_err(|error| Error::Gpu(error.into()))?;
        let larger = with_larger_steps(options, compute)
            .filter(|options| has_ample_room(model, &backend, options, guesser, room_bytes));
        let options = larger.as_ref().unwrap_or(options);
        let plan = model.plan(&backend, options)?;
        let guesser = guesser.fitting(&backend, options, &plan, room_bytes)?;
        let executor = (model.load_on(backend, options, on_progress)).map_err(device_error)?;
        let guesser = guesser.load_on(|| backend_of(device, compute), options, &executor, on_progress)?;
        let (_, kernels_took) = executor.backend().device().module_loads();
        Ok(Loaded {
            executor: Box::new(executor),
            device: LoadedDevice::Cuda {
                ordinal,
                name,
                kernels_took,
            },
            plan,
            guesser,
        })
    }

    /// The same options with the larger steps that a GPU may have, where these are larger.
    fn with_larger_steps(options: &ModelOptions, compute: &Compute) -> Option<ModelOptions> {
        let n_kv_tokens = options.n_pages?.saturating_mul(PAGE_TOKENS);
        let max_batch_tokens = compute.roomy_step_tokens?.min(n_kv_tokens);
        (max_batch_tokens > options.max_batch_tokens).then(|| ModelOptions {
            max_batch_tokens,
            ..options.clone()
        })
    }

    /// Whether a model and what guesses for it leave an eighth of a GPU's room.
    fn has_ample_room(
        model: &Model,
        backend: &CudaBackend,
        options: &ModelOptions,
        guesser: Guesser<'_>,
        room_bytes: u64,
    ) -> bool {
        // What is wrong with the weights is said where they are loaded.
        let (Ok(plan), Ok(of_guesser)) = (model.plan(backend, options), guesser.plan_on(backend, options))
        else {
            return false;
        };
        let of_guesser = of_guesser.map_or(0, |plan| plan.device_bytes());
        plan.device_bytes().saturating_add(of_guesser) as u64 <= room_bytes - room_bytes / 8
    }

    pub(super) fn device_error(error: LoadError) -> Error {
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

        /// The first level of a request that fits into the GPU's memory, with its plan; or what the last one needs.
        fn first_fit(
            &mut self,
            request: &PlacementRequest,
        ) -> Result<Result<(usize, MemoryPlan), u64>, Error> {
            let last_level = request.last_level(&self.network);
            let Some(level) = self.least(last_level, |level| (*request, level))? else {
                return Ok(Err(self.plan(request, last_level)?.device_bytes() as u64));
            };
            // This also leaves the backend with the placement that was found.
            let plan = self.plan(request, level)?;
            Ok(Ok((level, plan)))
        }

        /// The least of the numbers up to `last` whose placement fits into the GPU's memory; each has less there than the one before.
        fn least(
            &mut self,
            last: usize,
            placement: impl Fn(usize) -> (PlacementRequest, usize),
        ) -> Result<Option<usize>, Error> {
            let (mut low, mut high) = (0, last + 1);
            while low < high {
                let middle = usize::midpoint(low, high);
                let (request, level) = placement(middle);
                if self.plan(&request, level)?.device_bytes() as u64 <= self.room_bytes {
                    high = middle;
                } else {
                    low = middle + 1;
                }
            }
            Ok((high <= last).then_some(high))
        }

        /// Why a request does not fit, and what would if the rest of it stays.
        fn too_large(&mut self, request: &PlacementRequest, needed_bytes: u64) -> Result<Error, Error> {
            let n_layers = self.network.layers.len();
            let with_layers = |n| PlacementRequest {
                layers: DeviceLayers::Last(n),
                ..*request
            };
            let n_given_up = self.least(n_layers, |n_given_up| (with_layers(n_layers - n_given_up), 0))?;
            let has_experts = self.network.layers.iter().any(|layer| layer.experts.is_some());
            let fitting_host_experts = if has_experts && request.layers != DeviceLayers::Auto {
                self.least(n_layers, |n_host_experts| {
                    let request = PlacementRequest {
                        n_host_experts,
                        ..*request
                    };
                    (request, 0)
                })?
            } else {
                None
            };
            Ok(Error::SplitTooLarge {
                needed_bytes,
                free_bytes: self.room_bytes,
                fitting_layers: n_given_up.map_or(0, |n| n_layers - n),
                fitting_host_experts,
                n_layers,
            })
        }
    }

    /// Loads a part of the network on a GPU and the rest on the CPU; all of it on the GPU, with what guesses tokens next to it, where what was
    /// asked for comes to that.
    pub(crate) fn load_split(
        model: &Model,
        ordinal: usize,
        options: &ModelOptions,
        compute: &Compute,
        guesser: Guesser<'_>,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Loaded, Error> {
        let request = compute.placement;
        let network = model.descriptor().shape();
        if request.names_experts() && network.layers.iter().all(|layer| layer.experts.is_none()) {
            return Err(Error::NoExperts);
        }
        let device = open(ordinal, compute)?;
        let name = device.device().info().name.clone();
        let room_bytes = device.room_bytes().map_err(|error| Error::Gpu(error.into()))?;
        let placement = request.placement(&network, 0);
        if placement.is_all_on_host() {
            return Err(Error::NothingOnGpu);
        }
        let mut split = Split {
            model,
            network,
            options,
            backend: Placed::new(compute.cpu_backend()?, device, placement),
            room_bytes,
        };
        let plan = match split.first_fit(&request)? {
            Ok((_, plan)) => plan,
            Err(needed_bytes) => return Err(split.too_large(&request, needed_bytes)?),
        };
        let placement = split.backend.placement().clone();
        if placement.is_all_on_device() {
            let device = split.backend.into_device();
            return load_whole(model, (ordinal, device), options, compute, guesser, on_progress);
        }
        if placement.is_all_on_host() {
            // The level before the last is the least that is a split.
            let least = request.last_level(&split.network).saturating_sub(1);
            let needed_bytes = split.plan(&request, least)?.device_bytes() as u64;
            return Err(split.too_large(&request, needed_bytes)?);
        }
        if options.adapter_bytes > 0 {
            return Err(Error::AdaptersNotWhole);
        }
        guesser.check_split()?;
        check_host_part(&plan, machine_bytes(), available_bytes())?;
        let (n_layers, n_gpu_layers) = (
            placement.layers().len(),
            (placement.layers().iter())
                .filter(|layer| [layer.mixer, layer.ffn, layer.experts].contains(&Side::Device))
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
            BatchThreshold::Tokens(n) => Some(n.max(1)),
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
            guesser: None,
        })
    }
}

#[cfg(not(feature = "cuda"))]
mod without_cuda {
    use tokenmill_backend::BackendError;
    use tokenmill_model::{LoadProgress, Model, ModelOptions};

    use crate::{Compute, Error, Loaded, guesser::Guesser};

    /// What to do about it: who has an archive has no sources.
    const INSTEAD: &str = if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        "take the archive `tokenmill-*-linux-x86_64`, without `-static`, or build it with the feature `cuda`"
    } else {
        "no archive for this kind of machine has it; build it with the feature `cuda`"
    };

    /// This build computes on the CPU only.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
    #[error("this program was built without CUDA; {INSTEAD}")]
    pub struct CudaLeftOut;

    pub(crate) fn load(
        _: &Model,
        _: usize,
        _: &ModelOptions,
        _: &Compute,
        _: Guesser<'_>,
        _: &mut dyn FnMut(LoadProgress),
    ) -> Result<Loaded, Error> {
        Err(CudaLeftOut.into())
    }

    pub(crate) fn load_group(
        _: &Model,
        _: usize,
        _: &ModelOptions,
        _: &Compute,
        _: &mut dyn FnMut(LoadProgress),
    ) -> Result<Loaded, Error> {
        Err(CudaLeftOut.into())
    }

    pub(crate) fn load_split(
        _: &Model,
        _: usize,
        _: &ModelOptions,
        _: &Compute,
        _: Guesser<'_>,
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
