//! What the timing model says of the rows of `kernel-bench`: the same launches, on a simulated device that estimates them.
//!
//! Separate because it measures nothing and needs no results. Invariant: the third of three launches counts, whose weights no cache holds, and with
//! it what launching takes.

use std::collections::BTreeMap;

use anyhow::ensure;
use tokenmill_cuda_exec::{CudaExecError, Device, Stream};
use tokenmill_ptx_sim::DeviceProfile;
use tokenmill_sim_driver::Simulator;

use super::{
    Shops,
    rows::{ROWS, What},
    work::Data,
};

/// Launches of a row. The last is that which counts.
const N_LAUNCHES: usize = 3;

/// Microseconds by the names of rows. Estimates the rows whose name contains `filter` on a device; `on_row` gets the name of each before it is estimated, and how many come after it. Which
/// experts a row goes to is computed by kernels, which do not run here, so rows of experts have no prediction.
///
/// # Errors
/// A device whose registers are not known, or the driver's.
pub(crate) fn predict(
    profile: &'static DeviceProfile,
    filter: &str,
    on_row: &mut dyn FnMut(&str, usize),
) -> anyhow::Result<BTreeMap<String, f64>> {
    let registers = crate::kernel_estimate::registers(profile)?;
    let simulator = Simulator::estimating(profile, registers);
    let open = |wide| Ok(simulator.device_with_wide(wide));
    let mut shops = Shops::new(open, 1, N_LAUNCHES, Data::Zeros)?;
    let rows: Vec<_> = (ROWS.iter())
        .filter(|row| row.name.contains(filter) && !matches!(row.what, What::Experts { .. }))
        .collect();
    let mut kernels = BTreeMap::new();
    for (index, row) in rows.iter().enumerate() {
        on_row(row.name, rows.len() - index - 1);
        let shop = shops.of(row);
        let device = shop.device.clone();
        let mut work = shop.make(row)?;
        // What made the row is done, and noted, before.
        wait(&device)?;
        simulator.take_estimates();
        for index in 0..N_LAUNCHES {
            (work.launch)(index)?;
        }
        wait(&device)?;
        let launches = simulator.take_estimates();
        let last = &launches[launches.len() - launches.len() / N_LAUNCHES..];
        ensure!(!last.is_empty(), "{} launches nothing", row.name);
        let us = last
            .iter()
            .map(|launch| launch.estimate.us + launch.estimate.gap_us);
        kernels.insert(row.name.to_owned(), us.sum());
    }
    Ok(kernels)
}

/// Waits for all that is queued: a simulated device runs it only then.
fn wait(device: &Device) -> Result<(), CudaExecError> {
    let fence = device.fence()?;
    fence.record(Stream::Compute)?;
    fence.synchronize()
}
