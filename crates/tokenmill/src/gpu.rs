//! The load on a GPU, and its refusal in a build without CUDA.
//!
//! The choice of the device does not name CUDA. Invariant: a build without CUDA refuses a requested GPU, and
//! says that CUDA was left out.

#[cfg(feature = "cuda")]
pub use first_use::gpu_check;
#[cfg(feature = "cuda")]
pub(crate) use group::{check_group, load_group};
#[cfg(feature = "cuda")]
pub(crate) use split::{check_split, load_split};
#[cfg(feature = "cuda")]
pub use with_cuda::open_gpu;
#[cfg(feature = "cuda")]
pub(crate) use with_cuda::{check_whole, load};
#[cfg(not(feature = "cuda"))]
pub use without_cuda::CudaLeftOut;
#[cfg(not(feature = "cuda"))]
pub(crate) use without_cuda::{check_group, check_split, check_whole, load, load_group, load_split};

pub use crate::{
    all_reduce::{AllReduce, AllReduceError},
    compute::{GpuOptions, WarpgroupProducts},
    gpu_steps::GpuSteps,
    observers::GpuCheckObserver,
};

/// Whether this build computes on GPUs and the machine has a driver for them.
pub fn has_gpu_driver() -> bool {
    #[cfg(feature = "cuda")]
    return tokenmill_cuda_exec::has_driver();
    #[cfg(not(feature = "cuda"))]
    false
}

/// Says whether this build supports GPUs and the driver has a usable one.
pub fn has_gpu() -> bool {
    #[cfg(feature = "cuda")]
    return tokenmill_cuda_exec::probe()
        .devices
        .iter()
        .any(|gpu| gpu.problem.is_none());
    #[cfg(not(feature = "cuda"))]
    false
}

#[cfg(feature = "cuda")]
mod first_use;
#[cfg(feature = "cuda")]
mod group;
#[cfg(feature = "cuda")]
mod guesser;
#[cfg(feature = "cuda")]
mod kept_measurements;
#[cfg(feature = "cuda")]
mod machine;
#[cfg(feature = "cuda")]
mod split;
#[cfg(feature = "cuda")]
mod sums;
#[cfg(feature = "cuda")]
mod token_reads;

#[cfg(feature = "cuda")]
mod with_cuda {
    use tokenmill_backend::{MemoryPlan, PAGE_TOKENS};
    use tokenmill_cuda_exec::{
        Buffers, Carveout, Cubins, CudaBackend, CudaExecError, Device, DeviceOptions, Launches, WideProducts,
    };
    use tokenmill_model::{LoadError, LoadProgress, Model, ModelExecutor, ModelOptions};

    use super::first_use::FirstUseOf;
    use crate::{
        Error,
        compute::Compute,
        gpu::{GpuOptions, WarpgroupProducts},
        guesser::Guesser,
        load_plan::LoadPlan,
        loaded::{Loaded, LoadedDevice},
    };

    /// Opens a GPU by its number among those that the driver shows.
    ///
    /// # Errors
    /// [`Error::Gpu`] where it cannot be opened.
    pub fn open_gpu(ordinal: usize, options: &GpuOptions) -> Result<Device, Error> {
        Device::open_as(ordinal, device_options(options)?).map_err(gpu_error)
    }

    fn gpu_error(error: CudaExecError) -> Error {
        Error::Gpu(error.into())
    }

    /// Returns the options for opening a GPU.
    ///
    /// # Errors
    /// [`Error::Gpu`] if kernels were compiled ahead for another program.
    pub(super) fn device_options(options: &GpuOptions) -> Result<DeviceOptions, Error> {
        let cubins = options
            .cubins
            .clone()
            .map(Cubins::new)
            .transpose()
            .map_err(gpu_error)?;
        Ok(DeviceOptions {
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
            reads_apart: options.reads_apart,
            carveout: if options.driver_divides_memory {
                Carveout::OfDriver
            } else {
                Carveout::Shared
            },
            runs_eagerly: options.without_graphs,
            ..DeviceOptions::default()
        })
    }

    pub(super) fn open(ordinal: usize, compute: &Compute) -> Result<CudaBackend, Error> {
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
        let mut backend = open(ordinal, compute)?;
        let Some(mut first_use) = FirstUseOf::of(model, (ordinal, &backend), options, compute)? else {
            return load_whole(model, (ordinal, backend), options, compute, guesser, on_progress);
        };
        if !first_use.is_known() {
            drop(backend);
            first_use.check_kernels()?;
            backend = open(ordinal, &first_use.compute())?;
        }
        loop {
            let compute = first_use.compute();
            let loaded = load_checked(
                model,
                (ordinal, backend),
                options,
                &compute,
                guesser,
                on_progress,
                &mut |executor, options| Ok(!first_use.check_model(executor, model, options)?),
            )?;
            match loaded {
                Some(loaded) => return Ok(loaded),
                // The check turned off a feature.
                None => backend = open(ordinal, &first_use.compute())?,
            }
        }
    }

    /// Checks the kernels of a model, for callers that open the GPU themselves; the model's steps are not checked. Returns the compute
    /// options to use.
    ///
    /// # Errors
    /// Fails if the GPU must not be used.
    pub(super) fn check_kernels_of(
        model: &Model,
        ordinal: usize,
        options: &ModelOptions,
        compute: &Compute,
    ) -> Result<Compute, Error> {
        if !FirstUseOf::is_wanted(compute) {
            return Ok(compute.clone());
        }
        let backend = open(ordinal, compute)?;
        let Some(mut first_use) = FirstUseOf::of(model, (ordinal, &backend), options, compute)? else {
            return Ok(compute.clone());
        };
        drop(backend);
        first_use.check_kernels()?;
        Ok(first_use.compute())
    }

    /// Makes the refusals of [`load`] that come before it reads a weight.
    pub(crate) fn check_whole(
        model: &Model,
        ordinal: usize,
        options: &ModelOptions,
        compute: &Compute,
    ) -> Result<(), Error> {
        let backend = open(ordinal, compute)?;
        let plan = model.plan(&backend, options)?;
        check_fit(&backend, options, &plan)
    }

    /// Refuses a model that does not fit into a GPU's memory.
    pub(super) fn check_fit(
        backend: &CudaBackend,
        options: &ModelOptions,
        plan: &MemoryPlan,
    ) -> Result<(), Error> {
        let n_pages = (options.n_pages).unwrap_or(plan.kv_bytes / plan.kv_page_bytes.max(1));
        backend.check_fit(n_pages, plan).map_err(Error::Gpu)?;
        Ok(())
    }

    /// Loads all of the network on an opened GPU, and its draft model or MTP layer.
    pub(super) fn load_whole(
        model: &Model,
        (ordinal, backend): (usize, CudaBackend),
        options: &ModelOptions,
        compute: &Compute,
        guesser: Guesser<'_>,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Loaded, Error> {
        let loaded = load_checked(
            model,
            (ordinal, backend),
            options,
            compute,
            guesser,
            on_progress,
            &mut |_, _| Ok(true),
        )?;
        Ok(loaded.expect("nothing is found"))
    }

    /// Checks a loaded model with its options; returns whether the model stays loaded.
    type Check<'a> = dyn FnMut(&mut ModelExecutor, &ModelOptions) -> Result<bool, Error> + 'a;

    /// Does the same as [`load_whole`], but returns `None` if `check` rejects the model.
    fn load_checked(
        model: &Model,
        (ordinal, backend): (usize, CudaBackend),
        options: &ModelOptions,
        compute: &Compute,
        guesser: Guesser<'_>,
        on_progress: &mut dyn FnMut(LoadProgress),
        check: &mut Check<'_>,
    ) -> Result<Option<Loaded>, Error> {
        let device = backend.device().clone();
        let name = device.info().name.clone();
        let room_bytes = backend.room_bytes().map_err(|error| Error::Gpu(error.into()))?;
        let larger = with_larger_steps(options, compute)
            .filter(|options| has_ample_room(model, &backend, options, guesser, room_bytes));
        let options = larger.as_ref().unwrap_or(options);
        let plan = model.plan(&backend, options)?;
        let guesser = guesser.fitting(&backend, options, &plan, room_bytes)?;
        compute.show_plan(&LoadPlan::new(model, options, &plan, true));
        let mut executor = (model.load_on(backend, options, on_progress)).map_err(device_error)?;
        if !check(&mut executor, options)? {
            return Ok(None);
        }
        let guesser = guesser.load_on(
            || Ok(backend_of(device, compute)?.into()),
            options,
            &executor,
            on_progress,
        )?;
        let (_, kernels_took) = executor.backend::<CudaBackend>().device().module_loads();
        Ok(Some(Loaded {
            executor: Box::new(executor),
            device: LoadedDevice::Cuda {
                ordinal,
                name,
                kernels_took,
            },
            plan,
            guesser,
        }))
    }

    /// Returns the options with the larger steps that a GPU may have, if they are larger.
    fn with_larger_steps(options: &ModelOptions, compute: &Compute) -> Option<ModelOptions> {
        let n_kv_tokens = options.n_pages?.saturating_mul(PAGE_TOKENS);
        let max_batch_tokens = compute.roomy_step_tokens?.min(n_kv_tokens);
        (max_batch_tokens > options.max_batch_tokens).then(|| ModelOptions {
            max_batch_tokens,
            ..options.clone()
        })
    }

    /// Whether a model and its draft model or MTP layer leave an eighth of a GPU's room.
    fn has_ample_room(
        model: &Model,
        backend: &CudaBackend,
        options: &ModelOptions,
        guesser: Guesser<'_>,
        room_bytes: u64,
    ) -> bool {
        // The load itself reports faults of the weights.
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
}

#[cfg(not(feature = "cuda"))]
mod without_cuda {
    use tokenmill_backend::BackendError;
    use tokenmill_model::{LoadProgress, Model, ModelOptions};

    use crate::{Error, compute::Compute, guesser::Guesser, loaded::Loaded};

    /// Remedy: users of a release archive have no sources.
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

    pub(crate) fn check_whole(_: &Model, _: usize, _: &ModelOptions, _: &Compute) -> Result<(), Error> {
        Err(CudaLeftOut.into())
    }

    pub(crate) fn check_split(_: &Model, _: usize, _: &ModelOptions, _: &Compute) -> Result<(), Error> {
        Err(CudaLeftOut.into())
    }

    pub(crate) fn check_group(_: &Model, _: usize, _: &ModelOptions, _: &Compute) -> Result<(), Error> {
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
