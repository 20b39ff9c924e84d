//! [`measure_bandwidths`]: measures how fast a GPU copies within its memory, and over the link to the host's.
//!
//! Invariant: it frees all that it allocates, and takes only a part of the free memory.

use std::time::Instant;

use crate::{CudaExecError, Device, Stream};

/// Bytes of the copy within the device if they fit: more than its caches hold.
const DEVICE_BYTES: usize = 256 << 20;
/// Bytes of the copy over the link.
const LINK_BYTES: usize = 32 << 20;
/// Bytes of the copy that times a crossing: a row of hidden states.
const ROW_BYTES: usize = 16 << 10;
/// Copies queued between two waits.
const N_COPIES: usize = 8;
/// Round trips of a row.
const N_TRIPS: usize = 20;
/// Runs of the largest copy; the fastest counts.
const N_RUNS: usize = 3;
/// Seconds after which a run is neither made longer nor repeated: a device this slow is a simulated one.
const LONG_S: f64 = 0.05;

/// Holds the measured speeds of a GPU's copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySpeeds {
    /// Bytes a second of a copy within the device; reads and writes both count.
    pub device_bytes_per_s: u64,
    /// Bytes a second over the link, of the slower direction.
    pub link_bytes_per_s: u64,
    /// Nanoseconds of a crossing of a row: half of a copy up, a copy down, and a wait for it.
    pub crossing_ns: u64,
}

/// Measures the copies of a device in its free memory. For a simulated device the times are those of the machine that simulates it.
///
/// # Errors
/// [`CudaExecError::OutOfMemory`] if not even a row fits, or the driver's.
pub fn measure_bandwidths(device: &Device) -> Result<CopySpeeds, CudaExecError> {
    // Two buffers, and the same amount stays free for other programs.
    let free = usize::try_from(device.free_bytes()? / 4).unwrap_or(usize::MAX);
    let n_bytes = DEVICE_BYTES.min(free).max(ROW_BYTES);
    let from = device.alloc::<u8>("measuring copies", n_bytes)?;
    let mut to = device.alloc::<u8>("measuring copies", n_bytes)?;
    let within = best_rate(n_bytes, LONG_S, |n_bytes| {
        for _ in 0..N_COPIES {
            let to = to.view_mut().range(0..n_bytes)?;
            device.copy(Stream::Compute, from.view().range(0..n_bytes)?, &to)?;
        }
        let fence = device.fence()?;
        fence.record(Stream::Compute)?;
        fence.synchronize()
    })?;
    let n_link = LINK_BYTES.min(n_bytes);
    let mut pinned = device.alloc_pinned::<u8>(n_link)?;
    let up = best_rate(n_link, LONG_S, |n_bytes| {
        pinned.upload(Stream::Compute, 0..n_bytes, &to.view_mut().range(0..n_bytes)?)?;
        pinned.host().map(|_| ())
    })?;
    let down = best_rate(n_link, LONG_S, |n_bytes| {
        pinned.download(Stream::Compute, to.view().range(0..n_bytes)?, 0..n_bytes)?;
        pinned.host().map(|_| ())
    })?;
    let trips = best_rate(ROW_BYTES, LONG_S, |n_bytes| {
        for _ in 0..N_TRIPS {
            pinned.upload(Stream::Compute, 0..n_bytes, &to.view_mut().range(0..n_bytes)?)?;
            pinned.download(Stream::Compute, to.view().range(0..n_bytes)?, 0..n_bytes)?;
            pinned.host()?;
        }
        Ok(())
    })?;
    let trip_s = ROW_BYTES as f64 / trips;
    Ok(CopySpeeds {
        device_bytes_per_s: ((2 * N_COPIES) as f64 * within).max(1.0) as u64,
        link_bytes_per_s: up.min(down).max(1.0) as u64,
        crossing_ns: (trip_s / (2 * N_TRIPS) as f64 * 1e9) as u64,
    })
}

/// Returns the bytes a second of the fastest run with `max_bytes`, or, on a slow device, with as many bytes as take `long_s`. Runs with
/// fewer bytes come first.
fn best_rate(
    max_bytes: usize,
    long_s: f64,
    mut run: impl FnMut(usize) -> Result<(), CudaExecError>,
) -> Result<f64, CudaExecError> {
    let mut timed = |n_bytes: usize| -> Result<f64, CudaExecError> {
        let start = Instant::now();
        run(n_bytes)?;
        Ok(start.elapsed().as_secs_f64().max(1e-9))
    };
    let mut n_bytes = ROW_BYTES.min(max_bytes);
    let mut shortest = timed(n_bytes)?;
    while n_bytes < max_bytes && shortest < long_s {
        n_bytes = (4 * n_bytes).min(max_bytes);
        shortest = timed(n_bytes)?;
    }
    for _ in 0..N_RUNS {
        if shortest >= long_s {
            break;
        }
        shortest = shortest.min(timed(n_bytes)?);
    }
    Ok(n_bytes as f64 / shortest)
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
    fn a_copy_is_made_longer_until_it_takes_long() {
        let sizes = |max_bytes: usize, long_s: f64| {
            let mut sizes = Vec::new();
            best_rate(max_bytes, long_s, |n_bytes| {
                sizes.push(n_bytes / ROW_BYTES);
                Ok(())
            })
            .unwrap();
            sizes
        };
        assert_eq!(sizes(64 * ROW_BYTES, 0.0), [1]);
        assert_eq!(sizes(6 * ROW_BYTES, f64::INFINITY), [1, 4, 6, 6, 6, 6]);
        assert_eq!(sizes(ROW_BYTES, f64::INFINITY), [1; 4]);
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
