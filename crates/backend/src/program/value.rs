//! [`Value`]: a named result of an operation, and its shape in terms of a step's counts.
//!
//! A program is made before any step, so a shape counts rows by kind. Invariant: a value is written once.

use std::fmt;

use crate::{ExecutorLimits, StepShape};

/// A value's index in its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub u32);

impl Value {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "x{}", self.0)
    }
}

/// The rows of a step that a value has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowKind {
    /// All tokens, `T`.
    Tokens,
    /// The tokens that yield a result, or the sequences of a pooled step, `O`.
    Outputs,
    /// The tokens whose logits are requested, `L`.
    Logits,
}

/// A number of rows: some for each row of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowCount {
    /// The kind.
    pub kind: RowKind,
    /// Number of rows for each row of the kind: the choices of experts, otherwise 1.
    pub times: usize,
}

impl RowCount {
    /// One row for each token.
    pub const TOKENS: Self = Self::each(RowKind::Tokens);

    /// One row for each row of a kind.
    pub const fn each(kind: RowKind) -> Self {
        Self { kind, times: 1 }
    }

    /// Returns the number of rows in a step.
    pub fn of(self, shape: &StepShape) -> usize {
        let n_rows = match self.kind {
            RowKind::Tokens => shape.n_tokens,
            RowKind::Outputs => shape.n_outputs,
            RowKind::Logits => shape.n_logits,
        };
        n_rows * self.times
    }

    /// Returns the largest number of rows in a step; `usize::MAX` on overflow.
    pub fn at_most(self, limits: &ExecutorLimits) -> usize {
        let n_rows = match self.kind {
            RowKind::Tokens | RowKind::Outputs => limits.max_batch_tokens,
            RowKind::Logits => limits.max_logit_rows,
        };
        n_rows.saturating_mul(self.times)
    }
}

impl fmt::Display for RowCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            RowKind::Tokens => "T",
            RowKind::Outputs => "O",
            RowKind::Logits => "L",
        };
        match self.times {
            1 => f.write_str(kind),
            times => write!(f, "{kind}*{times}"),
        }
    }
}

/// The shape of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueInfo {
    /// f32 numbers, `[rows, width]`.
    Floats {
        /// Number of rows.
        rows: RowCount,
        /// Number of values per row.
        width: usize,
    },
    /// The experts and weights of each row, in a form that only the device knows.
    Routes {
        /// Number of rows.
        rows: RowCount,
        /// Number of experts.
        n_experts: usize,
        /// Number of experts per row.
        n_used: usize,
    },
}

impl ValueInfo {
    /// Returns the number of rows.
    pub fn rows(&self) -> RowCount {
        match *self {
            Self::Floats { rows, .. } | Self::Routes { rows, .. } => rows,
        }
    }

    /// Returns the number of values per row; 0 for routes.
    pub fn width(&self) -> usize {
        match *self {
            Self::Floats { width, .. } => width,
            Self::Routes { .. } => 0,
        }
    }
}

impl fmt::Display for ValueInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Floats { rows, width } => write!(f, "[{rows}, {width}]"),
            Self::Routes {
                rows,
                n_experts,
                n_used,
            } => write!(f, "[{rows}, {n_used} of {n_experts}]"),
        }
    }
}
