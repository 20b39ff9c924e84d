//! [`LatentOperations`]: the operations that latent attention needs beyond ordinary attention.
//!
//! A network with latent attention stores one row for each token, from which the keys and values of all heads
//! are computed: `[latent, rotated]`, a key whose first numbers are also the value
//! ([`KvLayerShape::has_values_in_keys`](crate::KvLayerShape::has_values_in_keys)). A matrix per head maps
//! queries into the latent space, and another maps attention's output out of it. Invariant: the keys and
//! values of single heads are never materialized.
//!
//! Source: "DeepSeek-V2", 2024, section 2.1, with the matrices of keys and values absorbed.

use crate::{BackendError, Linear, Memory};

/// The operations on latent rows. Every operation's error is a device error.
#[expect(
    clippy::missing_errors_doc,
    reason = "the operations fail alike, which the trait's documentation says"
)]
pub trait LatentOperations: Memory {
    /// Multiplies each head's part of each row by the head's matrix; `heads` has `n_heads` of them,
    /// concatenated: `output[r][h] = matrix[h] * input[r][h]`; `input: [n_rows, n_heads, n_in]`,
    /// `output: [n_rows, n_heads, n_out]`. There is no bias.
    fn heads_linear(
        &mut self,
        heads: &Linear<Self::Matrix, Self::Vector>,
        n_heads: usize,
        n_rows: usize,
        input: &Self::Buffer,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Joins rows: `output[r] = [left[r], right[r]]`.
    fn join(
        &mut self,
        n_rows: usize,
        left: JoinedRows<'_, Self::Buffer>,
        right: JoinedRows<'_, Self::Buffer>,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Stores each token's row in its slot of layer `layer_idx` of the KV store, which has values in keys,
    /// rounded to the type of keys.
    fn store_latent(
        &mut self,
        layer_idx: usize,
        n_tokens: usize,
        rows: &Self::Buffer,
    ) -> Result<(), BackendError>;
}

/// Rows that become a part of wider ones.
#[derive(Debug)]
pub struct JoinedRows<'a, T> {
    /// `[n_rows, width]`.
    pub rows: &'a T,
    /// Number of values per row.
    pub width: usize,
}
