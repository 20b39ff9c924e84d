//! Operations on activations alone, and on states: no weights beyond vectors, no KV.
//!
//! Unlike the matrix products, they are memory passes; each row is computed by one thread.

pub(crate) mod activation;
pub(crate) mod delta_net;
pub(crate) mod elementwise;
pub(crate) mod norm;
pub(crate) mod rope;
pub(crate) mod rows;
pub(crate) mod short_conv;
pub(crate) mod sparsity;
pub(crate) mod ssm_scan;
pub(crate) mod streams;
pub(crate) mod xielu;
