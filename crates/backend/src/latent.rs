//! [`LatentOperations`]: what attention over latent rows needs beyond attention.
//!
//! Separate because only networks with latent attention have them. Such a network stores one row for each token, from which
//! all heads' keys and values follow: `[latent, rotated]`, a key whose first numbers are the value too
//! ([`KvLayerShape::has_values_in_keys`](crate::KvLayerShape::has_values_in_keys)). Queries are brought into the latent space
//! by a matrix of each head, and what attention gives out of it by another. Invariant: no row of any head's keys or
//! values is ever made.
//!
//! Source: "DeepSeek-V2", 2024, section 2.1, with the matrices of keys and values absorbed.

use crate::{BackendError, Linear, Memory};

/// The operations on latent rows. Every operation's error is a device error.
#[expect(
    clippy::missing_errors_doc,
    reason = "the operations fail alike, which the trait's documentation says"
)]
pub trait LatentOperations: Memory {
    /// Multiplies each head's part of each row by the head's matrix, of which `heads` has `n_heads`, one after the other:
    /// `output[r][h] = matrix[h] * input[r][h]`; `input: [n_rows, n_heads, n_in]`, `output: [n_rows, n_heads, n_out]`. There is
    /// no bias.
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

    /// Stores each token's row in its slot of layer `layer_idx` of the KV store, whose values are in its keys, rounded to
    /// the type of keys.
    fn store_latent(
        &mut self,
        layer_idx: usize,
        n_tokens: usize,
        rows: &Self::Buffer,
    ) -> Result<(), BackendError>;
}

/// Rows that become a part of longer ones.
#[derive(Debug)]
pub struct JoinedRows<'a, T> {
    /// `[n_rows, width]`.
    pub rows: &'a T,
    /// Numbers of a row.
    pub width: usize,
}
