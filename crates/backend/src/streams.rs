//! [`StreamOperations`]: operations for networks with several streams of hidden states (AltUp).
//!
//! A layer works on the first stream alone. Before it, all streams are predicted from one another; after it,
//! they are corrected by the difference between the layer's result and the prediction. The first stream has
//! its own buffer, `[T, width]`, and the `n` others share one, `[T, n, width]`. Invariant: a row's streams
//! depend only on each other.
//!
//! Source: "Alternating Updates for Efficient Transformers", Baykal et al. 2023.

use crate::{BackendError, Memory};

/// The operations on streams. Every operation's error is a device error.
#[expect(
    clippy::missing_errors_doc,
    reason = "the operations fail alike, which the trait's documentation says"
)]
pub trait StreamOperations: Memory {
    /// Repeats each row `n` times: `output[r][i] = rows[r]`.
    fn repeat_rows(
        &mut self,
        shape: StreamsShape,
        rows: &Self::Buffer,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Scales each other stream to the magnitude of the first:
    /// `others[r][i] *= sqrt(mean(first[r]^2)) / sqrt(max(mean(others[r][i]^2), 1e-5))`.
    fn match_magnitudes(
        &mut self,
        shape: StreamsShape,
        first: &Self::Buffer,
        others: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Predicts all streams, with `s[0]` the first: `s[i] += sum_j factors[r][i][j] * s[j]`, using the old
    /// `s`; `factors: [T, n + 1, n + 1]`.
    fn predict_streams(
        &mut self,
        shape: StreamsShape,
        factors: &Self::Buffer,
        first: &mut Self::Buffer,
        others: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Corrects all streams by the result of a layer, which is in `first`. With the error
    /// `e = first[r] - predicted[r]`: `first[r] = predicted[r] + (1 + factors[r][0]) * e` and
    /// `others[r][i] += (1 + factors[r][1 + i]) * e`; `factors: [T, n + 1]`.
    fn correct_streams(
        &mut self,
        shape: StreamsShape,
        factors: &Self::Buffer,
        predicted: &Self::Buffer,
        first: &mut Self::Buffer,
        others: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Adds a row to each other stream: `others[r][i] += rows[r]`.
    fn add_to_others(
        &mut self,
        shape: StreamsShape,
        rows: &Self::Buffer,
        others: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Multiplies all rows by one: `rows[r] *= row`, `[T, width]`.
    fn multiply_by_row(
        &mut self,
        shape: StreamsShape,
        row: &Self::Vector,
        rows: &mut Self::Buffer,
    ) -> Result<(), BackendError>;
}

/// The sizes of an operation on streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamsShape {
    /// Number of rows, each with all its streams.
    pub n_rows: usize,
    /// Number of streams after the first.
    pub n_others: usize,
    /// Width of a stream.
    pub width: usize,
}

/// Lower bound of the mean square under the root in [`StreamOperations::match_magnitudes`].
pub const MIN_MEAN_SQUARE: f32 = 1e-5;

/// Maximum number of streams including the first: more than any published network has.
pub const MAX_STREAMS: usize = 16;
