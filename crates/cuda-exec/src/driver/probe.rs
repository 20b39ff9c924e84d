//! [`probe`]: which GPUs there are, and why one would not be used.
//!
//! Separate from opening a device, so that a command can report everything and open nothing for long. Invariant: it never
//! fails and never panics; what cannot be had is part of the report.

use super::{Api, DeviceInfo, cuda};
use crate::CudaExecError;

/// What the machine offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Availability {
    /// The CUDA version that the driver supports; `None` without a driver.
    pub cuda_version: Option<(u32, u32)>,
    /// The GPUs that the driver shows.
    pub devices: Vec<DeviceReport>,
    /// Why no GPU can be used, where none can.
    pub problem: Option<CudaExecError>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReport {
    /// Its number.
    pub ordinal: usize,
    /// What it is.
    pub info: DeviceInfo,
    /// Bytes of its memory that are free; `None` where the GPU cannot be used.
    pub free_bytes: Option<u64>,
    /// Why it cannot be used, where it cannot.
    pub problem: Option<CudaExecError>,
}

/// Whether there is a driver to ask, without starting it.
pub fn has_driver() -> bool {
    cuda::has_driver()
}

/// Looks at the driver and its GPUs.
pub fn probe() -> Availability {
    let mut availability = Availability {
        cuda_version: None,
        devices: Vec::new(),
        problem: None,
    };
    let api = match Api::of_system() {
        Ok(api) => api,
        Err(error) => {
            if let CudaExecError::DriverTooOld { found, .. } = error {
                availability.cuda_version = Some(found);
            }
            availability.problem = Some(error);
            return availability;
        }
    };
    availability.cuda_version = cuda::cuda_version(&api).ok();
    let n_devices = match cuda::count_devices(&api) {
        Ok(n_devices) => n_devices,
        Err(error) => {
            availability.problem = Some(error);
            return availability;
        }
    };
    for ordinal in 0..n_devices {
        match cuda::describe_device(&api, ordinal) {
            Ok((_, info)) => {
                let free_bytes = cuda::check_device(&info).and_then(|()| cuda::free_bytes_of(&api, ordinal));
                availability.devices.push(DeviceReport {
                    ordinal,
                    info,
                    free_bytes: free_bytes.as_ref().ok().copied(),
                    problem: free_bytes.err(),
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
