//! [`Copy2d`]: the record of a copy in two dimensions.
//!
//! Invariant: [`Rows`] has only values that the driver would accept: pitches at least as wide as a row and at
//! most a device's limit, and linear memory.

use std::ffi::c_void;

use crate::{
    code::{self, Outcome},
    host_memory::HostMemory,
    rows::{Place, Rows},
};

/// Largest distance of two rows, as on devices.
const MAX_PITCH: usize = (1 << 31) - 1;
/// Kinds of memory, as the driver's header numbers them.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

/// The record of `cuMemcpy2DAsync`, as the driver's header has it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Copy2d {
    from: Side,
    to: Side,
    width_bytes: usize,
    height: usize,
}

/// A side of the record.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Side {
    x_bytes: usize,
    y: usize,
    kind: u32,
    host: *const c_void,
    device: u64,
    array: *const c_void,
    pitch: usize,
}

impl Copy2d {
    /// Returns the rows to copy.
    ///
    /// # Safety
    /// A side on the host has memory for its rows until the copy is done.
    pub(crate) unsafe fn rows(&self) -> Outcome<Rows> {
        let place = |side: &Side| -> Outcome<Place> {
            let is_plain = side.x_bytes == 0 && side.y == 0 && side.array.is_null();
            if !is_plain || side.pitch < self.width_bytes || side.pitch > MAX_PITCH {
                return Err(code::INVALID_VALUE);
            }
            let n_bytes = self.height.saturating_sub(1) * side.pitch + self.width_bytes;
            match side.kind {
                // SAFETY: the caller says so.
                HOST => Ok(Place::Host(unsafe { HostMemory::of_caller(side.host, n_bytes) })),
                DEVICE => Ok(Place::Device(side.device)),
                _ => Err(code::INVALID_VALUE),
            }
        };
        Ok(Rows {
            from: place(&self.from)?,
            to: place(&self.to)?,
            pitches: [self.from.pitch, self.to.pitch],
            row_bytes: self.width_bytes,
            height: self.height,
        })
    }
}
