//! [`load`]: the load on the device that was chosen.
//!
//! Separate from the model so that one file decides between devices. Invariant: a choice is obeyed or refused; only
//! [`Device::Auto`] falls back to another device and says why.

use std::{panic, sync::mpsc, thread};

use tokenmill_backend::BackendError;
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_model::{LoadError, LoadProgress, Model, ModelOptions};
use tokenmill_placed::{DeviceLayers, PlacementRequest};

use crate::{
    Compute, Device, Error, at_low_priority, gpu,
    loaded::{Loaded, LoadedDevice},
    machine_memory::{available_bytes, check_available, check_memory, machine_bytes},
    mtp::Mtp,
};

/// Loads a network on the device that `compute` chooses, and says where that is.
///
/// # Errors
/// [`Error::Load`] as [`Model::load_on`], [`Error::Gpu`] where a GPU was asked for and cannot be used, [`Error::TooFewGpus`] and
/// [`Error::GroupNotWhole`] where several cannot compute it together, [`Error::SplitTooLarge`],
/// [`Error::NothingOnGpu`] and [`Error::NoExperts`] where what was asked for cannot be on it, [`Error::HostPartTooLarge`] where the
/// rest is larger than the machine's memory, and [`Error::NotEnoughMemory`] of a load on the CPU that is.
pub fn load(
    model: &Model,
    options: &ModelOptions,
    compute: &Compute,
    on_progress: &mut dyn FnMut(LoadProgress),
) -> Result<Loaded, Error> {
    load_with_mtp(model, options, compute, None, on_progress)
}

/// As [`load`], with the model's own layer that guesses further tokens where the CPU computes all.
///
/// # Errors
/// As [`load`].
pub(crate) fn load_with_mtp(
    model: &Model,
    options: &ModelOptions,
    compute: &Compute,
    mtp: Option<&Mtp<'_>>,
    on_progress: &mut dyn FnMut(LoadProgress),
) -> Result<Loaded, Error> {
    match compute.device {
        Device::Cpu if compute.n_gpus > 1 => Err(Error::GroupNotWhole),
        Device::Auto if compute.n_gpus > 1 => load_on_gpu(model, 0, options, compute, on_progress),
        Device::Cpu => load_on_cpu(model, options, compute, (mtp, None), on_progress),
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
                    load_on_cpu(model, options, compute, (mtp, Some(reason)), on_progress)
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
    if compute.n_gpus > 1 {
        if !compute.placement.is_whole() {
            return Err(Error::GroupNotWhole);
        }
        gpu::load_group(model, ordinal, options, compute, on_progress)
    } else if compute.placement.is_whole() {
        gpu::load(model, ordinal, options, compute, on_progress)
    } else {
        gpu::load_split(model, ordinal, options, compute, on_progress)
    }
}

fn load_on_cpu(
    model: &Model,
    options: &ModelOptions,
    compute: &Compute,
    (mtp, passed_over): (Option<&Mtp<'_>>, Option<Error>),
    on_progress: &mut dyn FnMut(LoadProgress),
) -> Result<Loaded, Error> {
    let backend = compute.cpu_backend()?;
    let plan = model.plan(&backend, options)?;
    check_memory(&plan, machine_bytes())?;
    check_available(&plan, available_bytes())?;
    let own = mtp.map(|mtp| Ok((mtp, compute.cpu_backend()?)));
    let own = own.transpose().map_err(Error::Load)?;
    let loaded = load_with(backend, compute, on_progress, |backend, on_progress| {
        let executor = model.load_on(backend, options, on_progress)?;
        let mtp = own.map(|(mtp, backend)| mtp.load(backend, options, &executor, on_progress));
        Ok((executor, mtp.transpose()?))
    });
    let (executor, mtp) = loaded?;
    Ok(Loaded {
        executor: Box::new(executor),
        device: LoadedDevice::Cpu { passed_over },
        plan,
        mtp,
    })
}

/// Loads on a backend in the manner that was asked for.
///
/// # Errors
/// As [`Model::load_on`].
pub(crate) fn load_with<T: Send>(
    backend: CpuBackend,
    compute: &Compute,
    on_progress: &mut dyn FnMut(LoadProgress),
    load: impl FnOnce(CpuBackend, &mut dyn FnMut(LoadProgress)) -> Result<T, LoadError> + Send,
) -> Result<T, LoadError> {
    if compute.is_quiet {
        load_quietly(backend, on_progress, load)
    } else {
        load(backend, on_progress)
    }
}

/// Loads on the CPU, next to a drafting model, or with a layer of its own, that [`Draft::check_choice`](crate::draft::Draft::check_choice) allowed.
///
/// # Errors
/// As [`load`].
pub(crate) fn load_beside_draft(
    model: &Model,
    options: &ModelOptions,
    compute: &Compute,
    mtp: Option<&Mtp<'_>>,
    on_progress: &mut dyn FnMut(LoadProgress),
) -> Result<Loaded, Error> {
    let reason = mtp.map_or(Error::DraftOffCpu, |_| Error::MtpOffCpu);
    let passed_over = (compute.device == Device::Auto).then_some(reason);
    load_on_cpu(model, options, compute, (mtp, passed_over), on_progress)
}

/// Loads on one thread of low priority. The backend's threads were started before and have the usual one.
fn load_quietly<T: Send>(
    mut backend: CpuBackend,
    on_progress: &mut dyn FnMut(LoadProgress),
    load: impl FnOnce(CpuBackend, &mut dyn FnMut(LoadProgress)) -> Result<T, LoadError> + Send,
) -> Result<T, LoadError> {
    backend.set_load_threads(1);
    let (sender, progress) = mpsc::channel();
    thread::scope(|scope| {
        let loading = scope.spawn(move || {
            at_low_priority(|| {
                // The receiver is gone only where this load's caller panics.
                load(backend, &mut |news| {
                    sender.send(news).unwrap_or_default();
                })
            })
        });
        for news in progress {
            on_progress(news);
        }
        loading
            .join()
            .unwrap_or_else(|payload| panic::resume_unwind(payload))
    })
}
