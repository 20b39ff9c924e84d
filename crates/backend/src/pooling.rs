//! [`Pooling`]: how the rows of a sequence become one.
//!
//! The network pools, and planners of steps must know which row of a sequence to request.

/// How the final hidden states of a sequence become one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first token's.
    First,
    /// The last token's.
    Last,
}
