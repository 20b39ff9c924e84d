//! [`Pooling`]: how the rows of a sequence become one.
//!
//! Separate because the network does it, and whoever plans steps must know which row of a sequence to ask for.

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
