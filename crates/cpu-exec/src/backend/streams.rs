//! The operations on streams on the host.
//!
//! Only networks with several streams have them. Invariant: as in the parent module, this file only slices
//! buffers.

use tokenmill_backend::{BackendError, StreamOperations, StreamsShape};

use super::{CpuBackend, CpuVector};

/// Returns the number of values of the first stream, and of the other streams.
fn lens(shape: StreamsShape) -> (usize, usize) {
    let n_values = shape.n_rows * shape.width;
    (n_values, n_values * shape.n_others)
}

impl StreamOperations for CpuBackend {
    fn repeat_rows(
        &mut self,
        shape: StreamsShape,
        rows: &Vec<f32>,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let (_, n_others) = lens(shape);
        crate::repeat_rows(&self.host, shape, rows, &mut output[..n_others]);
        Ok(())
    }

    fn match_magnitudes(
        &mut self,
        shape: StreamsShape,
        first: &Vec<f32>,
        others: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let (_, n_others) = lens(shape);
        crate::match_magnitudes(&self.host, shape, first, &mut others[..n_others]);
        Ok(())
    }

    fn predict_streams(
        &mut self,
        shape: StreamsShape,
        factors: &Vec<f32>,
        first: &mut Vec<f32>,
        others: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let (n_first, n_others) = lens(shape);
        crate::predict_streams(
            &self.host,
            shape,
            factors,
            &mut first[..n_first],
            &mut others[..n_others],
        );
        Ok(())
    }

    fn correct_streams(
        &mut self,
        shape: StreamsShape,
        factors: &Vec<f32>,
        predicted: &Vec<f32>,
        first: &mut Vec<f32>,
        others: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let (n_first, n_others) = lens(shape);
        crate::correct_streams(
            &self.host,
            shape,
            factors,
            predicted,
            &mut first[..n_first],
            &mut others[..n_others],
        );
        Ok(())
    }

    fn add_to_others(
        &mut self,
        shape: StreamsShape,
        rows: &Vec<f32>,
        others: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let (_, n_others) = lens(shape);
        crate::add_to_others(&self.host, shape, rows, &mut others[..n_others]);
        Ok(())
    }

    fn multiply_by_row(
        &mut self,
        shape: StreamsShape,
        row: &CpuVector,
        rows: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let (n_values, _) = lens(shape);
        crate::multiply_by_row(&self.host, &row.values, &mut rows[..n_values]);
        Ok(())
    }
}
