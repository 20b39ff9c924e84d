//! [`Fault`] and [`Defect`]: what a test lets go wrong, once or always.
//!
//! Separate because the GPU and the test both name it.

use crate::code::{LAUNCH_FAILED, LAUNCH_OUT_OF_RESOURCES};

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

/// Something that is wrong with a GPU for as long as it is there, whoever opens and closes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Launches of a kernel write other bits than they should.
    Wrong {
        /// What the kernel's name begins with.
        kernel: String,
        /// Of which launches.
        when: When,
    },
    /// Launches of a kernel are refused.
    Refused {
        /// What the kernel's name begins with.
        kernel: String,
        /// The driver's code.
        code: i32,
        /// Whether the context is lost with it: every later call gives the same.
        is_lost: bool,
    },
    /// A kernel never ends.
    Hang {
        /// What its name begins with.
        kernel: String,
    },
    /// No stream can be captured.
    Capture,
    /// No capture ends in a graph that has a launch which may begin before those before it are done.
    EarlyCapture,
}

/// Which launches of a kernel a [`Defect`] is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// All.
    Always,
    /// Those that may begin before those before them are done.
    Early,
    /// Those of graphs.
    Replayed,
}

impl Defect {
    /// Reads one as the variable of the environment has it: `wrong`, `wrong_early` or `wrong_replayed` and a kernel, `hang` and a kernel, `refuse` and a kernel,
    /// `lose_at` and a kernel, `capture` and `refused` or `refused_early`.
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

    /// Whether a launch of this kernel, early or not and replayed or not, has wrong bits by it.
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

    /// What a launch of this kernel is refused with by it, and whether the context is lost then.
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

    /// Whether a launch of this kernel never ends by it.
    pub(crate) fn hangs(&self, name: &str) -> bool {
        matches!(self, Self::Hang { kernel } if name.starts_with(kernel.as_str()))
    }
}
