//! [`Programs`]: the programs of a network, with the schedules of both routes.
//!
//! Invariant: there is a schedule for each variant of a step and each route.

use tokenmill_backend::program::{Op, Prepared};

use crate::schedule::Schedule;

/// The programs of a network, and what each variant of them does.
pub(crate) struct Programs {
    pub(crate) prepared: Prepared,
    /// By route, to the host or to the device, and by variant.
    pub(crate) schedules: [Vec<Schedule>; 2],
    pub(crate) of_empty_step: Op,
}
