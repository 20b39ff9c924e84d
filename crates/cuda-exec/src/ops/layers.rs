//! Operations that few networks need. Kernels: `layers.cu`.
//!
//! Invariant: that of its parent.

use tokenmill_backend::Xielu;

use super::{Ops, QuantizedMut};
use crate::{Args, CudaExecError, Device, Kernel, LaunchShape, View, ViewMut, error::Result};

/// The kernels.
#[derive(Debug)]
pub(super) struct LayerKernels {
    take_columns: Kernel,
    join: Kernel,
    join_parts: Kernel,
    xielu: Kernel,
    cut_below: Kernel,
}

impl LayerKernels {
    pub(super) fn load(device: &Device) -> Result<Self> {
        Ok(Self {
            take_columns: device.kernel("layers", "take_columns")?,
            join: device.kernel("layers", "join")?,
            join_parts: device.kernel("layers", "join_parts")?,
            xielu: device.kernel("layers", "xielu")?,
            cut_below: device.kernel("layers", "cut_below")?,
        })
    }
}

impl Ops {
    /// Copies columns: `output[r] = input[r][first..first + width]`; `input: [n_rows, row_width]`.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`], or the driver's.
    pub fn take_columns(
        &self,
        input: View<'_, f32>,
        [n_rows, row_width]: [usize; 2],
        [first, width]: [usize; 2],
        output: ViewMut<'_, f32>,
    ) -> Result<()> {
        if first + width > row_width {
            return Err(CudaExecError::Bounds {
                range: first..first + width,
                len: row_width,
            });
        }
        let args = Args::new()
            .read(input.range(0..n_rows * row_width)?)
            .count(row_width)
            .count(first)
            .count(width)
            .write(output.range(0..n_rows * width)?);
        self.launch_elementwise(self.layers.take_columns, [n_rows, width], &args)
    }

    /// Joins rows: `output[r] = [left[r], right[r]]`, whose widths are those of the two.
    ///
    /// # Errors
    /// As [`Self::take_columns`].
    pub fn join(
        &self,
        n_rows: usize,
        [left, right]: [View<'_, f32>; 2],
        widths: [usize; 2],
        output: ViewMut<'_, f32>,
    ) -> Result<()> {
        let width = widths[0] + widths[1];
        let mut output = output.range(0..n_rows * width)?;
        // Rows of heads can exceed the limit of a grid.
        for first in (0..n_rows).step_by(self.max_grid_rows) {
            let end = (first + self.max_grid_rows).min(n_rows);
            let args = Args::new()
                .read(left.range(first * widths[0]..end * widths[0])?)
                .read(right.range(first * widths[1]..end * widths[1])?)
                .count(widths[0])
                .count(width)
                .write(output.reborrow().range(first * width..end * width)?);
            self.launch_elementwise(self.layers.join, [end - first, width], &args)?;
        }
        Ok(())
    }

    /// Makes rows of `width` columns from parts, `[n_rows, part_width]` each, one after the other: the first
    /// part has the first columns, the next part the columns after them, the last one the last `part_width`.
    ///
    /// # Errors
    /// The same as for [`Self::take_columns`]; also [`CudaExecError::Bounds`] if a part is wider than the
    /// rows.
    pub fn join_parts(
        &self,
        parts: View<'_, f32>,
        n_rows: usize,
        [part_width, width]: [usize; 2],
        output: ViewMut<'_, f32>,
    ) -> Result<()> {
        if part_width > width {
            return Err(CudaExecError::Bounds {
                range: 0..part_width,
                len: width,
            });
        }
        let n_parts = width.div_ceil(part_width);
        let args = Args::new()
            .read(parts.range(0..n_parts * n_rows * part_width)?)
            .count(n_rows)
            .count(part_width)
            .count(width)
            .write(output.range(0..n_rows * width)?);
        self.launch_elementwise(self.layers.join_parts, [n_rows, width], &args)
    }

    /// Applies [`Xielu`] in place, `[n_rows, width]`, and quantizes on request.
    ///
    /// # Errors
    /// As [`Self::take_columns`].
    pub fn xielu(
        &self,
        xielu: Xielu,
        [n_rows, width]: [usize; 2],
        rows: ViewMut<'_, f32>,
        quantized: Option<QuantizedMut<'_>>,
    ) -> Result<()> {
        let quantized = quantized.map(|rows| rows.rows(0, n_rows, width)).transpose()?;
        let (bytes, scales) = QuantizedMut::split(quantized);
        let args = Args::new()
            .write(rows.range(0..n_rows * width)?)
            .float(xielu.alpha_p)
            .float(xielu.alpha_n)
            .float(xielu.beta)
            .float(xielu.eps)
            .count(width)
            .write_or_null(bytes)
            .write_or_null(scales);
        self.launch_elementwise(self.layers.xielu, [n_rows, width], &args)
    }

    /// Subtracts the cut-off of its spread from each row, in place, `[n_rows, width]`; see
    /// [`LayerOperations`](tokenmill_backend::LayerOperations::cut_below).
    ///
    /// # Errors
    /// As [`Self::take_columns`].
    pub fn cut_below(&self, cutoff: f32, [n_rows, width]: [usize; 2], rows: ViewMut<'_, f32>) -> Result<()> {
        let args = Args::new()
            .write(rows.range(0..n_rows * width)?)
            .float(cutoff)
            .count(width);
        let shape = LaunchShape::new([n_rows, 1, 1], 256);
        self.device.launch(self.layers.cut_below, shape, &args)
    }
}
