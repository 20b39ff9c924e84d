//! The processors that the system reports, and pinning a thread to some of them.
//!
//! Only Linux supports this; elsewhere there is an error in its place. Invariant: a failure changes nothing.

use crate::places::{Machine, PlacesError};

#[cfg(target_os = "linux")]
pub(super) fn machine() -> Result<Machine, PlacesError> {
    use std::path::Path;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu};

    let set = sched_getaffinity(None).map_err(|error| PlacesError::System {
        reason: error.to_string(),
    })?;
    let allowed = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect();
    Ok(Machine::new(
        allowed,
        sched_getcpu(),
        Path::new("/sys/devices/system/node"),
    ))
}

/// Pins the calling thread to some processors.
#[cfg(target_os = "linux")]
pub(super) fn keep_to(cpus: &[usize]) -> Result<(), PlacesError> {
    use rustix::thread::{CpuSet, sched_setaffinity};

    let mut set = CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    sched_setaffinity(None, &set).map_err(|error| PlacesError::System {
        reason: error.to_string(),
    })
}

#[cfg(not(target_os = "linux"))]
pub(super) fn machine() -> Result<Machine, PlacesError> {
    Err(PlacesError::Unsupported)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn keep_to(_: &[usize]) -> Result<(), PlacesError> {
    Err(PlacesError::Unsupported)
}
