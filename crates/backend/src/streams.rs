//! [`StreamOperations`]: what networks need that carry several streams of hidden states (AltUp).
//!
//! Separate because only such networks have them. A layer works on the first stream alone. Before it, all streams are predicted
//! from one another; behind it, they are corrected by how far the layer's result is from the prediction. The first stream is in
//! a buffer of its own, `[T, width]`, and the `n` others in one, `[T, n, width]`. Invariant: a row's streams depend on each
//! other alone.
//!
//! Source: "Alternating Updates for Efficient Transformers", Baykal et al. 2023.

use crate::{BackendError, Memory};

/// The operations on streams. Every operation's error is a device error.
#[expect(
    clippy::missing_errors_doc,
    reason = "the operations fail alike, which the trait's documentation says"
)]
pub trait StreamOperations: Memory {
    /// Makes each row `n` rows: `output[r][i] = rows[r]`.
    fn repeat_rows(
        &mut self,
        shape: StreamsShape,
        rows: &Self::Buffer,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Brings each of the others to the magnitude of its first stream: `others[r][i] *= sqrt(mean(first[r]^2)) /
    /// sqrt(max(mean(others[r][i]^2), 1e-5))`.
    fn match_magnitudes(
        &mut self,
        shape: StreamsShape,
        first: &Self::Buffer,
        others: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Predicts all streams, `s[0]` being the first: `s[i] += sum_j factors[r][i][j] * s[j]`, of the old `s`; `factors: [T, n + 1,
    /// n + 1]`.
    fn predict_streams(
        &mut self,
        shape: StreamsShape,
        factors: &Self::Buffer,
        first: &mut Self::Buffer,
        others: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Corrects all streams by the result of a layer, which stands in `first`. With the error `e = first[r] - predicted[r]`:
    /// `first[r] = predicted[r] + (1 + factors[r][0]) * e` and `others[r][i] += (1 + factors[r][1 + i]) * e`; `factors: [T, n + 1]`.
    fn correct_streams(
        &mut self,
        shape: StreamsShape,
        factors: &Self::Buffer,
        predicted: &Self::Buffer,
        first: &mut Self::Buffer,
        others: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Adds a row to each of the others: `others[r][i] += rows[r]`.
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
    /// Rows, each with all its streams.
    pub n_rows: usize,
    /// Streams other than the first.
    pub n_others: usize,
    /// Values of a stream.
    pub width: usize,
}

/// The least mean of squares that [`StreamOperations::match_magnitudes`] divides by the root of.
pub const MIN_MEAN_SQUARE: f32 = 1e-5;

/// Streams, the first with the others, that a network has at most: more than any that was published.
pub const MAX_STREAMS: usize = 16;
