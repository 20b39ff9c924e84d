//! Adapters on the GPU: none yet, and asking for one says so.

use std::sync::Arc;

use tokenmill_backend::{AdapterError, AdapterId, AdapterMatrices, AdapterOperations, Backend};

use super::CudaBackend;

impl AdapterOperations for CudaBackend {
    fn add_adapter(
        &mut self,
        _: AdapterId,
        _: Arc<AdapterMatrices<Self::Matrix>>,
        _: f32,
    ) -> Result<(), AdapterError> {
        Err(AdapterError::Unsupported { device: Self::NAME })
    }

    fn remove_adapter(&mut self, _: AdapterId) {}

    fn takes_adapters(&self) -> bool {
        false
    }
}
