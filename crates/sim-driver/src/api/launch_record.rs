//! [`LaunchRecord`]: the arguments of a launch with attributes.
//!
//! Invariant: an unknown attribute is refused, never ignored.

use std::ffi::c_void;

use tokenmill_ptx_sim::LaunchConfig;

use crate::code::{self, Outcome};

/// The attribute by which a launch may begin before the previous kernel in the stream is done, as the driver's header numbers it.
const PROGRAMMATIC_STREAM_SERIALIZATION: u32 = 6;

/// The record of `cuLaunchKernelEx`, as the driver's header has it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct LaunchRecord {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: *mut c_void,
    attributes: *const Attribute,
    n_attributes: u32,
}

/// An attribute: its number, and a union of 64 bytes, which begins with a number here.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Attribute {
    id: u32,
    pad: u32,
    value: [u64; 8],
}

impl LaunchRecord {
    /// Makes the record of a launch without attributes.
    pub(crate) fn plain(grid: [u32; 3], block: [u32; 3], shared_bytes: u32, stream: *mut c_void) -> Self {
        Self {
            grid,
            block,
            shared_bytes,
            stream,
            attributes: std::ptr::null(),
            n_attributes: 0,
        }
    }

    pub(crate) fn config(&self) -> (LaunchConfig, u32) {
        (LaunchConfig::new(self.grid, self.block), self.shared_bytes)
    }

    pub(crate) fn stream(&self) -> u64 {
        self.stream as u64
    }

    /// Returns whether the launch may begin early.
    ///
    /// # Safety
    /// The attributes exist.
    pub(crate) unsafe fn is_early(&self) -> Outcome<bool> {
        let mut is_early = false;
        for index in 0..self.n_attributes as usize {
            // SAFETY: the caller guarantees this number of attributes.
            let attribute = unsafe { *self.attributes.add(index) };
            if attribute.id != PROGRAMMATIC_STREAM_SERIALIZATION {
                return Err(code::INVALID_VALUE);
            }
            is_early = attribute.value[0] as u32 != 0;
        }
        Ok(is_early)
    }
}
