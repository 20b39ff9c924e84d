//! [`TensorBytes`]: the bytes of one tensor, read piece by piece from any source.
//!
//! Weights in memory, GGUF files and safetensors folders load alike. Invariants: a read takes `&self`, so
//! several threads may read one tensor at once; nothing outside the tensor is read.

use std::{fmt, io, ops::Range};

use crate::{FileBytes, ReadAt};

/// The bytes of one tensor: in memory, or in a file that is read on access.
#[derive(Clone, Copy)]
pub struct TensorBytes<'a>(Place<'a>);

#[derive(Clone, Copy)]
enum Place<'a> {
    Memory(&'a [u8]),
    File {
        source: &'a dyn ReadAt,
        start: u64,
        len: usize,
    },
}

impl<'a> TensorBytes<'a> {
    /// Returns the `len` bytes of `source` from `start` on.
    pub fn in_file(source: &'a dyn ReadAt, start: u64, len: usize) -> Self {
        Self(Place::File { source, start, len })
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        match self.0 {
            Place::Memory(bytes) => bytes.len(),
            Place::File { len, .. } => len,
        }
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a part of the bytes, such as some rows of a matrix.
    ///
    /// # Panics
    /// If the range is not inside the tensor.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "bytes {range:?} are outside a tensor of {}",
            self.len()
        );
        match self.0 {
            Place::Memory(bytes) => Self(Place::Memory(&bytes[range])),
            Place::File { source, start, .. } => {
                Self::in_file(source, start + range.start as u64, range.len())
            }
        }
    }

    /// Returns all bytes if they are in memory, as for a mapped file or a model in memory.
    pub fn as_slice(&self) -> Option<&'a [u8]> {
        match self.0 {
            Place::Memory(bytes) => Some(bytes),
            Place::File { .. } => None,
        }
    }

    /// Returns the same bytes, to be read later; `None` if they are not unmodified bytes of an open file.
    pub fn keep(&self) -> Option<FileBytes> {
        match self.0 {
            Place::Memory(_) => None,
            Place::File { source, start, len } => source.keep(start, len),
        }
    }

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// The source's error; the message names its file.
    ///
    /// # Panics
    /// If the tensor has fewer bytes.
    pub fn read_into(&self, offset: usize, out: &mut [u8]) -> io::Result<()> {
        assert!(
            offset.checked_add(out.len()).is_some_and(|end| end <= self.len()),
            "{} bytes at {offset} are outside a tensor of {}",
            out.len(),
            self.len()
        );
        match self.0 {
            Place::Memory(bytes) => out.copy_from_slice(&bytes[offset..][..out.len()]),
            Place::File { source, start, .. } => source.read_exact_at(start + offset as u64, out)?,
        }
        Ok(())
    }

    /// Returns some of the bytes: a reference if they are in memory, otherwise read into `buffer`, which
    /// grows if it is too short and can be reused.
    ///
    /// # Errors
    /// As [`Self::read_into`].
    ///
    /// # Panics
    /// As [`Self::read_into`].
    pub fn read<'b>(&self, range: Range<usize>, buffer: &'b mut Vec<u8>) -> io::Result<&'b [u8]>
    where
        'a: 'b,
    {
        if let Place::Memory(bytes) = self.0 {
            return Ok(&bytes[range]);
        }
        if buffer.len() < range.len() {
            buffer.resize(range.len(), 0);
        }
        let out = &mut buffer[..range.len()];
        self.read_into(range.start, out)?;
        Ok(out)
    }

    /// Reads all bytes.
    ///
    /// # Errors
    /// As [`Self::read_into`].
    pub fn to_vec(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.len()];
        self.read_into(0, &mut bytes)?;
        Ok(bytes)
    }
}

impl<'a> From<&'a [u8]> for TensorBytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(Place::Memory(bytes))
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for TensorBytes<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self(Place::Memory(bytes))
    }
}

impl<'a> From<&'a Vec<u8>> for TensorBytes<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self(Place::Memory(bytes))
    }
}

impl fmt::Debug for TensorBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.0 {
            Place::Memory(_) => "in memory",
            Place::File { .. } => "in a file",
        };
        write!(f, "{} bytes {place}", self.len())
    }
}
