//! [`Measurements`]: where the measurements of this machine are stored, and which of them are switched off.
//!
//! It is chosen before a load, also in a build that measures nothing. Invariant: without a folder nothing is
//! written.

use std::{fmt, path::PathBuf};

use tokenmill_placed::Bandwidths;

/// Where measurements of this machine are stored, and which are not made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measurements {
    /// The folder, which is created if it is missing; `None` stores nothing and measures at every load that
    /// needs it.
    pub folder: Option<PathBuf>,
    /// Whether stored measurements are repeated and replaced.
    pub is_made_again: bool,
    /// Bandwidths to choose by in the place of measured ones, which are then neither read nor kept.
    pub bandwidths: Option<Bandwidths>,
}

/// Where figures of a machine come from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MeasuredWhen {
    /// They were given.
    Given,
    /// Measured at an earlier load.
    Before,
    /// Measured at this load.
    Now {
        /// Why the next load will not find them, where it should.
        not_kept: Option<String>,
    },
}

impl fmt::Display for MeasuredWhen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Given => f.write_str("given"),
            Self::Before => f.write_str("measured before"),
            Self::Now { not_kept: None } => f.write_str("measured now"),
            Self::Now {
                not_kept: Some(reason),
            } => write!(f, "measured now and not kept: {reason}"),
        }
    }
}
