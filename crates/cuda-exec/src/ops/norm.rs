//! Norms, with or without the residual addition, and quantization of rows. Kernels: `norm.cu`.

use super::{Ops, QuantizedMut, check_multiple};
use tokenmill_backend::{Norm, NormKind};

use crate::{Args, Buffer, LaunchShape, View, ViewMut, error::Result};

/// Returns the kernels' code for a kind of norm.
fn code(kind: NormKind) -> usize {
    match kind {
        NormKind::Rms => 0,
        NormKind::Layer => 1,
    }
}

/// Smallest width of runs that are normalized by a thread block each; narrower ones are normalized by a warp.
const WIDE_RUN: usize = 512;

/// Widest rows that each kernel holds in registers.
const HELD_WIDTHS: [usize; 2] = [4096, 8192];

/// Returns the values of a norm's vector that a kernel reads.
fn values(vector: Option<&Buffer<f32>>, width: usize) -> Result<Option<View<'_, f32>>> {
    vector.map(|vector| vector.view().range(0..width)).transpose()
}

impl Ops {
    /// Normalizes rows: `output = norm(input)`, both `[n_rows, width]`, and quantizes them on request.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`](crate::CudaExecError::Bounds), or the driver's.
    pub fn norm(
        &self,
        norm: &Norm<Buffer<f32>>,
        n_rows: usize,
        input: View<'_, f32>,
        output: ViewMut<'_, f32>,
        quantized: Option<QuantizedMut<'_>>,
    ) -> Result<()> {
        let input = input.range(0..n_rows * norm.width)?;
        // Without a delta the kernel only reads its first argument.
        let args = Args::new().read(input).read_or_null::<f32>(None).float(0.0);
        self.launch_norm(norm, n_rows, args, output, quantized)
    }

    /// Adds and normalizes: `hidden += scale * delta; output = norm(hidden)`, and quantizes on request.
    ///
    /// # Errors
    /// As [`Self::norm`].
    pub fn add_norm(
        &self,
        norm: &Norm<Buffer<f32>>,
        n_rows: usize,
        (scale, delta): (f32, View<'_, f32>),
        hidden: ViewMut<'_, f32>,
        output: ViewMut<'_, f32>,
        quantized: Option<QuantizedMut<'_>>,
    ) -> Result<()> {
        let len = n_rows * norm.width;
        let args = Args::new()
            .write(hidden.range(0..len)?)
            .read(delta.range(0..len)?)
            .float(scale);
        self.launch_norm(norm, n_rows, args, output, quantized)
    }

    fn launch_norm(
        &self,
        norm: &Norm<Buffer<f32>>,
        n_rows: usize,
        args: Args<'_>,
        output: ViewMut<'_, f32>,
        quantized: Option<QuantizedMut<'_>>,
    ) -> Result<()> {
        let quantized = quantized
            .map(|rows| rows.rows(0, n_rows, norm.width))
            .transpose()?;
        let (bytes, scales) = QuantizedMut::split(quantized);
        let args = args
            .read_or_null(values(norm.weight.as_ref(), norm.width)?)
            .read_or_null(values(norm.bias.as_ref(), norm.width)?)
            .count(code(norm.kind))
            .float(norm.eps)
            .count(norm.width)
            .write(output.range(0..n_rows * norm.width)?)
            .write_or_null(bytes)
            .write_or_null(scales);
        // Rows of whole groups are held in registers if they fit. Views of them begin at multiples of their width, so that 16 bytes
        // are aligned.
        let held = (HELD_WIDTHS.iter().position(|&widest| norm.width <= widest))
            .filter(|_| norm.width.is_multiple_of(32));
        let (kernel, n_threads) = match held {
            Some(index) => (self.add_norm_held[index], 512),
            None => (self.add_norm, 256),
        };
        self.device
            .launch(kernel, LaunchShape::new([n_rows, 1, 1], n_threads), &args)
    }

    /// Normalizes every run of `norm.width` values of rows `[n_rows, row_width]` in place. A weight of several runs applies to as
    /// many consecutive runs, and repeats after them.
    ///
    /// # Errors
    /// [`CudaExecError::Shape`](crate::CudaExecError::Shape) if runs do not fill a row, or as [`Self::norm`].
    pub fn norm_in_place(
        &self,
        norm: &Norm<Buffer<f32>>,
        n_rows: usize,
        row_width: usize,
        rows: ViewMut<'_, f32>,
    ) -> Result<()> {
        check_multiple("the width of a row", row_width, norm.width)?;
        let weight = norm.weight.as_ref();
        let n_weights = weight.map_or(1, |weight| (weight.len() / norm.width).max(1));
        let args = Args::new()
            .write(rows.range(0..n_rows * row_width)?)
            .count(row_width)
            .read_or_null(values(weight, n_weights * norm.width)?)
            .count(n_weights)
            .read_or_null(values(norm.bias.as_ref(), norm.width)?)
            .count(code(norm.kind))
            .float(norm.eps)
            .count(norm.width);
        let n_runs = row_width / norm.width;
        let (kernel, shape) = if norm.width < WIDE_RUN {
            let grid = [n_runs.div_ceil(4), n_rows, 1];
            (self.norm_heads, LaunchShape::new(grid, 128))
        } else {
            (self.norm_wide_heads, LaunchShape::new([n_runs, n_rows, 1], 256))
        };
        self.device.launch(kernel, shape, &args)
    }

    /// Quantizes rows `[n_rows, width]`.
    ///
    /// # Errors
    /// [`CudaExecError::Shape`](crate::CudaExecError::Shape) if the width is not a multiple of 32, or as [`Self::norm`].
    pub fn quantize(
        &self,
        n_rows: usize,
        width: usize,
        input: View<'_, f32>,
        output: QuantizedMut<'_>,
    ) -> Result<()> {
        let mut output = output.rows(0, n_rows, width)?;
        // Rows of heads can exceed the limit of a grid.
        for first in (0..n_rows).step_by(self.max_grid_rows) {
            let end = (first + self.max_grid_rows).min(n_rows);
            let QuantizedMut { bytes, scales } = output.reborrow().rows(first, end - first, width)?;
            let args = Args::new()
                .read(input.range(first * width..end * width)?)
                .count(width)
                .write(bytes)
                .write(scales);
            self.launch_elementwise(self.quantize_rows, [end - first, width.div_ceil(8)], &args)?;
        }
        Ok(())
    }
}
