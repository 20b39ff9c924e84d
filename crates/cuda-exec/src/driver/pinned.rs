//! [`Pinned`]: host memory that the device copies by itself.
//!
//! Separate because the host and a copy in flight must never touch it at the same time. Invariant: the host reaches the
//! bytes through [`Pinned::host`] alone, which waits for the last copy that uses them.

use std::{marker::PhantomData, ops::Range, ptr::NonNull, sync::Arc};

use bytemuck::Pod;

use super::{Handle, Stream, View, ViewMut, cuda::Driver, device::Timelines};
use crate::{CudaExecError, error::Result};

/// `len` elements of pinned host memory, zero at first.
#[derive(Debug)]
pub struct Pinned<T> {
    driver: Arc<Driver>,
    timelines: Arc<Timelines>,
    memory: NonNull<u8>,
    len: usize,
    event: Handle,
    /// The stream and the moment on it after which the newest copy is done.
    pending: Option<(Stream, u64)>,
    element: PhantomData<T>,
}

// SAFETY: the memory belongs to this value alone, and `&Pinned` gives no access to it.
unsafe impl<T: Send> Send for Pinned<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Pinned<T> {}

impl<T: Pod> Pinned<T> {
    pub(super) fn new(driver: &Arc<Driver>, timelines: &Arc<Timelines>, len: usize) -> Result<Self> {
        let event = driver.create_event()?;
        match driver.alloc_pinned(Self::allocated_bytes(len)) {
            Ok(memory) => Ok(Self {
                driver: Arc::clone(driver),
                timelines: Arc::clone(timelines),
                memory,
                len,
                event,
                pending: None,
                element: PhantomData,
            }),
            Err(error) => {
                driver.destroy_event(event);
                Err(error)
            }
        }
    }

    fn allocated_bytes(len: usize) -> usize {
        len.saturating_mul(size_of::<T>()).max(1)
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Waits for the newest copy and gives the elements.
    ///
    /// # Errors
    /// What the device says while it is waited for.
    pub fn host(&mut self) -> Result<&mut [T]> {
        self.wait()?;
        // SAFETY: the memory holds `len` elements of a plain type, was zeroed, is aligned to a page, and no copy uses it.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr().cast(), self.len) })
    }

    /// Queues a copy of some elements to the device.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`], or the driver's.
    pub fn upload(&mut self, stream: Stream, range: Range<usize>, to: &ViewMut<'_, T>) -> Result<()> {
        let (from, n_bytes) = self.place(range, to.len())?;
        self.order(stream)?;
        // SAFETY: `place` checked the range, and `host` waits for the event recorded below before anyone writes again.
        unsafe { self.driver.upload(stream, from, to.address(), n_bytes) }?;
        self.mark(stream)
    }

    /// Queues a copy of elements of the device to the place `range`.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`], or the driver's.
    pub fn download(&mut self, stream: Stream, from: View<'_, T>, range: Range<usize>) -> Result<()> {
        let (to, n_bytes) = self.place(range, from.len())?;
        self.order(stream)?;
        // SAFETY: `place` checked the range, and `host` waits for the event recorded below before anyone reads.
        unsafe { self.driver.download(stream, from.address(), to, n_bytes) }?;
        self.mark(stream)
    }

    fn place(&self, range: Range<usize>, len: usize) -> Result<(NonNull<u8>, usize)> {
        if range.start > range.end || range.end > self.len || range.len() != len {
            return Err(CudaExecError::Bounds {
                range,
                len: self.len.min(len),
            });
        }
        let (offset, n_bytes) = (range.start * size_of::<T>(), len * size_of::<T>());
        // SAFETY: the offset is inside the allocation, as checked above.
        Ok((unsafe { self.memory.add(offset) }, n_bytes))
    }

    /// Lets a copy on one stream follow an unfinished copy on the other.
    fn order(&self, stream: Stream) -> Result<()> {
        match self.pending {
            Some((other, _)) if other != stream => self.driver.wait(stream, self.event),
            _ => Ok(()),
        }
    }

    fn mark(&mut self, stream: Stream) -> Result<()> {
        // Set first: should recording fail, the event's last recording lies before the copy, and the device is lost.
        self.pending = Some((stream, self.timelines.next(stream)));
        self.driver.record(stream, self.event)
    }

    fn wait(&mut self) -> Result<()> {
        if let Some((stream, moment)) = self.pending {
            if !self.timelines.is_done(stream, moment) {
                self.driver.synchronize(self.event)?;
                self.timelines.set_done(stream, moment);
            }
            self.pending = None;
        }
        Ok(())
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        let is_idle = match self.pending {
            // A device that is lost copies nothing any more, but only a driver without error says so for certain.
            Some(_) => self.driver.synchronize(self.event).is_ok(),
            None => true,
        };
        self.driver.destroy_event(self.event);
        if is_idle {
            // SAFETY: the memory came from this driver, and no copy uses it.
            unsafe { self.driver.free_pinned(self.memory) };
        }
    }
}
