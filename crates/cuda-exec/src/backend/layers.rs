//! The operations that few networks need.
//!
//! This file only chooses launches, as its parent does.

use tokenmill_backend::{BackendError, Columns, LayerOperations, Routed, Xielu};

use super::{CudaBackend, CudaBuffer};

impl LayerOperations for CudaBackend {
    fn take_columns(
        &mut self,
        input: Columns<'_, CudaBuffer>,
        n_rows: usize,
        width: usize,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Ok(self.ops.take_columns(
            input.rows.read(),
            [n_rows, input.row_width],
            [input.first, width],
            output.write(),
        )?)
    }

    fn xielu(
        &mut self,
        xielu: Xielu,
        n_rows: usize,
        width: usize,
        rows: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let (values, form) = rows.write_both([n_rows, width]);
        Ok(self.ops.xielu(xielu, [n_rows, width], values, form)?)
    }

    fn cut_below(
        &mut self,
        cutoff: f32,
        n_rows: usize,
        width: usize,
        rows: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Ok(self.ops.cut_below(cutoff, [n_rows, width], rows.write())?)
    }

    fn weigh_choices(
        &mut self,
        routed: Routed<'_, Self>,
        width: usize,
        choices: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let n_choices = routed.n_choices();
        Ok(self
            .ops
            .weigh_choices(routed.routes, n_choices, width, choices.write())?)
    }
}
