//! [`Predictor`]: predictions of the timing model for the rows of `kernel-bench`: the same launches, on a simulated device that estimates them.
//!
//! It measures nothing and needs no results. Invariants: the third of three launches counts, whose weights no cache holds, including the time to
//! launch it; an estimate depends only on the memory state that the row's own launches left, and a failed row leaves nothing to the next.

use anyhow::{Context, ensure};
use tokenmill_cuda_exec::{CudaExecError, Device, Stream};
use tokenmill_ptx_sim::DeviceProfile;
use tokenmill_sim_driver::{LaunchEstimate, Simulator};

use super::{
    Shops,
    rows::{ROWS, RowSpec},
    work::{Data, Work},
};

/// Number of launches of a row; the last one counts.
const N_LAUNCHES: usize = 3;

/// Names of the rows that have `filter` in them, in the order of a step.
pub(crate) fn rows(filter: &str) -> impl Iterator<Item = &'static str> {
    (ROWS.iter().map(|row| row.name)).filter(move |name| name.contains(filter))
}

/// Estimates rows on a device, one at a time.
pub(crate) struct Predictor {
    profile: &'static DeviceProfile,
    /// Made for the first row, and again after a failed one: a device that stopped is lost.
    opened: Option<(Simulator, Shops)>,
}

impl Predictor {
    pub(crate) fn new(profile: &'static DeviceProfile) -> Self {
        Self {
            profile,
            opened: None,
        }
    }

    /// Returns the microseconds of the row of this name. Rows of experts use experts that the simulated driver invents, all equally likely.
    ///
    /// # Errors
    /// A name that no row has, a device whose registers are not known, or the driver's.
    pub(crate) fn us(&mut self, name: &str) -> anyhow::Result<f64> {
        let row = RowSpec::find(name)?;
        let found = self.estimate(row);
        if found.is_err() {
            self.opened = None;
        }
        found
    }

    fn estimate(&mut self, row: &RowSpec) -> anyhow::Result<f64> {
        if self.opened.is_none() {
            let simulator = crate::kernel_estimate::simulator(self.profile, false)?;
            let open = |wide| Ok(simulator.device_with_wide(wide));
            let shops = Shops::new(open, 1, N_LAUNCHES, Data::Zeros)?;
            self.opened = Some((simulator, shops));
        }
        let (simulator, shops) = self.opened.as_mut().context("the device was opened")?;
        // Launches of another row may be alike except for the contents of memory, such as those of two ways to sample.
        simulator.forget_launches();
        let shop = shops.of(row);
        let device = shop.device.clone();
        let mut work = shop.make(row.what)?;
        let last = estimates(simulator, &device, &mut work, N_LAUNCHES)?;
        ensure!(!last.is_empty(), "{} launches nothing", row.name);
        let us = last
            .iter()
            .map(|launch| launch.estimate.us + launch.estimate.gap_us);
        Ok(us.sum())
    }
}

/// Launches so many times on a device that estimates, and returns the launches of the last time.
///
/// # Errors
/// The driver's.
pub(crate) fn estimates(
    simulator: &Simulator,
    device: &Device,
    work: &mut Work<'_>,
    n: usize,
) -> anyhow::Result<Vec<LaunchEstimate>> {
    // Launches that made the work are finished and recorded here, and so not counted below.
    wait(device)?;
    simulator.take_estimates();
    for index in 0..n {
        (work.launch)(index)?;
    }
    wait(device)?;
    let mut launches = simulator.take_estimates();
    Ok(launches.split_off(launches.len() - launches.len() / n))
}

/// Waits for all queued work: a simulated device runs it only then.
///
/// # Errors
/// The driver's, or that of a launch.
pub(crate) fn wait(device: &Device) -> Result<(), CudaExecError> {
    let fence = device.fence()?;
    fence.record(Stream::Compute)?;
    fence.synchronize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_samples_is_estimated_by_its_own_launches_whatever_came_before() {
        let profile = DeviceProfile::find("h200").unwrap();
        let mut one = Predictor::new(profile);
        let after = [
            one.us("sample top-k, top-p").unwrap(),
            one.us("sample top-p").unwrap(),
        ];
        let alone = Predictor::new(profile).us("sample top-p").unwrap();
        assert_eq!(after[1], alone);
        assert!(after.iter().all(|us| (2.0..100.0).contains(us)), "{after:?}");
        let error = one.us("sample").unwrap_err().to_string();
        assert_eq!(error, "no row is called `sample`");
        // After an error the next row is estimated from the start.
        assert_eq!(one.us("sample top-p").unwrap(), alone);
    }

    #[test]
    fn rows_of_experts_are_estimated_by_choices_that_are_made_up() {
        let profile = DeviceProfile::find("h200").unwrap();
        let us = Predictor::new(profile).us("experts, Q4_K").unwrap();
        // Eight experts have 14 MB of weights, for which device memory takes 3.3 us.
        assert!((3.3..30.0).contains(&us), "{us}");
    }
}
