//! [`SharedSlice`]: a slice whose disjoint parts are written by the chunks of a job.
//!
//! A matrix product writes, for each block of weight rows, a block of columns of its output: parts that are disjoint but
//! not contiguous, which `chunks_mut` cannot say. Invariant: the parts that are alive at one time never overlap; whoever
//! takes a part states why.

use std::{marker::PhantomData, ops::Range};

/// A pointer that may cross threads; whoever dereferences it keeps its accesses disjoint.
pub(super) struct SendPtr<T>(*mut T);

// SAFETY: the pointer is an address; every dereference states why it is exclusive. `T: Send` since the items are
// written on other threads.
unsafe impl<T: Send> Sync for SendPtr<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for SendPtr<T> {}

impl<T> SendPtr<T> {
    pub(super) fn new(ptr: *mut T) -> Self {
        Self(ptr)
    }

    pub(super) fn get(&self) -> *mut T {
        self.0
    }
}

/// A mutable slice that the chunks of one job share.
pub(crate) struct SharedSlice<'a, T> {
    base: SendPtr<T>,
    len: usize,
    items: PhantomData<&'a mut [T]>,
}

impl<'a, T> SharedSlice<'a, T> {
    pub(crate) fn new(items: &'a mut [T]) -> Self {
        Self {
            base: SendPtr::new(items.as_mut_ptr()),
            len: items.len(),
            items: PhantomData,
        }
    }

    /// The items of `range`.
    ///
    /// # Safety
    /// No other part that overlaps `range` is used while this one is.
    #[expect(clippy::mut_from_ref, reason = "the caller keeps the parts disjoint")]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "part {range:?} of a slice of {}",
            self.len
        );
        // SAFETY: the range lies inside the slice, which is borrowed for `'a`; the caller keeps parts disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.base.get().add(range.start), range.len()) }
    }
}
