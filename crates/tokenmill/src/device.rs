//! [`load`]: loads a model on the chosen device.
//!
//! Only this file decides between devices. Invariant: a choice is obeyed or refused; only [`Device::Auto`]
//! falls back to another device, and says why.

use tokenmill_backend::BackendError;
use tokenmill_model::{LoadProgress, Model, ModelOptions};
use tokenmill_placed::{DeviceLayers, PlacementRequest};

use crate::{
    Device, Error,
    compute::Compute,
    gpu,
    guesser::Guesser,
    load_plan::LoadPlan,
    loaded::{Loaded, LoadedDevice},
    machine_memory::{available_bytes, check_available, check_memory, lacks_memory, memory_limit},
    quiet_load::load_with,
};

/// Loads a network on the device that `compute` chooses, and says where that is.
///
/// # Errors
/// [`Error::Load`] as [`Model::load_on`], [`Error::Gpu`] if a GPU was requested and cannot be used, [`Error::TooFewGpus`] and
/// [`Error::GroupNotWhole`] where several cannot compute it together, [`Error::AdaptersNotWhole`], [`Error::SplitTooLarge`],
/// [`Error::NothingOnGpu`] and [`Error::NoExperts`] if the requested parts cannot be on it, [`Error::HostPartTooLarge`] where the
/// rest is larger than the machine's memory, [`Error::NotEnoughMemory`] of a load on the CPU that is, and [`Error::LoadOutOfMemory`] where
/// the system refuses memory for it.
pub fn load(
    model: &Model,
    options: &ModelOptions,
    compute: &Compute,
    on_progress: &mut dyn FnMut(LoadProgress),
) -> Result<Loaded, Error> {
    load_with_guesser(model, options, compute, Guesser::Nothing, on_progress)
}

/// As [`load`], with a draft model or MTP layer: the CPU computes both, or one GPU does. A draft model on the CPU is loaded by
/// [`Draft::load`](crate::draft::Draft::load).
///
/// # Errors
/// As [`load`], [`Error::NoRoomToGuess`], and faults of the draft model or MTP layer.
pub(crate) fn load_with_guesser(
    model: &Model,
    options: &ModelOptions,
    compute: &Compute,
    guesser: Guesser<'_>,
    on_progress: &mut dyn FnMut(LoadProgress),
) -> Result<Loaded, Error> {
    match compute.device {
        Device::Cpu if compute.n_gpus > 1 => Err(Error::GroupNotWhole),
        Device::Auto if compute.n_gpus > 1 => load_on_gpu(model, 0, options, compute, guesser, on_progress),
        Device::Cpu => load_on_cpu(model, options, compute, (guesser, None), on_progress),
        Device::Cuda { ordinal } => load_on_gpu(model, ordinal, options, compute, guesser, on_progress),
        Device::Auto => {
            let loaded = match load_on_gpu(model, 0, options, compute, guesser, on_progress) {
                // A model that does not fit as a whole is split, and a split network has no adapters.
                Err(Error::Gpu(BackendError::DoesNotFit { .. }))
                    if compute.placement.is_whole()
                        && !guesser.is_asked_for()
                        && options.adapter_bytes == 0 =>
                {
                    let compute = Compute {
                        placement: PlacementRequest {
                            layers: DeviceLayers::Auto,
                            ..compute.placement
                        },
                        ..compute.clone()
                    };
                    gpu::load_split(model, 0, options, &compute, guesser, on_progress)
                }
                loaded => loaded,
            };
            match loaded {
                Ok(loaded) => Ok(loaded),
                Err(
                    reason @ (Error::Gpu(_)
                    | Error::SplitTooLarge { .. }
                    | Error::CpuIsQuicker { .. }
                    | Error::NoRoomToGuess { .. }
                    | Error::Draft { .. }),
                ) => load_on_cpu(model, options, compute, (guesser, Some(reason)), on_progress),
                // The file is at fault, and would be on any device.
                Err(error) => Err(error),
            }
        }
    }
}

/// Makes the refusals of [`load`] that come before it reads a weight, if GPUs are requested: they cannot be used, the network cannot be placed on
/// them so, or one has too little memory. Not refused are GPUs that NCCL is there for and cannot join, and parts that fit but for the
/// memory that it takes; and where the number of layers is left open, the host's part that does not fit. Nothing is refused if the CPU is requested, or the choice is left open.
///
/// # Errors
/// As [`load`].
pub fn check_load(model: &Model, options: &ModelOptions, compute: &Compute) -> Result<(), Error> {
    match compute.device {
        Device::Cuda { ordinal } if compute.n_gpus > 1 => {
            if !compute.placement.is_whole() {
                return Err(Error::GroupNotWhole);
            }
            if options.adapter_bytes > 0 {
                return Err(Error::AdaptersNotWhole);
            }
            gpu::check_group(model, ordinal, options, compute)
        }
        Device::Cuda { ordinal } if compute.placement.is_whole() => {
            gpu::check_whole(model, ordinal, options, compute)
        }
        Device::Cuda { ordinal } => gpu::check_split(model, ordinal, options, compute),
        Device::Cpu | Device::Auto => Ok(()),
    }
}

fn load_on_gpu(
    model: &Model,
    ordinal: usize,
    options: &ModelOptions,
    compute: &Compute,
    guesser: Guesser<'_>,
    on_progress: &mut dyn FnMut(LoadProgress),
) -> Result<Loaded, Error> {
    if compute.n_gpus > 1 {
        if !compute.placement.is_whole() {
            return Err(Error::GroupNotWhole);
        }
        if options.adapter_bytes > 0 {
            return Err(Error::AdaptersNotWhole);
        }
        gpu::load_group(model, ordinal, options, compute, on_progress)
    } else if compute.placement.is_whole() {
        gpu::load(model, ordinal, options, compute, guesser, on_progress)
    } else {
        gpu::load_split(model, ordinal, options, compute, guesser, on_progress)
    }
}

fn load_on_cpu(
    model: &Model,
    options: &ModelOptions,
    compute: &Compute,
    (guesser, passed_over): (Guesser<'_>, Option<Error>),
    on_progress: &mut dyn FnMut(LoadProgress),
) -> Result<Loaded, Error> {
    let backend = compute.cpu_backend()?;
    let plan = model.plan(&backend, options)?;
    check_memory(&plan, memory_limit())?;
    check_available(&plan, available_bytes())?;
    let mtp = match guesser {
        Guesser::Nothing => None,
        Guesser::Draft(draft) => {
            draft.check_room(options, compute, &plan)?;
            None
        }
        Guesser::Layer { mtp, is_asked_for } => match mtp.check(options, compute, &plan) {
            Ok(n_bytes) => Some((mtp, n_bytes)),
            Err(error) if is_asked_for => return Err(error),
            Err(_) => None,
        },
    };
    let told = LoadPlan::new(model, options, &plan, false);
    compute.show_plan(&told);
    let n_ctx = told.n_ctx;
    let mtp_bytes = mtp.as_ref().map_or(0, |(_, n_bytes)| *n_bytes);
    let own = mtp.map(|(mtp, _)| Ok((mtp, compute.cpu_backend()?)));
    let own = own.transpose().map_err(Error::Load)?;
    let loaded = load_with(backend, compute, on_progress, |backend, on_progress| {
        let executor = model.load_on(backend, options, on_progress)?;
        let mtp = own.map(|(mtp, backend)| mtp.load(backend.into(), options, &executor, on_progress));
        Ok((executor, mtp.transpose()?))
    });
    let (executor, guesser) = match loaded {
        Ok(loaded) => loaded,
        Err(error) if lacks_memory(&error) => {
            return Err(Error::LoadOutOfMemory {
                plan: Box::new(plan),
                mtp_bytes,
                n_ctx,
                source: Box::new(error),
            });
        }
        Err(error) => return Err(error.into()),
    };
    Ok(Loaded {
        executor: Box::new(executor),
        device: LoadedDevice::Cpu { passed_over },
        plan,
        guesser,
    })
}
