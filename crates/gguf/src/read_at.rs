//! [`ReadAt`]: a source that is read by position; and [`FileBytes`]: bytes of an open file that can be read
//! at any later time.
//!
//! [`TensorBytes`](crate::TensorBytes) borrows from the source of a load, but a table whose rows stay in the
//! file outlives the load. Invariant: nothing outside a range is read.

use std::{fmt, io, sync::Arc};

/// A source of bytes that several threads can read at any position at once.
pub trait ReadAt: Send + Sync {
    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if there are not enough bytes, or the system's error.
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Returns the `len` bytes from `start` on, to be read later from the same file; `None` if they are not
    /// unmodified bytes of an open file.
    fn keep(&self, start: u64, len: usize) -> Option<FileBytes> {
        let _ = (start, len);
        None
    }
}

impl ReadAt for &[u8] {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..start.checked_add(out.len())?))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }
}

/// A file that stays open, and can detect that it was changed.
pub trait OpenFile: ReadAt {
    /// Checks that the file has not changed since it was opened: same length, same modification time.
    ///
    /// # Errors
    /// The system's error, or [`io::ErrorKind::InvalidData`] for a changed file.
    fn check_unchanged(&self) -> io::Result<()>;
}

/// A range of an open file.
#[derive(Clone)]
pub struct FileBytes {
    file: Arc<dyn OpenFile>,
    start: u64,
    len: usize,
}

impl FileBytes {
    /// Returns the `len` bytes of a file from `start` on.
    pub fn new(file: Arc<dyn OpenFile>, start: u64, len: usize) -> Self {
        Self { file, start, len }
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// The system's error, which names the file; [`io::ErrorKind::UnexpectedEof`] beyond the range, or if the
    /// file has become shorter.
    pub fn read_into(&self, offset: usize, out: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(out.len()).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.file
            .read_exact_at(self.start.saturating_add(offset as u64), out)
    }

    /// Checks that the file has not changed since it was opened: same length, same modification time.
    ///
    /// # Errors
    /// The system's error, or [`io::ErrorKind::InvalidData`] for a changed file.
    pub fn check_unchanged(&self) -> io::Result<()> {
        self.file.check_unchanged()
    }
}

impl fmt::Debug for FileBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes from {} on", self.len, self.start)
    }
}
