//! [`AdapterOperations`]: a backend's operations for adapters.
//!
//! Batches refer to adapters only by id. Invariant: rows without an adapter keep their bits.

use std::sync::Arc;

use crate::{AdapterError, AdapterId, Memory};

/// The change of one weight on a device.
#[derive(Debug)]
pub struct LowRank<M> {
    /// `[rank, n_in]`.
    pub a: M,
    /// `[n_out, rank]`.
    pub b: M,
    /// Number of rows of `a` and columns of `b`.
    pub rank: usize,
    /// Factor of the change.
    pub scale: f32,
}

/// An adapter's matrices on a device.
#[derive(Debug)]
pub struct AdapterMatrices<M> {
    by_weight: Vec<Option<LowRank<M>>>,
}

impl<M> AdapterMatrices<M> {
    /// Combines changes, indexed by weight as in [`Linear::adapter_place`](crate::Linear::adapter_place);
    /// `None` for unchanged weights.
    pub fn new(by_weight: Vec<Option<LowRank<M>>>) -> Self {
        Self { by_weight }
    }

    /// Returns whether all changes stay finite when multiplied by `strength`.
    pub fn takes_strength(&self, strength: f32) -> bool {
        (self.by_weight.iter().flatten()).all(|change| (change.scale * strength).is_finite())
    }

    /// Returns the changes in the order of weights.
    pub fn by_place(&self) -> impl ExactSizeIterator<Item = Option<&LowRank<M>>> {
        self.by_weight.iter().map(Option::as_ref)
    }

    /// Returns the change of a weight.
    pub fn of(&self, place: Option<u32>) -> Option<&LowRank<M>> {
        self.by_weight.get(place? as usize)?.as_ref()
    }
}

/// A backend's operations for adapters. Products of a [`Linear`](crate::Linear) that adapters can change add
/// the adapter's change to each row of a sequence with an adapter; other rows keep their bits.
pub trait AdapterOperations: Memory {
    /// Adds an adapter whose matrices are on the device; its changes are multiplied by `strength`.
    ///
    /// # Errors
    /// [`AdapterError::Unsupported`] if the backend has no adapters, or a device error.
    fn add_adapter(
        &mut self,
        id: AdapterId,
        matrices: Arc<AdapterMatrices<Self::Matrix>>,
        strength: f32,
    ) -> Result<(), AdapterError>;

    /// Removes an adapter that no later step uses.
    fn remove_adapter(&mut self, id: AdapterId);

    /// Returns whether [`AdapterOperations::add_adapter`] can succeed; called before matrices are uploaded.
    fn takes_adapters(&self) -> bool;

    /// Checks that there is memory for an adapter of this size; called before the first of its matrices is
    /// uploaded. Backends with host memory do not check.
    ///
    /// # Errors
    /// [`AdapterError::Device`] with the needed and the available bytes.
    fn check_adapter_room(&self, _n_bytes: usize) -> Result<(), AdapterError> {
        Ok(())
    }
}
