//! [`Fault`] and [`Defect`] describe failures that a test injects, once or permanently.

use crate::code::{LAUNCH_FAILED, LAUNCH_OUT_OF_RESOURCES};

/// A fault that happens once.
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
    /// The launch after this many others fails with the test's code, which may be in no header.
    LaunchCode {
        /// Launches that succeed before.
        after: u64,
        /// The code.
        code: i32,
        /// Whether the context is lost with it, so that every later call returns the same code.
        is_lost: bool,
    },
    /// The launch that runs after this many others faults, which loses the device.
    Lose {
        /// Launches that run before, including replays.
        after: u64,
    },
    /// The copy to the host after this many others fails; the device continues.
    Download {
        /// Copies that succeed before.
        after: u64,
    },
}

/// Describes a permanent fault of a GPU, which remains when the device is closed and opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Launches of a kernel write wrong bits.
    Wrong {
        /// Prefix of the kernel's name.
        kernel: String,
        /// The affected launches.
        when: When,
    },
    /// Launches of a kernel are refused.
    Refused {
        /// Prefix of the kernel's name.
        kernel: String,
        /// Error code of the driver.
        code: i32,
        /// Whether the context is lost, so that every later call returns the same error.
        is_lost: bool,
    },
    /// A kernel never ends.
    Hang {
        /// Prefix of the kernel's name.
        kernel: String,
    },
    /// Streams cannot be captured.
    Capture,
    /// A capture with launches that begin early fails.
    EarlyCapture,
}

/// Selects the launches of a kernel that a [`Defect`] affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// All launches.
    Always,
    /// Launches that may begin before earlier ones are done.
    Early,
    /// Launches from graphs.
    Replayed,
}

impl Defect {
    /// Parses the value of the environment variable: `wrong`, `wrong_early`, `wrong_replayed`, `hang`, `refuse` or `lose_at`, each with a
    /// kernel, or `capture` with `refused` or `refused_early`.
    pub(crate) fn parse(name: &str, kernel: &str) -> Option<Self> {
        let wrong = |when| Self::Wrong {
            kernel: kernel.to_owned(),
            when,
        };
        let refused = |code, is_lost| Self::Refused {
            kernel: kernel.to_owned(),
            code,
            is_lost,
        };
        Some(match name {
            "wrong" => wrong(When::Always),
            "wrong_early" => wrong(When::Early),
            "wrong_replayed" => wrong(When::Replayed),
            "hang" => Self::Hang {
                kernel: kernel.to_owned(),
            },
            "refuse" => refused(LAUNCH_OUT_OF_RESOURCES, false),
            "lose_at" => refused(LAUNCH_FAILED, true),
            "capture" if kernel == "refused" => Self::Capture,
            "capture" if kernel == "refused_early" => Self::EarlyCapture,
            _ => return None,
        })
    }

    /// Returns whether the defect changes the bits of a launch of this kernel.
    pub(crate) fn spoils(&self, name: &str, is_early: bool, is_replayed: bool) -> bool {
        let Self::Wrong { kernel, when } = self else {
            return false;
        };
        let is_such = match when {
            When::Always => true,
            When::Early => is_early,
            When::Replayed => is_replayed,
        };
        is_such && name.starts_with(kernel.as_str())
    }

    /// Returns the error code of a launch of this kernel, and whether it loses the context; `None` if the launch works.
    pub(crate) fn refusal(&self, name: &str) -> Option<(i32, bool)> {
        match self {
            Self::Refused {
                kernel,
                code,
                is_lost,
            } if name.starts_with(kernel.as_str()) => Some((*code, *is_lost)),
            _ => None,
        }
    }

    /// Returns whether a launch of this kernel never ends.
    pub(crate) fn hangs(&self, name: &str) -> bool {
        matches!(self, Self::Hang { kernel } if name.starts_with(kernel.as_str()))
    }
}
