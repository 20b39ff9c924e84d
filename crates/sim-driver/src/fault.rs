//! [`Fault`]: what a test lets go wrong.
//!
//! Separate because the GPU and the test both name it.

/// Something to go wrong once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Beginning a capture fails.
    BeginCapture,
    /// Ending a capture fails, after the stream has left it.
    EndCapture,
    /// The launch after this many others fails; the device continues.
    Launch {
        /// Launches that succeed before.
        after: u64,
    },
    /// The launch after this many others gives a code of the test's, which no header need know.
    LaunchCode {
        /// Launches that succeed before.
        after: u64,
        /// The code.
        code: i32,
        /// Whether the context is lost with it: every later call gives the same.
        is_lost: bool,
    },
    /// The launch that runs after this many others faults, which loses the device.
    Lose {
        /// Launches that run before, those of replays included.
        after: u64,
    },
    /// The copy to the host after this many others fails; the device continues.
    Download {
        /// Copies that succeed before.
        after: u64,
    },
}
