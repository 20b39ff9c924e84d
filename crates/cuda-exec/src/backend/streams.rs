//! The operations on streams: none yet, which a load says.
//!
//! Separate because they are a trait of their own.

use tokenmill_backend::{BackendError, LayerOperation, StreamOperations, StreamsShape};

use super::{CudaBackend, CudaBuffer, layers::lacking};

impl StreamOperations for CudaBackend {
    fn repeat_rows(
        &mut self,
        _: StreamsShape,
        _: &CudaBuffer,
        _: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Err(lacking(LayerOperation::Streams))
    }

    fn match_magnitudes(
        &mut self,
        _: StreamsShape,
        _: &CudaBuffer,
        _: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Err(lacking(LayerOperation::Streams))
    }

    fn predict_streams(
        &mut self,
        _: StreamsShape,
        _: &CudaBuffer,
        _: &mut CudaBuffer,
        _: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Err(lacking(LayerOperation::Streams))
    }

    fn correct_streams(
        &mut self,
        _: StreamsShape,
        _: &CudaBuffer,
        _: &CudaBuffer,
        _: &mut CudaBuffer,
        _: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Err(lacking(LayerOperation::Streams))
    }

    fn add_to_others(
        &mut self,
        _: StreamsShape,
        _: &CudaBuffer,
        _: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Err(lacking(LayerOperation::Streams))
    }

    fn multiply_by_row(
        &mut self,
        _: StreamsShape,
        _: &crate::Buffer<f32>,
        _: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Err(lacking(LayerOperation::Streams))
    }
}
