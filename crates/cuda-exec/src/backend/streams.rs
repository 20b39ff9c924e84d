//! The operations on streams of hidden states.
//!
//! This file only chooses launches, as its parent does.

use tokenmill_backend::{BackendError, StreamOperations, StreamsShape};

use super::{CudaBackend, CudaBuffer};

impl StreamOperations for CudaBackend {
    fn repeat_rows(
        &mut self,
        shape: StreamsShape,
        rows: &CudaBuffer,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Ok(self.ops.repeat_rows(shape, rows.read(), output.write())?)
    }

    fn match_magnitudes(
        &mut self,
        shape: StreamsShape,
        first: &CudaBuffer,
        others: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Ok(self.ops.match_magnitudes(shape, first.read(), others.write())?)
    }

    fn predict_streams(
        &mut self,
        shape: StreamsShape,
        factors: &CudaBuffer,
        first: &mut CudaBuffer,
        others: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Ok(self
            .ops
            .predict_streams(shape, factors.read(), first.write(), others.write())?)
    }

    fn correct_streams(
        &mut self,
        shape: StreamsShape,
        factors: &CudaBuffer,
        predicted: &CudaBuffer,
        first: &mut CudaBuffer,
        others: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Ok(self.ops.correct_streams(
            shape,
            factors.read(),
            predicted.read(),
            first.write(),
            others.write(),
        )?)
    }

    fn add_to_others(
        &mut self,
        shape: StreamsShape,
        rows: &CudaBuffer,
        others: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Ok(self.ops.add_to_others(shape, rows.read(), others.write())?)
    }

    fn multiply_by_row(
        &mut self,
        shape: StreamsShape,
        row: &crate::Buffer<f32>,
        rows: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Ok(self.ops.multiply_by_row(shape, row.view(), rows.write())?)
    }
}
