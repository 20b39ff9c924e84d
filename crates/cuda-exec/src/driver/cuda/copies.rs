//! Copies of a [`Driver`]: between host and device, and within the device.
//!
//! Invariant: the caller guarantees the host memory of a copy until the copy is done.

use std::ptr::{self, NonNull};

use cudarc::driver::sys::{CUDA_MEMCPY2D, CUmemorytype};

use super::Driver;
use crate::{driver::Stream, error::Result};

/// Start of the rows.
#[derive(Clone, Copy, Debug)]
pub(in crate::driver) enum RowStart {
    /// In pinned memory.
    Host(NonNull<u8>),
    /// In device memory.
    Device(u64),
}

/// Rows of memory.
#[derive(Clone, Copy, Debug)]
pub(in crate::driver) struct RowPlace {
    pub(in crate::driver) start: RowStart,
    /// Bytes from the start of a row to that of the next.
    pub(in crate::driver) pitch: usize,
}

impl Driver {
    /// # Safety
    /// `from` is pinned memory of this driver, valid for `n_bytes` and not written before the copy is done.
    pub(in crate::driver) unsafe fn upload(
        &self,
        stream: Stream,
        from: NonNull<u8>,
        to: u64,
        n_bytes: usize,
    ) -> Result<()> {
        self.enter("copying to the device")?;
        // SAFETY: the caller vouches for the memory until the copy is done.
        let code = unsafe { (self.api.upload)(to, from.as_ptr().cast(), n_bytes, self.stream(stream)) };
        self.check("copying to the device", code)
    }

    /// # Safety
    /// `to` is pinned memory of this driver, valid for `n_bytes` and not touched before the copy is done.
    pub(in crate::driver) unsafe fn download(
        &self,
        stream: Stream,
        from: u64,
        to: NonNull<u8>,
        n_bytes: usize,
    ) -> Result<()> {
        self.enter("copying to the host")?;
        // SAFETY: the caller vouches for the memory until the copy is done.
        let code = unsafe { (self.api.download)(to.as_ptr().cast(), from, n_bytes, self.stream(stream)) };
        self.check("copying to the host", code)
    }

    pub(in crate::driver) fn copy(&self, stream: Stream, from: u64, to: u64, n_bytes: usize) -> Result<()> {
        self.enter("copying within the device")?;
        // SAFETY: both ranges are inside buffers of this device.
        let code = unsafe { (self.api.copy)(to, from, n_bytes, self.stream(stream)) };
        self.check("copying within the device", code)
    }

    /// Copies rows of memory with equal distances, which may differ between the two sides.
    ///
    /// # Safety
    /// A side that is on the host is pinned memory of this driver, valid for its rows, and not touched in a way that disagrees with
    /// the copy before the copy is done.
    pub(in crate::driver) unsafe fn copy_rows(
        &self,
        stream: Stream,
        [from, to]: [RowPlace; 2],
        row_bytes: usize,
        n_rows: usize,
    ) -> Result<()> {
        self.enter("copying pages")?;
        let is_on_host = |place: &RowPlace| matches!(place.start, RowStart::Host(_));
        let kind = |place: &RowPlace| {
            if is_on_host(place) {
                CUmemorytype::CU_MEMORYTYPE_HOST
            } else {
                CUmemorytype::CU_MEMORYTYPE_DEVICE
            }
        };
        let on_host = |place: &RowPlace| match place.start {
            RowStart::Host(memory) => memory.as_ptr().cast::<std::ffi::c_void>(),
            RowStart::Device(_) => ptr::null_mut(),
        };
        let on_device = |place: &RowPlace| match place.start {
            RowStart::Host(_) => 0,
            RowStart::Device(address) => address,
        };
        let copy = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: kind(&from),
            srcHost: on_host(&from).cast_const(),
            srcDevice: on_device(&from),
            srcArray: ptr::null_mut(),
            srcPitch: from.pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: kind(&to),
            dstHost: on_host(&to),
            dstDevice: on_device(&to),
            dstArray: ptr::null_mut(),
            dstPitch: to.pitch,
            WidthInBytes: row_bytes,
            Height: n_rows,
        };
        // SAFETY: device ranges are inside buffers of this device, and the caller vouches for the host's.
        let code = unsafe { (self.api.copy_rows)(&raw const copy, self.stream(stream)) };
        self.check("copying pages", code)
    }

    pub(in crate::driver) fn fill(
        &self,
        stream: Stream,
        address: u64,
        byte: u8,
        n_bytes: usize,
    ) -> Result<()> {
        self.enter("clearing memory")?;
        // SAFETY: the range is inside a buffer of this device.
        let code = unsafe { (self.api.fill)(address, byte, n_bytes, self.stream(stream)) };
        self.check("clearing memory", code)
    }
}
