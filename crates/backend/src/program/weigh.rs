//! [`Weigh`]: the part of a device that a memory plan needs.
//!
//! Invariant: it only reports, and allocates nothing.

use tokenmill_gguf::TensorType;

use crate::{Allocation, Backend, BackendError, NetworkPart, Side};

use super::Prepared;

/// Reports the memory of a load. Object-safe; every [`Backend`] implements it, with everything on [`Side::Device`].
pub trait Weigh {
    /// Returns the device's name, for errors.
    fn device(&self) -> &'static str;

    /// Returns whether it can compute matrices of this type.
    fn supports(&self, ty: TensorType) -> bool;

    /// Returns whether two backends divide the network between them.
    fn is_split(&self) -> bool;

    /// Returns whether the device works independently of the host's threads, in memory of its own.
    fn works_apart(&self) -> bool;

    /// Returns the memory of an allocation for a part on one side.
    fn bytes_at(&self, side: Side, part: NetworkPart, allocation: &Allocation<'_>) -> usize;

    /// Returns whether a side uses each slot of a network's programs.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] if two backends cannot divide the network.
    fn slots_used(&self, side: Side, prepared: &Prepared) -> Result<Vec<bool>, BackendError>;
}

impl<B: Backend> Weigh for B {
    fn device(&self) -> &'static str {
        B::NAME
    }

    fn supports(&self, ty: TensorType) -> bool {
        Backend::supports(self, ty)
    }

    fn is_split(&self) -> bool {
        false
    }

    fn works_apart(&self) -> bool {
        Backend::works_apart(self)
    }

    fn bytes_at(&self, side: Side, _: NetworkPart, allocation: &Allocation<'_>) -> usize {
        match side {
            Side::Device => self.bytes_of(allocation),
            Side::Host => 0,
        }
    }

    fn slots_used(&self, side: Side, prepared: &Prepared) -> Result<Vec<bool>, BackendError> {
        Ok(vec![side == Side::Device; prepared.slots().len()])
    }
}
