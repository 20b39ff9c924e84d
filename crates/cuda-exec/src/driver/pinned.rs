//! [`Pinned`]: host memory that the device can copy directly.
//!
//! The host and a running copy must never touch it at the same time. Invariant: the host reaches the bytes only through
//! [`Pinned::host`], which waits for the last copies that use them, on each stream.

use std::{marker::PhantomData, ops::Range, ptr::NonNull, sync::Arc};

use bytemuck::Pod;

use super::{
    Handle, PageRows, Stream, View, ViewMut,
    cuda::{Driver, RowPlace, RowStart},
    device::Timelines,
};
use crate::{CudaExecError, error::Result};

/// `len` elements of pinned host memory, zeroed at first.
#[derive(Debug)]
pub struct Pinned<T> {
    driver: Arc<Driver>,
    timelines: Arc<Timelines>,
    memory: NonNull<u8>,
    len: usize,
    /// An event for each stream that has queued copies.
    events: [Option<Handle>; Stream::ALL.len()],
    /// The moment of each stream after which its newest copy is done.
    pending: [Option<u64>; Stream::ALL.len()],
    element: PhantomData<T>,
}

// SAFETY: the memory belongs to this value alone, and `&Pinned` gives no access to it.
unsafe impl<T: Send> Send for Pinned<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Pinned<T> {}

impl<T: Pod> Pinned<T> {
    pub(super) fn new(driver: &Arc<Driver>, timelines: &Arc<Timelines>, len: usize) -> Result<Self> {
        Ok(Self {
            memory: driver.alloc_pinned(Self::allocated_bytes(len))?,
            driver: Arc::clone(driver),
            timelines: Arc::clone(timelines),
            len,
            events: [None; Stream::ALL.len()],
            pending: [None; Stream::ALL.len()],
            element: PhantomData,
        })
    }

    fn allocated_bytes(len: usize) -> usize {
        len.saturating_mul(size_of::<T>()).max(1)
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Waits for the newest copies and returns the elements.
    ///
    /// # Errors
    /// Returns an error if the device fails while the host waits.
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
        self.event(stream)?;
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
        self.event(stream)?;
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

    /// Queues copies on one stream, with one wait for all. They are not ordered after the copies of other
    /// streams: the caller must know which copies use the same elements.
    ///
    /// # Errors
    /// Returns the error of `queue`, or the driver's.
    pub fn copies(
        &mut self,
        stream: Stream,
        queue: impl FnOnce(&mut PinnedCopies<'_, T>) -> Result<()>,
    ) -> Result<()> {
        self.event(stream)?;
        // Marked when this is dropped, so also where `queue` unwinds.
        let mut copies = PinnedCopies { pinned: self, stream };
        let queued = queue(&mut copies);
        drop(copies);
        queued
    }

    /// Lets a copy on one stream follow unfinished copies on the others.
    fn order(&self, stream: Stream) -> Result<()> {
        for other in Stream::ALL {
            if let (Some(_), Some(event)) = (self.pending[other as usize], self.events[other as usize])
                && other != stream
            {
                self.driver.wait(stream, event)?;
            }
        }
        Ok(())
    }

    /// Returns the event of a stream, and creates it if there is none.
    fn event(&mut self, stream: Stream) -> Result<Handle> {
        let event = match self.events[stream as usize] {
            Some(event) => event,
            None => self.driver.create_event(false)?,
        };
        self.events[stream as usize] = Some(event);
        Ok(event)
    }

    fn mark(&mut self, stream: Stream) -> Result<()> {
        let event = self.event(stream)?;
        // Set first: if recording fails, the event's last recording is older than the copy, and the device is lost.
        self.pending[stream as usize] = Some(self.timelines.next(stream));
        self.driver.record(stream, event)
    }

    fn wait(&mut self) -> Result<()> {
        for stream in Stream::ALL {
            let (Some(moment), Some(event)) = (self.pending[stream as usize], self.events[stream as usize])
            else {
                continue;
            };
            if !self.timelines.is_done(stream, moment) {
                self.driver.synchronize(event)?;
                self.timelines.set_done(stream, moment);
            }
            self.pending[stream as usize] = None;
        }
        Ok(())
    }
}

/// Copies of pinned memory that are queued together.
#[derive(Debug)]
pub struct PinnedCopies<'a, T: Pod> {
    pinned: &'a mut Pinned<T>,
    stream: Stream,
}

impl PinnedCopies<'_, u8> {
    /// Queues a copy of a page to the device, from the bytes that begin at `offset`, array after array.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`], or the driver's.
    pub fn upload(&mut self, offset: usize, rows: &PageRows, page: u32) -> Result<()> {
        let places = [self.place(offset, rows)?, rows.place(page)?];
        self.queue(places, rows)
    }

    /// Queues a copy of a page of the device, to the bytes that begin at `offset`, array after array.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`], or the driver's.
    pub fn download(&mut self, rows: &PageRows, page: u32, offset: usize) -> Result<()> {
        let places = [rows.place(page)?, self.place(offset, rows)?];
        self.queue(places, rows)
    }

    fn queue(&mut self, places: [RowPlace; 2], rows: &PageRows) -> Result<()> {
        // SAFETY: `place` checked the range on the host, and `host` waits for the event that is recorded when this value is dropped.
        unsafe { (self.pinned.driver).copy_rows(self.stream, places, rows.row_bytes(), rows.n_rows()) }
    }

    fn place(&self, offset: usize, rows: &PageRows) -> Result<RowPlace> {
        let n_bytes = rows.page_bytes();
        let (start, _) = self
            .pinned
            .place(offset..offset.saturating_add(n_bytes), n_bytes)?;
        Ok(RowPlace {
            start: RowStart::Host(start),
            pitch: rows.row_bytes(),
        })
    }
}

impl<T: Pod> Drop for PinnedCopies<'_, T> {
    fn drop(&mut self) {
        // It fails only on a lost device, and the next call reports that.
        let _ = self.pinned.mark(self.stream);
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        let mut is_idle = true;
        for (event, pending) in self.events.into_iter().zip(self.pending) {
            let Some(event) = event else { continue };
            // A lost device copies nothing any more, but only a driver without an error says so for certain.
            is_idle &= pending.is_none() || self.driver.synchronize(event).is_ok();
            self.driver.destroy_event(event);
        }
        if is_idle {
            // SAFETY: the memory came from this driver, and no copy uses it.
            unsafe { self.driver.free_pinned(self.memory) };
        }
    }
}
