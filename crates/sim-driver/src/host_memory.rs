//! [`HostMemory`]: a range of host memory that a queued copy reads or writes.
//!
//! A copy runs later than the call that queued it. Invariant: the memory is touched only inside a copy, while the caller of
//! the C function guarantees it.

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ptr, slice,
};

use crate::code::{self, Outcome};

/// Address and length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostMemory {
    address: usize,
    n_bytes: usize,
}

/// Pinned memory comes in pages.
fn layout(n_bytes: usize) -> Outcome<Layout> {
    Layout::from_size_align(n_bytes.max(1), 4096).map_err(|_| code::INVALID_VALUE)
}

impl HostMemory {
    /// Memory of a caller.
    ///
    /// # Safety
    /// The memory is valid for `n_bytes`, and for writes if a copy writes to it, until the copy is done.
    pub(crate) unsafe fn of_caller<T>(memory: *const T, n_bytes: usize) -> Self {
        Self {
            address: memory.expose_provenance(),
            n_bytes,
        }
    }

    /// Allocates pages, zeroed.
    pub(crate) fn alloc(n_bytes: usize) -> Outcome<Self> {
        // SAFETY: the layout has a size.
        let memory = unsafe { alloc_zeroed(layout(n_bytes)?) };
        if memory.is_null() {
            return Err(code::OUT_OF_MEMORY);
        }
        Ok(Self {
            address: memory.expose_provenance(),
            n_bytes,
        })
    }

    /// Frees memory of [`Self::alloc`] that no caller holds any more.
    pub(crate) fn free(self) {
        if let Ok(layout) = layout(self.n_bytes) {
            // SAFETY: the context keeps this memory, which came from `alloc` with this size, and gives it up once.
            unsafe { dealloc(ptr::with_exposed_provenance_mut(self.address), layout) };
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.address as u64
    }

    pub(crate) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.address < other.address + other.n_bytes && other.address < self.address + self.n_bytes
    }

    /// Lets a copy read the memory.
    pub(crate) fn read<T>(&self, copy: impl FnOnce(&[u8]) -> T) -> T {
        // SAFETY: the caller of the C function vouches for the memory until the copy is done.
        copy(unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(self.address), self.n_bytes) })
    }

    /// Lets a copy write the memory.
    pub(crate) fn write<T>(&self, copy: impl FnOnce(&mut [u8]) -> T) -> T {
        // SAFETY: the caller of the C function vouches for the memory until the copy is done.
        copy(unsafe {
            slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(self.address), self.n_bytes)
        })
    }
}
