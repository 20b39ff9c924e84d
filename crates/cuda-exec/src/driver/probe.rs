//! [`probe`]: lists the GPUs, and why one would not be used.
//!
//! A command can report everything without keeping a device open. Opening a GPU takes some hundred megabytes of its memory and up to a
//! second, and only an opened GPU reports its free memory, so of several GPUs only the first usable one is opened. Invariant: it never
//! fails and never panics; errors are part of the report.

use super::{Api, DeviceInfo, cuda};
use crate::CudaExecError;

/// Describes the driver and the GPUs of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Availability {
    /// The CUDA version that the driver supports; `None` without a driver.
    pub cuda_version: Option<(u32, u32)>,
    /// The GPUs that the driver shows.
    pub devices: Vec<DeviceReport>,
    /// Why no GPU can be used.
    pub problem: Option<CudaExecError>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReport {
    /// Its number.
    pub ordinal: usize,
    /// The description of the device.
    pub info: DeviceInfo,
    /// The free bytes of its memory; `None` if the GPU cannot be used, and for all usable GPUs after the
    /// first.
    pub free_bytes: Option<u64>,
    /// Why it cannot be used; `None` if it can.
    pub problem: Option<CudaExecError>,
}

/// Returns whether a driver exists, without starting it.
pub fn has_driver() -> bool {
    cuda::has_driver()
}

/// Queries the driver and its GPUs.
pub fn probe() -> Availability {
    match Api::of_system() {
        Ok(api) => probe_with(&api),
        Err(error) => Availability {
            cuda_version: match error {
                CudaExecError::DriverTooOld { found, .. } => Some(found),
                _ => None,
            },
            devices: Vec::new(),
            problem: Some(error),
        },
    }
}

/// Queries a driver other than the system's, and its GPUs.
pub fn probe_with(api: &Api) -> Availability {
    let mut availability = Availability {
        cuda_version: cuda::cuda_version(api).ok(),
        devices: Vec::new(),
        problem: None,
    };
    let n_devices = match cuda::count_devices(api) {
        Ok(n_devices) => n_devices,
        Err(error) => {
            availability.problem = Some(error);
            return availability;
        }
    };
    for ordinal in 0..n_devices {
        match cuda::describe_device(api, ordinal) {
            Ok((_, info)) => {
                let is_first = availability.devices.iter().all(|device| device.problem.is_some());
                let free_bytes = cuda::check_device(&info)
                    .and_then(|()| is_first.then(|| cuda::free_bytes_of(api, ordinal)).transpose());
                let (free_bytes, problem) = match free_bytes {
                    Ok(free_bytes) => (free_bytes, None),
                    Err(problem) => (None, Some(problem)),
                };
                availability.devices.push(DeviceReport {
                    ordinal,
                    info,
                    free_bytes,
                    problem,
                });
            }
            Err(error) => availability.problem = Some(error),
        }
    }
    let problem = |device: &DeviceReport| device.problem.clone();
    if availability.devices.iter().any(|device| device.problem.is_none()) {
        availability.problem = None;
    } else if let Some(first) = availability.devices.first().and_then(problem) {
        availability.problem = Some(first);
    }
    availability
}
