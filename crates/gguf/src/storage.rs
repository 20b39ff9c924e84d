//! [`Storage`]: the bytes of one file, mapped or in memory. The file map's unsafe code stands here and nowhere else.
//!
//! Invariant: the bytes start at an address that is a multiple of 64 and never change, as far as this process can see
//! to it.

#![expect(
    unsafe_code,
    reason = "mapping a file is unsafe: the file may change under the map"
)]

use std::{fs::File, io, ops::Range};

use bytemuck::{Pod, Zeroable};
use memmap2::Mmap;

/// The bytes of one file.
#[derive(Debug)]
pub(crate) enum Storage {
    /// A read-only map of a file.
    Map(Mmap),
    /// A copy in memory, `lines` with `n_bytes` in use.
    Memory {
        /// The bytes, in aligned pieces.
        lines: Vec<Line>,
        /// How many there are.
        n_bytes: usize,
    },
}

/// Bytes with the alignment of a cache line.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line([u8; 64]);

impl Storage {
    /// Maps a file, which must not be empty.
    pub(crate) fn map(file: &File) -> io::Result<Self> {
        // SAFETY: the map is read-only and private to this value. That no other process truncates or rewrites the file
        // while it is mapped cannot be checked; as with every mapped model file, that is the user's part, and is stated
        // in the documentation of `GgufFile::open`.
        let map = unsafe { Mmap::map(file)? };
        Ok(Self::Map(map))
    }

    /// Copies bytes into memory.
    pub(crate) fn copy(bytes: &[u8]) -> Self {
        let mut lines = vec![Line::zeroed(); bytes.len().div_ceil(64)];
        bytemuck::cast_slice_mut(&mut lines)[..bytes.len()].copy_from_slice(bytes);
        Self::Memory {
            lines,
            n_bytes: bytes.len(),
        }
    }

    /// All bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Map(map) => map,
            Self::Memory { lines, n_bytes } => &bytemuck::cast_slice(lines)[..*n_bytes],
        }
    }

    /// Asks the system to read these bytes ahead. Advice only: nothing depends on whether it is taken.
    pub(crate) fn prefetch(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Self::Map(map) = self
            && !range.is_empty()
        {
            let _ = map.advise_range(memmap2::Advice::WillNeed, range.start, range.len());
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Tells the system that these bytes are not needed soon, so that it may drop its copy in memory. They stay
    /// readable: the next access reads the file again.
    pub(crate) fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Self::Map(map) = self
            && !range.is_empty()
        {
            // SAFETY: the map is file-backed and read-only, so a dropped page holds nothing that is not in the file, and
            // a later access sees the same bytes.
            let _ = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
            };
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}
