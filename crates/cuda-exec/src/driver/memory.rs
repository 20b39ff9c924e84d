//! [`Buffer`] and its views: typed device memory, and the arena it comes from.
//!
//! Raw addresses become safe here. Invariant: no two buffers overlap, a view is inside its buffer and borrows it, and memory is freed when
//! its last buffer is dropped.

use std::{any::type_name, marker::PhantomData, ops::Range, sync::Arc};

use bytemuck::Pod;

use super::{Buffers, cuda::Driver};
use crate::{CudaExecError, error::Result};

/// Alignment of a buffer: that of the kernels' widest loads and of their planes.
pub(crate) const BUFFER_ALIGN: usize = 256;

/// An allocation of the driver, shared by the buffers in it.
#[derive(Debug)]
struct Chunk {
    driver: Arc<Driver>,
    address: u64,
    n_bytes: usize,
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(extents) = self.driver.extents() {
            extents.remove(self.address, self.n_bytes);
        }
        self.driver.free(self.address, self.n_bytes);
    }
}

/// Hands out memory from one allocation made in advance, and from further allocations when that is used up.
#[derive(Debug, Default)]
pub(super) struct Arena {
    reserved: Option<(Arc<Chunk>, usize)>,
    n_reserved: usize,
    n_taken: usize,
}

impl Arena {
    /// Allocates `n_bytes` ahead. The rest of an earlier reservation can no longer be used.
    pub(super) fn reserve(
        &mut self,
        driver: &Arc<Driver>,
        purpose: &'static str,
        n_bytes: usize,
    ) -> Result<()> {
        (self.n_reserved, self.n_taken) = (n_bytes, 0);
        if driver.buffers() == Buffers::Apart {
            return check_free(driver, purpose, n_bytes);
        }
        self.reserved = None;
        let chunk = allocate(driver, purpose, n_bytes)?;
        self.reserved = Some((chunk, 0));
        Ok(())
    }

    pub(super) fn reserved_and_taken_bytes(&self) -> [usize; 2] {
        [self.n_reserved, self.n_taken]
    }

    pub(super) fn alloc<T: Pod>(
        &mut self,
        driver: &Arc<Driver>,
        purpose: &'static str,
        len: usize,
    ) -> Result<Buffer<T>> {
        let buffer = self.place(driver, purpose, len)?;
        if let Some(extents) = driver.extents() {
            extents.add(buffer.address, len * size_of::<T>(), type_name::<T>());
        }
        Ok(buffer)
    }

    fn place<T: Pod>(
        &mut self,
        driver: &Arc<Driver>,
        purpose: &'static str,
        len: usize,
    ) -> Result<Buffer<T>> {
        let n_bytes = buffer_bytes::<T>(len);
        self.n_taken += n_bytes;
        if let Some((chunk, n_used)) = &mut self.reserved
            && n_bytes <= chunk.n_bytes - *n_used
        {
            let address = chunk.address + *n_used as u64;
            *n_used += n_bytes;
            return Ok(Buffer {
                chunk: Arc::clone(chunk),
                address,
                len,
                element: PhantomData,
            });
        }
        let n_bytes = match driver.buffers() {
            Buffers::Apart => (len * size_of::<T>()).max(1),
            Buffers::Together => n_bytes,
        };
        let chunk = allocate(driver, purpose, n_bytes)?;
        Ok(Buffer {
            address: chunk.address,
            chunk,
            len,
            element: PhantomData,
        })
    }
}

/// Returns the bytes of an arena that a buffer of `len` elements takes.
pub fn buffer_bytes<T>(len: usize) -> usize {
    len.saturating_mul(size_of::<T>())
        .max(1)
        .checked_next_multiple_of(BUFFER_ALIGN)
        .unwrap_or(usize::MAX)
}

fn check_free(driver: &Arc<Driver>, purpose: &'static str, n_bytes: usize) -> Result<()> {
    let free_bytes = driver.free_bytes()?;
    if n_bytes as u64 <= free_bytes {
        return Ok(());
    }
    Err(CudaExecError::OutOfMemory {
        purpose,
        needed_bytes: n_bytes as u64,
        free_bytes,
    })
}

fn allocate(driver: &Arc<Driver>, purpose: &'static str, n_bytes: usize) -> Result<Arc<Chunk>> {
    check_free(driver, purpose, n_bytes)?;
    let address = driver.alloc(n_bytes).map_err(|error| match error {
        CudaExecError::OutOfMemory {
            needed_bytes,
            free_bytes,
            ..
        } => CudaExecError::OutOfMemory {
            purpose,
            needed_bytes,
            free_bytes,
        },
        other => other,
    })?;
    Ok(Arc::new(Chunk {
        driver: Arc::clone(driver),
        address,
        n_bytes,
    }))
}

/// `len` elements of device memory.
#[derive(Debug)]
pub struct Buffer<T> {
    chunk: Arc<Chunk>,
    address: u64,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns all elements, to read.
    pub fn view(&self) -> View<'_, T> {
        View {
            address: self.address,
            len: self.len,
            buffer: PhantomData,
        }
    }

    /// Returns all elements, to write.
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        ViewMut {
            address: self.address,
            len: self.len,
            buffer: PhantomData,
        }
    }

    /// Returns a view to read that keeps the memory alive.
    pub fn share(&self) -> SharedView<T> {
        SharedView(self.alias())
    }

    /// Returns another handle of the same memory, for an operation that is launched later.
    pub(crate) fn alias(&self) -> Self {
        Self {
            chunk: Arc::clone(&self.chunk),
            address: self.address,
            len: self.len,
            element: PhantomData,
        }
    }
}

/// A read-only view of a buffer that may outlive it, for results that are copied after the operations that made them.
#[derive(Debug)]
pub struct SharedView<T>(Buffer<T>);

impl<T: Pod> SharedView<T> {
    /// Returns all elements.
    pub fn view(&self) -> View<'_, T> {
        self.0.view()
    }
}

impl<T: Pod> Clone for SharedView<T> {
    fn clone(&self) -> Self {
        self.0.share()
    }
}

/// Elements of a buffer, to read.
#[derive(Debug)]
pub struct View<'a, T> {
    address: u64,
    len: usize,
    buffer: PhantomData<&'a T>,
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<'_, T> {}

/// Elements of a buffer, to write.
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    address: u64,
    len: usize,
    buffer: PhantomData<&'a mut T>,
}

impl<'a, T: Pod> View<'a, T> {
    /// Makes a view of memory at an address. It is part of a buffer that lives as long as the view.
    pub(super) fn at(address: u64, len: usize) -> Self {
        View {
            address,
            len,
            buffer: PhantomData,
        }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns some of the elements.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`].
    pub fn range(self, range: Range<usize>) -> Result<View<'a, T>> {
        let (address, len) = inside::<T>(self.address, self.len, range)?;
        Ok(View {
            address,
            len,
            buffer: PhantomData,
        })
    }

    /// Returns the address of the first element on the device, for tables that kernels follow. The caller keeps the buffer alive for as long
    /// as a table contains the address.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl<'a, T: Pod> ViewMut<'a, T> {
    /// Makes a view of memory at an address. It is part of a buffer that lives as long as the view.
    pub(super) fn at(address: u64, len: usize) -> Self {
        ViewMut {
            address,
            len,
            buffer: PhantomData,
        }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns some of the elements.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`].
    pub fn range(self, range: Range<usize>) -> Result<ViewMut<'a, T>> {
        let (address, len) = inside::<T>(self.address, self.len, range)?;
        Ok(ViewMut {
            address,
            len,
            buffer: PhantomData,
        })
    }

    /// Returns the first `middle` elements, and the rest.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`].
    pub fn split_at(self, middle: usize) -> Result<(ViewMut<'a, T>, ViewMut<'a, T>)> {
        let (address, len) = inside::<T>(self.address, self.len, 0..middle)?;
        let (rest_address, rest_len) = inside::<T>(self.address, self.len, middle..self.len)?;
        let part = |address, len| ViewMut {
            address,
            len,
            buffer: PhantomData,
        };
        Ok((part(address, len), part(rest_address, rest_len)))
    }

    /// Returns the same elements, borrowed for less time.
    pub fn reborrow(&mut self) -> ViewMut<'_, T> {
        ViewMut {
            address: self.address,
            len: self.len,
            buffer: PhantomData,
        }
    }

    /// Returns the same elements, to read.
    pub fn as_view(&self) -> View<'_, T> {
        View {
            address: self.address,
            len: self.len,
            buffer: PhantomData,
        }
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }
}

fn inside<T>(address: u64, len: usize, range: Range<usize>) -> Result<(u64, usize)> {
    if range.start <= range.end && range.end <= len {
        Ok((address + (range.start * size_of::<T>()) as u64, range.len()))
    } else {
        Err(CudaExecError::Bounds { range, len })
    }
}
