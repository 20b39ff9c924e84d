//! Operations on activations alone: no weights beyond a vector, no KV.
//!
//! Separate from the matrix products because they are memory passes; each row is computed by one thread.

pub(crate) mod activation;
pub(crate) mod elementwise;
pub(crate) mod norm;
pub(crate) mod rope;
