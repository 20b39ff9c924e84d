//! [`Pass`]: a pass of the router over the actions of a step.

/// The mode and progress of the current pass over the actions.
pub(crate) struct Pass {
    pub(crate) mode: Mode,
    /// Index of the device's next or open segment: its operations between two borders.
    pub(crate) segment: usize,
    pub(crate) is_open: bool,
}

/// How a pass executes actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Runs them.
    Run,
    /// Records the device's operations and runs none.
    Record,
    /// Runs the host's operations and replays the device's.
    Replay,
}

impl Pass {
    pub(crate) fn new(mode: Mode) -> Self {
        Self {
            mode,
            segment: 0,
            is_open: false,
        }
    }
}
