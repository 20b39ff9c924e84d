//! [`AdapterOperations`]: what a backend does with adapters.
//!
//! Separate from the adapters themselves, which batches name too. Invariant: rows without an adapter keep their bits.

use std::sync::Arc;

use crate::{AdapterError, AdapterId, Memory};

/// The change of one weight on a device.
#[derive(Debug)]
pub struct LowRank<M> {
    /// `[rank, n_in]`.
    pub a: M,
    /// `[n_out, rank]`.
    pub b: M,
    /// Rows of `a`, columns of `b`.
    pub rank: usize,
    /// Multiplies the change.
    pub scale: f32,
}

/// An adapter's matrices on a device.
#[derive(Debug)]
pub struct AdapterMatrices<M> {
    by_weight: Vec<Option<LowRank<M>>>,
}

impl<M> AdapterMatrices<M> {
    /// Changes the weights that have a change in `by_weight`, numbered as
    /// [`Linear::adapter_place`](crate::Linear::adapter_place) numbers them.
    pub fn new(by_weight: Vec<Option<LowRank<M>>>) -> Self {
        Self { by_weight }
    }

    /// Whether all changes stay finite numbers where they are multiplied by `strength`.
    pub fn takes_strength(&self, strength: f32) -> bool {
        (self.by_weight.iter().flatten()).all(|change| (change.scale * strength).is_finite())
    }

    /// The changes by the places of weights.
    pub fn by_place(&self) -> impl ExactSizeIterator<Item = Option<&LowRank<M>>> {
        self.by_weight.iter().map(Option::as_ref)
    }

    /// The change of a weight.
    pub fn of(&self, place: Option<u32>) -> Option<&LowRank<M>> {
        self.by_weight.get(place? as usize)?.as_ref()
    }
}

/// What a backend does with adapters. Its products of [`Linear`](crate::Linear)s with a place among the weights that adapters
/// change then add, to each row of a sequence that has an adapter, what the adapter says; other rows keep their bits.
pub trait AdapterOperations: Memory {
    /// Takes an adapter whose matrices are on the device; its changes are multiplied by `strength`.
    ///
    /// # Errors
    /// [`AdapterError::Unsupported`] where the backend has no adapters, or a device error.
    fn add_adapter(
        &mut self,
        id: AdapterId,
        matrices: Arc<AdapterMatrices<Self::Matrix>>,
        strength: f32,
    ) -> Result<(), AdapterError>;

    /// Forgets an adapter that no later step names.
    fn remove_adapter(&mut self, id: AdapterId);

    /// Whether [`AdapterOperations::add_adapter`] can succeed; asked before matrices are uploaded.
    fn takes_adapters(&self) -> bool;

    /// Says whether there is memory for an adapter of so many bytes; asked before the first of its matrices is uploaded. Backends whose
    /// memory is the host's do not ask.
    ///
    /// # Errors
    /// [`AdapterError::Device`] with what is needed and what there is.
    fn check_adapter_room(&self, _n_bytes: usize) -> Result<(), AdapterError> {
        Ok(())
    }
}
