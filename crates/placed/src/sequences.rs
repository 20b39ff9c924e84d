//! The per-sequence features that a split network does not support: memory outside of it, and adapters.

use std::sync::Arc;

use tokenmill_backend::{
    AdapterError, AdapterId, AdapterMatrices, AdapterOperations, Memory, SequenceMemory, SplitOperations,
};

use crate::Placed;

impl<H: SplitOperations, D: SplitOperations> SequenceMemory for Placed<H, D> {}

impl<H: SplitOperations, D: SplitOperations> AdapterOperations for Placed<H, D> {
    fn add_adapter(
        &mut self,
        _id: AdapterId,
        _matrices: Arc<AdapterMatrices<<Self as Memory>::Matrix>>,
        _strength: f32,
    ) -> Result<(), AdapterError> {
        Err(AdapterError::Unsupported {
            device: "a split network",
        })
    }

    fn remove_adapter(&mut self, _id: AdapterId) {}

    fn takes_adapters(&self) -> bool {
        false
    }
}
