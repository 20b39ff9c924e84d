//! [`measure_bandwidths`]: how fast a GPU copies within its memory, and over the link to the host's.
//!
//! Separate because no step needs it. Invariant: it leaves nothing behind, and takes a part of what is free.

use std::time::Instant;

use crate::{CudaExecError, Device, Stream};

/// Bytes of the copy within the device, where there is room: more than its caches have.
const DEVICE_BYTES: usize = 256 << 20;
/// Bytes of the copy over the link.
const LINK_BYTES: usize = 32 << 20;
/// Bytes of a copy whose time is that of a crossing: a row of hidden states.
const ROW_BYTES: usize = 16 << 10;
/// Copies queued between two waits; the first run warms up.
const N_COPIES: usize = 8;
/// Round trips of a row.
const N_TRIPS: usize = 20;
/// Runs after the one that warms up; the fastest counts.
const N_RUNS: usize = 3;

/// What copies of a GPU reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySpeeds {
    /// Bytes a second read and written by a copy within the device, both counted.
    pub device_bytes_per_s: u64,
    /// Bytes a second over the link, of the slower direction.
    pub link_bytes_per_s: u64,
    /// Nanoseconds of a crossing of a row: half of a copy up, one down, and a wait for it.
    pub crossing_ns: u64,
}

/// Measures the copies of a device, with memory that is free now. On a simulated device these are times of the machine that simulates it.
///
/// # Errors
/// [`CudaExecError::OutOfMemory`] where not even a row has room, or the driver's.
pub fn measure_bandwidths(device: &Device) -> Result<CopySpeeds, CudaExecError> {
    // Two buffers, and as much stays free for what others take meanwhile.
    let free = usize::try_from(device.free_bytes()? / 4).unwrap_or(usize::MAX);
    let n_bytes = DEVICE_BYTES.min(free).max(ROW_BYTES);
    let from = device.alloc::<u8>("measuring copies", n_bytes)?;
    let mut to = device.alloc::<u8>("measuring copies", n_bytes)?;
    let within = shortest(|| {
        for _ in 0..N_COPIES {
            device.copy(Stream::Compute, from.view(), &to.view_mut())?;
        }
        let fence = device.fence()?;
        fence.record(Stream::Compute)?;
        fence.synchronize()
    })?;
    let n_link = LINK_BYTES.min(n_bytes);
    let mut pinned = device.alloc_pinned::<u8>(n_link)?;
    let up = shortest(|| {
        pinned.upload(Stream::Compute, 0..n_link, &to.view_mut().range(0..n_link)?)?;
        pinned.host().map(|_| ())
    })?;
    let down = shortest(|| {
        pinned.download(Stream::Compute, to.view().range(0..n_link)?, 0..n_link)?;
        pinned.host().map(|_| ())
    })?;
    let mut row = device.alloc_pinned::<u8>(ROW_BYTES)?;
    let trips = shortest(|| {
        for _ in 0..N_TRIPS {
            row.upload(Stream::Compute, 0..ROW_BYTES, &to.view_mut().range(0..ROW_BYTES)?)?;
            row.download(Stream::Compute, to.view().range(0..ROW_BYTES)?, 0..ROW_BYTES)?;
            row.host()?;
        }
        Ok(())
    })?;
    let rate = |n_bytes: usize, seconds: f64| ((n_bytes as f64 / seconds) as u64).max(1);
    Ok(CopySpeeds {
        device_bytes_per_s: rate(2 * N_COPIES * n_bytes, within),
        link_bytes_per_s: rate(n_link, up.max(down)),
        crossing_ns: (trips / (2 * N_TRIPS) as f64 * 1e9) as u64,
    })
}

/// Seconds of the fastest run.
fn shortest(mut run: impl FnMut() -> Result<(), CudaExecError>) -> Result<f64, CudaExecError> {
    run()?;
    let mut shortest = f64::INFINITY;
    for _ in 0..N_RUNS {
        let start = Instant::now();
        run()?;
        shortest = shortest.min(start.elapsed().as_secs_f64());
    }
    Ok(shortest.max(1e-9))
}

#[cfg(test)]
mod tests {
    use tokenmill_sim_driver::{Fault, SimOptions, Simulator};

    use super::*;
    use crate::driver::simulated;

    #[test]
    fn copies_are_measured_and_leave_nothing_behind() {
        let simulator = Simulator::new(&SimOptions::default());
        let device = simulated(&simulator);
        let free = device.free_bytes().unwrap();
        let speeds = measure_bandwidths(&device).unwrap();
        assert!(
            speeds.device_bytes_per_s > 1 && speeds.link_bytes_per_s > 1,
            "{speeds:?}"
        );
        assert_eq!(device.free_bytes().unwrap(), free);
    }

    #[test]
    fn a_copy_that_fails_is_told() {
        let simulator = Simulator::new(&SimOptions::default());
        let device = simulated(&simulator);
        simulator.inject(Fault::Download { after: 2 });
        assert!(measure_bandwidths(&device).is_err());
        assert!(measure_bandwidths(&device).is_ok());
    }
}
