//! [`Storage`]: the bytes of one file: the file itself, a map of it, or memory. The unsafe code for maps is
//! here and nowhere else.

#![expect(
    unsafe_code,
    reason = "mapping a file is unsafe: the file may change under the map"
)]

use std::{io, path::Path, sync::Arc};

use memmap2::Mmap;

use crate::{RegularFile, TensorBytes};

/// The bytes of one file.
#[derive(Debug)]
pub(crate) enum Storage {
    /// The file, read on access.
    File(Arc<RegularFile>),
    /// A read-only map of a file.
    Map(Mmap),
    /// A copy in memory.
    Memory(Vec<u8>),
}

impl Storage {
    /// Maps a file, which must not be empty.
    ///
    /// # Safety
    /// As [`GgufFile::map`](crate::GgufFile::map): no process shortens or writes the file while it is mapped.
    pub(crate) unsafe fn map(file: &RegularFile) -> io::Result<Self> {
        // SAFETY: the map is read-only, and the caller guarantees that no process changes the file.
        let map = unsafe { Mmap::map(file.file())? };
        Ok(Self::Map(map))
    }

    /// Returns the path of a file that is read.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::File(file) => Some(file.path()),
            Self::Map(_) | Self::Memory(_) => None,
        }
    }

    /// Returns the number of bytes.
    pub(crate) fn n_bytes(&self) -> u64 {
        match self {
            Self::File(file) => file.n_bytes(),
            Self::Map(map) => map.len() as u64,
            Self::Memory(bytes) => bytes.len() as u64,
        }
    }

    /// Returns the bytes of a tensor, which were checked to exist.
    pub(crate) fn tensor(&self, start: u64, len: usize) -> TensorBytes<'_> {
        let bytes: &[u8] = match self {
            Self::File(file) => return TensorBytes::in_file(file, start, len),
            Self::Map(map) => map,
            Self::Memory(bytes) => bytes,
        };
        TensorBytes::from(&bytes[start as usize..][..len])
    }
}
