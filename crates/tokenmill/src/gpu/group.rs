//! The load on several GPUs, each with a part of every layer.
//!
//! Invariants: all GPUs are opened, and all parts planned, before anything is uploaded; the GPUs sum their
//! results in the way that [`choose`] returns, and have one compute capability, since each computes
//! separately the values that have to be the same on all.

use std::time::Duration;

use tokenmill_backend::{BackendError, HostGroup, MemoryPlan};
use tokenmill_cuda_exec::{CudaBackend, CudaExecError, Device, DeviceInfo, NcclApi};
use tokenmill_model::{LoadError, LoadProgress, Model, ModelOptions, Rank, Shard, WeightSource as _};
use tokenmill_placed::{GroupExecutor, GroupRank};

use super::{
    first_use::FirstUseOf,
    sums::{Sums, check, choose},
    with_cuda::{backend_of, check_fit, check_kernels_of, device_error, open_gpu},
};
use crate::{
    Error,
    compute::Compute,
    load_plan::LoadPlan,
    loaded::{Loaded, LoadedDevice},
};

/// Makes the refusals of [`load_group`] that come before it reads a weight, except for GPUs that NCCL cannot join, and for its memory.
pub(crate) fn check_group(
    model: &Model,
    first: usize,
    options: &ModelOptions,
    compute: &Compute,
) -> Result<(), Error> {
    let shards = shards(model, compute.n_gpus)?;
    let devices = open_all(first, compute)?;
    let infos: Vec<&DeviceInfo> = devices.iter().map(Device::info).collect();
    check_alike(first, &infos)?;
    let may_be_nccl = check(compute, NcclApi::of_system)?;
    for (shard, device) in shards.into_iter().zip(devices) {
        let shard = if may_be_nccl {
            shard.with_divided_head()?
        } else {
            shard
        };
        let backend = backend_of(device, compute)?;
        let plan = shard.plan(&backend, options)?;
        check_fit(&backend, options, &plan)?;
    }
    Ok(())
}

/// The part of each GPU.
fn shards(model: &Model, n_ranks: usize) -> Result<Vec<Shard<'_>>, Error> {
    let shards = (0..n_ranks).map(|idx| model.shard(Rank { idx, n_ranks }));
    Ok(shards.collect::<Result<_, LoadError>>()?)
}

/// Loads a part of each layer on each of the GPUs from `first` on.
pub(crate) fn load_group(
    model: &Model,
    first: usize,
    options: &ModelOptions,
    compute: &Compute,
    on_progress: &mut dyn FnMut(LoadProgress),
) -> Result<Loaded, Error> {
    let n_ranks = compute.n_gpus;
    let shards = shards(model, n_ranks)?;
    if FirstUseOf::is_wanted(compute) {
        // All are opened before any is checked.
        let devices = open_all(first, compute)?;
        check_alike(first, &devices.iter().map(Device::info).collect::<Vec<_>>())?;
    }
    // A feature that one GPU lacks is off for all.
    let compute = &(first..first + n_ranks).try_fold(compute.clone(), |compute, ordinal| {
        check_kernels_of(model, ordinal, options, &compute)
    })?;
    let devices = open_all(first, compute)?;
    let infos: Vec<&DeviceInfo> = devices.iter().map(Device::info).collect();
    check_alike(first, &infos)?;
    let name = devices[0].info().name.clone();
    let group = HostGroup::new(n_ranks);
    // Before anything is planned, since NCCL takes memory of each GPU.
    let (mut joined, without_nccl) = match choose(compute, &devices, &group, NcclApi::of_system)? {
        Sums::Nccl(ranks) => (ranks.into_iter(), None),
        Sums::Host(reason) => (Vec::new().into_iter(), reason),
    };
    let shards: Vec<Shard<'_>> = if joined.len() > 0 {
        shards
            .into_iter()
            .map(Shard::with_divided_head)
            .collect::<Result<_, _>>()?
    } else {
        // Through the host's memory, logits take longer than the head.
        shards
    };
    let backends = (devices.into_iter().enumerate())
        .map(|(idx, device)| {
            let backend = backend_of(device, compute)?;
            Ok(match joined.next() {
                Some(rank) => backend.with_nccl(rank),
                None => backend.with_collective(Box::new(group.rank(idx))),
            })
        })
        .collect::<Result<Vec<_>, Error>>()?;
    let plans = (shards.iter().zip(&backends))
        .map(|(shard, backend)| shard.plan(backend, options))
        .collect::<Result<Vec<_>, _>>()?;
    // The plan of the GPU that needs most memory.
    let plan = (plans.into_iter().max_by_key(MemoryPlan::device_bytes)).expect("a group has ranks");
    compute.show_plan(&LoadPlan::new(model, options, &plan, true));
    let mut kernels_took = Duration::ZERO;
    let mut ranks = Vec::with_capacity(n_ranks);
    let mut before = 0;
    let n_bytes_of = |shard: &Shard<'_>| -> usize { shard.infos().iter().map(|info| info.n_bytes).sum() };
    let n_bytes_total = shards.iter().map(n_bytes_of).sum();
    for (idx, (shard, backend)) in shards.iter().zip(backends).enumerate() {
        let executor = shard
            .load_on(backend, options, &mut |progress| {
                on_progress(LoadProgress {
                    n_bytes_done: before + progress.n_bytes_done,
                    n_bytes_total,
                });
            })
            .map_err(device_error)?;
        before += n_bytes_of(shard);
        kernels_took += executor.backend::<CudaBackend>().device().module_loads().1;
        ranks.push(GroupRank {
            executor: Box::new(executor),
            place: format!("GPU {}", first + idx),
        });
    }
    let executor = GroupExecutor::start(ranks, group).map_err(|source| {
        Error::Load(LoadError::Backend(BackendError::Failed {
            operation: "starting threads",
            source: source.into(),
        }))
    })?;
    Ok(Loaded {
        executor: Box::new(executor),
        device: LoadedDevice::Group {
            first,
            n_gpus: n_ranks,
            name,
            kernels_took,
            without_nccl,
        },
        guesser: None,
        plan,
    })
}

/// The error for GPUs that cannot compute a model together. The driver compiles the kernels separately for
/// each capability, so the last bits of results that every rank computes, such as the choice of experts, may
/// differ between them.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "GPUs that compute a model together need the same compute capability: {first} has {}.{} and {other} has {}.{}",
    first_has.0, first_has.1, other_has.0, other_has.1
)]
struct UnlikeGpus {
    /// The first one's number and name.
    first: String,
    first_has: (u32, u32),
    other: String,
    other_has: (u32, u32),
}

/// Fails where GPUs, numbered from `first` on, differ in compute capability.
fn check_alike(first: usize, infos: &[&DeviceInfo]) -> Result<(), Error> {
    let Some(idx) = infos
        .iter()
        .position(|info| info.capability != infos[0].capability)
    else {
        return Ok(());
    };
    let place = |idx: usize| format!("GPU {} ({})", first + idx, infos[idx].name);
    let source = UnlikeGpus {
        first: place(0),
        first_has: infos[0].capability,
        other: place(idx),
        other_has: infos[idx].capability,
    };
    Err(Error::Gpu(BackendError::Unavailable {
        source: source.into(),
    }))
}

/// Opens all of the GPUs.
fn open_all(first: usize, compute: &Compute) -> Result<Vec<Device>, Error> {
    (first..first + compute.n_gpus)
        .map(|ordinal| open_gpu(ordinal, &compute.gpu).map_err(|error| too_few(error, first, compute.n_gpus)))
        .collect()
}

/// Says how many GPUs are missing, where one is.
fn too_few(error: Error, first: usize, n_gpus: usize) -> Error {
    if let Error::Gpu(BackendError::Unavailable { source }) = &error
        && let Some(CudaExecError::NoSuchDevice { n_devices, .. }) = source.downcast_ref()
    {
        return Error::TooFewGpus {
            n_gpus,
            first,
            n_found: *n_devices,
        };
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, capability: (u32, u32)) -> DeviceInfo {
        DeviceInfo {
            name: name.to_owned(),
            uuid: None,
            capability,
            n_multiprocessors: 100,
            multiprocessor_shared_bytes: 100 << 10,
            total_bytes: 24 << 30,
            cuda_version: (12, 4),
        }
    }

    #[test]
    fn unlike_gpus_are_refused_by_name() {
        let [old, new] = [info("RTX 3090", (8, 6)), info("RTX 4090", (8, 9))];
        assert!(check_alike(0, &[&new, &new]).is_ok());
        // GPUs with the same capability, though of different sizes.
        assert!(check_alike(0, &[&new, &info("L40S", (8, 9))]).is_ok());
        let error = check_alike(1, &[&old, &old, &new]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the GPU cannot be used: GPUs that compute a model together need the same compute capability: \
             GPU 1 (RTX 3090) has 8.6 and GPU 3 (RTX 4090) has 8.9"
        );
    }
}
