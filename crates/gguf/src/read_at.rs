//! [`ReadAt`]: something that is read by position, and [`FileBytes`]: bytes of an open file that can be read for as long as they are
//! wanted.
//!
//! Separate from [`TensorBytes`](crate::TensorBytes), which borrows from what a model is loaded from: a table whose rows stay in the file
//! outlives the load. Invariant: nothing outside a range is read.

use std::{fmt, io, sync::Arc};

/// Something whose bytes can be read at any position, by several threads at once.
pub trait ReadAt: Send + Sync {
    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] where there are not enough bytes, or what the system says.
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// The `len` bytes from `start` on, to be read later from the same file; `None` where they are no bytes of an open file as they are.
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

/// A file that stays open, and can tell that it was changed.
pub trait OpenFile: ReadAt {
    /// Checks that the file is the one that was opened: as long, and last written at the same time.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::InvalidData`] for a file that was changed.
    fn check_unchanged(&self) -> io::Result<()>;
}

/// A range of a file, which stays open.
#[derive(Clone)]
pub struct FileBytes {
    file: Arc<dyn OpenFile>,
    start: u64,
    len: usize,
}

impl FileBytes {
    /// The `len` bytes of a file from `start` on.
    pub fn new(file: Arc<dyn OpenFile>, start: u64, len: usize) -> Self {
        Self { file, start, len }
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Errors
    /// The system's, which names the file; [`io::ErrorKind::UnexpectedEof`] beyond the range, or where the file has become shorter.
    pub fn read_into(&self, offset: usize, out: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(out.len()).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.file
            .read_exact_at(self.start.saturating_add(offset as u64), out)
    }

    /// Checks that the file is the one that was opened: as long, and last written at the same time.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::InvalidData`] for a file that was changed.
    pub fn check_unchanged(&self) -> io::Result<()> {
        self.file.check_unchanged()
    }
}

impl fmt::Debug for FileBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes from {} on", self.len, self.start)
    }
}
