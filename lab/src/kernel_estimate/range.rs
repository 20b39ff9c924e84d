//! [`most_us`]: how much longer than its estimate a launch may take on a card.
//!
//! Separate from the estimate, which has one value for a launch. The other end of the range comes from others' measurements: it adds the largest
//! differences between the points of `published` and their predictions. Invariant: `published` rejects figures that are not these differences.

use tokenmill_sim_driver::LaunchEstimate;

/// Microseconds that a product of a few rows may take longer.
pub(super) const PRODUCT_LATE_US: f64 = 4.44;
/// Microseconds that any other launch may take longer.
pub(super) const OTHER_LATE_US: f64 = 1.83;
/// Least share of the predicted rate that a product of many rows may reach.
pub(super) const MANY_ROWS_SHARE: f64 = 1.0;

/// Returns the most microseconds that a launch may take, with the gap before it.
pub(super) fn most_us(launch: &LaunchEstimate) -> f64 {
    let us = launch.estimate.us + launch.estimate.gap_us;
    if launch.module.starts_with("matmul") {
        us / MANY_ROWS_SHARE
    } else if launch.module.starts_with("matvec") || launch.module.starts_with("experts") {
        us + PRODUCT_LATE_US
    } else {
        us + OTHER_LATE_US
    }
}
