//! The operations that few networks need: none yet, which a load says.
//!
//! Separate because they are a trait of their own.

use tokenmill_backend::{Backend, BackendError, Columns, LayerOperation, LayerOperations, Routed, Xielu};

use super::{CudaBackend, CudaBuffer};

impl LayerOperations for CudaBackend {
    fn take_columns(
        &mut self,
        _: Columns<'_, CudaBuffer>,
        _: usize,
        _: usize,
        _: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Err(lacking(LayerOperation::TakeColumns))
    }

    fn xielu(&mut self, _: Xielu, _: usize, _: usize, _: &mut CudaBuffer) -> Result<(), BackendError> {
        Err(lacking(LayerOperation::Xielu))
    }

    fn cut_below(&mut self, _: f32, _: usize, _: usize, _: &mut CudaBuffer) -> Result<(), BackendError> {
        Err(lacking(LayerOperation::CutBelow))
    }

    fn weigh_choices(
        &mut self,
        _: Routed<'_, Self>,
        _: usize,
        _: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Err(lacking(LayerOperation::WeighChoices))
    }
}

pub(super) fn lacking(operation: LayerOperation) -> BackendError {
    BackendError::Unsupported {
        feature: operation.feature().to_owned(),
        device: CudaBackend::NAME,
    }
}
