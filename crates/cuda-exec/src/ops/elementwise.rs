//! Small operations on rows. Kernels: `elementwise.cu`.

use super::{Ops, QuantizedMut};
use tokenmill_backend::{Activation, Temperature};

use crate::{Args, View, ViewMut, error::Result};

/// Returns the kernels' code for an activation.
pub(super) fn activation_code(activation: Activation) -> usize {
    match activation {
        Activation::GeluQuick => panic!("image encoders run on the host"),
        Activation::Silu => 0,
        Activation::GeluErf => 1,
        Activation::GeluTanh => 2,
        Activation::Relu => 3,
        Activation::ReluSquared => 4,
        Activation::Sigmoid => 5,
        Activation::Identity => 6,
        Activation::ClippedSwiglu => 7,
    }
}

impl Ops {
    /// Applies the activation in place: `rows = f(rows) * up`, or `f(rows)`; `[n_rows, width]`.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`](crate::CudaExecError::Bounds), or the driver's.
    pub fn activation(
        &self,
        activation: Activation,
        [n_rows, width]: [usize; 2],
        rows: ViewMut<'_, f32>,
        up: Option<View<'_, f32>>,
        quantized: Option<QuantizedMut<'_>>,
    ) -> Result<()> {
        let quantized = quantized.map(|rows| rows.rows(0, n_rows, width)).transpose()?;
        let (bytes, scales) = QuantizedMut::split(quantized);
        let args = Args::new()
            .write(rows.range(0..n_rows * width)?)
            .read_or_null(up.map(|up| up.range(0..n_rows * width)).transpose()?)
            .count(activation_code(activation))
            .count(width)
            .write_or_null(bytes)
            .write_or_null(scales);
        self.launch_elementwise(self.activation, [n_rows, width], &args)
    }

    /// Adds: `rows += scale * delta`, `[n_rows, width]`.
    ///
    /// # Errors
    /// As [`Self::activation`].
    pub fn add(
        &self,
        scale: f32,
        [n_rows, width]: [usize; 2],
        rows: ViewMut<'_, f32>,
        delta: View<'_, f32>,
    ) -> Result<()> {
        let args = Args::new()
            .write(rows.range(0..n_rows * width)?)
            .read(delta.range(0..n_rows * width)?)
            .float(scale)
            .count(width);
        self.launch_elementwise(self.add, [n_rows, width], &args)
    }

    /// Adds one row to all: `rows[r] += row`, `[n_rows, width]`.
    ///
    /// # Errors
    /// As [`Self::activation`].
    pub fn add_row(
        &self,
        [n_rows, width]: [usize; 2],
        rows: ViewMut<'_, f32>,
        row: View<'_, f32>,
    ) -> Result<()> {
        let args = Args::new()
            .write(rows.range(0..n_rows * width)?)
            .read(row.range(0..width)?)
            .count(width);
        self.launch_elementwise(self.add_row, [n_rows, width], &args)
    }

    /// Takes the mean of each sequence's rows: `input: [n_tokens, width]`, `output: [n_seqs, width]`, zeros if a sequence
    /// has none. `seq_starts: [n_seqs + 1]` ascends to at most `n_tokens`.
    ///
    /// # Errors
    /// As [`Self::activation`].
    pub fn mean_of_sequences(
        &self,
        seq_starts: View<'_, u32>,
        [n_tokens, width]: [usize; 2],
        input: View<'_, f32>,
        output: ViewMut<'_, f32>,
    ) -> Result<()> {
        let n_seqs = seq_starts.len() - 1;
        let args = Args::new()
            .read(input.range(0..n_tokens * width)?)
            .read(seq_starts)
            .count(width)
            .write(output.range(0..n_seqs * width)?);
        self.launch_elementwise(self.mean_of_sequences, [n_seqs, width], &args)
    }

    /// Adds to each token's row that of its position: `rows[t] += table[positions[t]]`, `[T, width]`. Positions are inside
    /// the table, or `u32::MAX` for padding.
    ///
    /// # Errors
    /// As [`Self::activation`].
    pub fn add_positions(
        &self,
        table: View<'_, f32>,
        positions: View<'_, u32>,
        width: usize,
        rows: ViewMut<'_, f32>,
    ) -> Result<()> {
        let n_tokens = positions.len();
        let args = Args::new()
            .write(rows.range(0..n_tokens * width)?)
            .read(table)
            .read(positions)
            .count(width);
        self.launch_elementwise(self.add_positions, [n_tokens, width], &args)
    }

    /// Multiplies each token's row by the factor of its position, `[T, width]`.
    ///
    /// # Errors
    /// As [`Self::activation`].
    pub fn scale_by_position(
        &self,
        temperature: Temperature,
        positions: View<'_, u32>,
        width: usize,
        rows: ViewMut<'_, f32>,
    ) -> Result<()> {
        let n_tokens = positions.len();
        let args = Args::new()
            .write(rows.range(0..n_tokens * width)?)
            .read(positions)
            .float(temperature.scale)
            .count(temperature.interval)
            .count(temperature.offset)
            .count(width);
        self.launch_elementwise(self.scale_by_position, [n_tokens, width], &args)
    }

    /// Copies rows: `output[i] = input[rows[i]]`, `[.., width]`. The numbers in `rows` are below `n_input_rows`.
    ///
    /// # Errors
    /// As [`Self::activation`].
    pub fn gather(
        &self,
        rows: View<'_, u32>,
        [n_input_rows, width]: [usize; 2],
        input: View<'_, f32>,
        output: ViewMut<'_, f32>,
    ) -> Result<()> {
        let n_rows = rows.len();
        let args = Args::new()
            .read(input.range(0..n_input_rows * width)?)
            .read(rows)
            .count(width)
            .write(output.range(0..n_rows * width)?);
        self.launch_elementwise(self.gather, [n_rows, width], &args)
    }

    /// Scales and caps in place: `x = scale * x`, then `x = cap * tanh(x / cap)`; `[n_rows, width]`.
    ///
    /// # Errors
    /// As [`Self::activation`].
    pub fn scale_logits(
        &self,
        scale: f32,
        cap: Option<f32>,
        [n_rows, width]: [usize; 2],
        logits: ViewMut<'_, f32>,
    ) -> Result<()> {
        let args = Args::new()
            .write(logits.range(0..n_rows * width)?)
            .float(scale)
            .float(cap.unwrap_or(0.0))
            .count(width);
        self.launch_elementwise(self.scale_logits, [n_rows, width], &args)
    }
}
