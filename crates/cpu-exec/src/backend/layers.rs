//! The operations that few networks need on the host.
//!
//! They are a trait of their own. Invariant: as in the parent module, this file only slices buffers.

use tokenmill_backend::{BackendError, Columns, LayerOperations, Routed, Xielu};

use super::CpuBackend;

impl LayerOperations for CpuBackend {
    fn take_columns(
        &mut self,
        input: Columns<'_, Vec<f32>>,
        n_rows: usize,
        width: usize,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let input = input.map(Vec::as_slice);
        crate::take_columns(&self.host, &input, width, &mut output[..n_rows * width]);
        Ok(())
    }

    fn xielu(
        &mut self,
        xielu: Xielu,
        n_rows: usize,
        width: usize,
        rows: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        crate::xielu(&self.host, xielu, &mut rows[..n_rows * width]);
        Ok(())
    }

    fn cut_below(
        &mut self,
        cutoff: f32,
        n_rows: usize,
        width: usize,
        rows: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        crate::cut_below(&self.host, cutoff, width, &mut rows[..n_rows * width]);
        Ok(())
    }

    fn weigh_choices(
        &mut self,
        routed: Routed<'_, Self>,
        width: usize,
        choices: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let choices = &mut choices[..routed.n_choices() * width];
        crate::weigh_choices(&self.host, routed.routes, width, choices);
        Ok(())
    }
}
