//! [`Weigh`]: the part of a device that a memory plan needs.
//!
//! Invariant: it only reports, and allocates nothing.

use tokenmill_gguf::TensorType;

use crate::{Allocation, Backend, NetworkPart, Side};

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
}
