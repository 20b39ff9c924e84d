//! Local memory of a warp's threads, which tracks the written bytes.

use crate::lanes::LANES;

#[derive(Debug)]
pub(super) struct LocalState {
    bytes: usize,
    data: Vec<u8>,
    written: Vec<bool>,
}

impl LocalState {
    pub(super) fn new(bytes: u32) -> Self {
        let bytes = bytes as usize;
        Self {
            bytes,
            data: vec![0; bytes * LANES],
            written: vec![false; bytes * LANES],
        }
    }

    pub(super) fn reset(&mut self) {
        self.written.fill(false);
    }

    /// Returns the index of a lane's byte; `None` if the range is outside.
    pub(super) fn index(&self, lane: usize, offset: u64, bytes: usize) -> Option<usize> {
        let end = offset.checked_add(bytes as u64)?;
        (end <= self.bytes as u64).then(|| lane * self.bytes + offset as usize)
    }

    pub(super) fn is_written(&self, index: usize, bytes: usize) -> bool {
        self.written[index..index + bytes].iter().all(|&written| written)
    }

    pub(super) fn read(&self, index: usize, bytes: usize) -> u64 {
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(&self.data[index..index + bytes]);
        u64::from_le_bytes(value)
    }

    pub(super) fn write(&mut self, index: usize, bytes: usize, value: u64) {
        self.data[index..index + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
        self.written[index..index + bytes].fill(true);
    }
}
