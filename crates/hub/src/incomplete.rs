//! [`Incomplete`]: a file being downloaded, and the number of received bytes of each part.
//!
//! Parts arrive in any order and an interruption may come at any time. Invariants: an incomplete file is
//! longer than the final one, since a table of its parts follows its contents, so it never has the size of a
//! complete file; bytes of a part are counted after they are written, from its beginning without holes, and
//! counted bytes are never written again.
//!
//! ```text
//! | bytes of the file, with holes | MAGIC | size of a part, 8 bytes | for each part, 8 bytes: the number of received bytes |
//! ```

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::HubError;

/// Suffix of incomplete files.
pub(crate) const INCOMPLETE: &str = ".incomplete";

const MAGIC: &[u8; 8] = b"TMPARTS2";
const HEAD_BYTES: u64 = 16;
/// Bytes of the table for each part.
const COUNT_BYTES: u64 = 8;
/// Maximum number of parts. More would make a very large table.
const MAX_PARTS: u64 = 1 << 20;

/// A file being downloaded.
#[derive(Debug)]
pub(crate) struct Incomplete {
    file: File,
    path: PathBuf,
    n_bytes: u64,
    part_bytes: u64,
    /// Number of received bytes of each part.
    n_there: Mutex<Vec<u64>>,
    more_done: Condvar,
}

impl Incomplete {
    /// Opens the leftover of an earlier download, or begins a file. The parts of an earlier download keep
    /// their size.
    pub(crate) fn open(path: &Path, n_bytes: u64, part_bytes: u64) -> Result<Self, HubError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(HubError::file("write", path))?;
        let of = |part_bytes: u64, n_there: Vec<u64>, file: File| Self {
            file,
            path: path.to_owned(),
            n_bytes,
            part_bytes,
            n_there: Mutex::new(n_there),
            more_done: Condvar::new(),
        };
        let part_bytes = part_bytes.max(1).max(n_bytes.div_ceil(MAX_PARTS));
        if let Some((part_bytes, n_there)) = left_by_earlier(&file, n_bytes) {
            return Ok(of(part_bytes, n_there, file));
        }
        let n_parts = n_bytes.div_ceil(part_bytes);
        let begin = || {
            file.set_len(0)?;
            file.set_len(n_bytes + HEAD_BYTES + n_parts * COUNT_BYTES)?;
            write_all_at(&file, MAGIC, n_bytes)?;
            write_all_at(&file, &part_bytes.to_le_bytes(), n_bytes + 8)
        };
        begin().map_err(HubError::file("write", path))?;
        Ok(of(part_bytes, vec![0; n_parts as usize], file))
    }

    /// Returns the indices of incomplete parts.
    pub(crate) fn missing(&self) -> Vec<usize> {
        let n_there = self.lock();
        let is_missing = |part: &usize| n_there[*part] < self.len_of(*part);
        (0..n_there.len()).filter(is_missing).collect()
    }

    /// Returns the number of parts.
    pub(crate) fn n_parts(&self) -> usize {
        self.lock().len()
    }

    /// Returns the number of received bytes.
    pub(crate) fn done_bytes(&self) -> u64 {
        self.lock().iter().sum()
    }

    /// Returns the offset of the first missing byte of a part; its end if none is missing.
    pub(crate) fn next_of(&self, part: usize) -> u64 {
        self.start_of(part) + self.lock()[part]
    }

    /// Returns the start of a part.
    pub(crate) fn start_of(&self, part: usize) -> u64 {
        part as u64 * self.part_bytes
    }

    /// Returns the end of a part.
    pub(crate) fn end_of(&self, part: usize) -> u64 {
        self.n_bytes.min((part as u64 + 1) * self.part_bytes)
    }

    fn len_of(&self, part: usize) -> u64 {
        self.end_of(part) - self.start_of(part)
    }

    /// Appends bytes to a part, continuing in the next parts. `at` is the offset of the first missing byte
    /// there.
    pub(crate) fn append(&self, mut bytes: &[u8], mut at: u64) -> Result<(), HubError> {
        while !bytes.is_empty() {
            let part = (at / self.part_bytes) as usize;
            debug_assert_eq!(at, self.next_of(part), "a part has no holes");
            let n_bytes = bytes.len().min((self.end_of(part) - at) as usize);
            self.write(&bytes[..n_bytes], at)?;
            at += n_bytes as u64;
            bytes = &bytes[n_bytes..];
            let n_there = at - self.start_of(part);
            self.write_count(part, n_there)?;
            self.lock()[part] = n_there;
            if at == self.end_of(part) {
                self.more_done.notify_all();
            }
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<(), HubError> {
        write_all_at(&self.file, bytes, at).map_err(HubError::file("write", &self.path))
    }

    fn write_count(&self, part: usize, n_there: u64) -> Result<(), HubError> {
        let at = self.n_bytes + HEAD_BYTES + part as u64 * COUNT_BYTES;
        self.write(&n_there.to_le_bytes(), at)
    }

    /// Reads received bytes.
    pub(crate) fn read(&self, bytes: &mut [u8], at: u64) -> Result<(), HubError> {
        read_exact_at(&self.file, bytes, at).map_err(HubError::file("read", &self.path))
    }

    /// Discards all parts from `first` on; returns the number of their received bytes.
    pub(crate) fn forget_from(&self, first: usize) -> Result<u64, HubError> {
        let mut n_there = self.lock();
        let mut n_bytes = 0;
        for part in first..n_there.len() {
            if n_there[part] > 0 {
                self.write_count(part, 0)?;
                n_bytes += std::mem::take(&mut n_there[part]);
            }
        }
        Ok(n_bytes)
    }

    /// Waits until a part is complete; returns `false` if the download ended without it.
    pub(crate) fn wait_for(&self, part: usize, is_aborted: &AtomicBool) -> bool {
        let mut n_there = self.lock();
        while n_there[part] < self.len_of(part) {
            if is_aborted.load(Ordering::Relaxed) {
                return false;
            }
            let waited = self.more_done.wait_timeout(n_there, Duration::from_millis(100));
            (n_there, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// Turns it into the complete file `target`. It is flushed to the disk before it gets its name.
    pub(crate) fn finish(self, target: &Path) -> Result<(), HubError> {
        let Self {
            file, path, n_bytes, ..
        } = self;
        file.set_len(n_bytes)
            .and_then(|()| file.sync_all())
            .map_err(HubError::file("write", &path))?;
        drop(file);
        fs::rename(&path, target).map_err(HubError::file("write", target))
    }

    /// Removes the file.
    pub(crate) fn discard(self) -> Result<(), HubError> {
        fs::remove_file(&self.path).map_err(HubError::file("remove", &self.path))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u64>> {
        self.n_there.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the number of bytes that an earlier download of a file left at `path`.
pub(crate) fn bytes_left_at(path: &Path, n_bytes: u64) -> u64 {
    let left = (File::open(path).ok()).and_then(|file| left_by_earlier(&file, n_bytes));
    left.map_or(0, |(_, n_there)| n_there.iter().sum())
}

/// Returns the free bytes that a file needs to become complete at `path`: bytes written by an earlier
/// download are already allocated.
pub(crate) fn room_needed(path: &Path, n_bytes: u64) -> u64 {
    let taken_bytes = fs::metadata(path).map_or(0, |metadata| taken_bytes(&metadata));
    n_bytes.saturating_sub(taken_bytes)
}

/// Returns the bytes of a file on the disk, without its holes; all bytes if the system does not report it.
pub(crate) fn disk_bytes(metadata: &fs::Metadata) -> u64 {
    if cfg!(unix) {
        metadata.len().min(taken_bytes(metadata))
    } else {
        metadata.len()
    }
}

/// Returns the disk space of a file; its holes take none.
#[cfg(unix)]
fn taken_bytes(metadata: &fs::Metadata) -> u64 {
    const BLOCK_BYTES: u64 = 512;
    std::os::unix::fs::MetadataExt::blocks(metadata).saturating_mul(BLOCK_BYTES)
}

/// Returns 0, because the system does not report the disk space of a file.
#[cfg(not(unix))]
fn taken_bytes(_metadata: &fs::Metadata) -> u64 {
    0
}

/// Reads the size of the parts and their received bytes from the table of an earlier download.
fn left_by_earlier(file: &File, n_bytes: u64) -> Option<(u64, Vec<u64>)> {
    let length = file.metadata().ok()?.len();
    let table_bytes = length.checked_sub(n_bytes.checked_add(HEAD_BYTES)?)?;
    let n_parts = table_bytes / COUNT_BYTES;
    let mut head = [0; HEAD_BYTES as usize];
    if n_parts > MAX_PARTS || !table_bytes.is_multiple_of(COUNT_BYTES) {
        return None;
    }
    read_exact_at(file, &mut head, n_bytes).ok()?;
    let part_bytes = u64::from_le_bytes(head[8..].try_into().ok()?);
    if &head[..8] != MAGIC || part_bytes == 0 || n_bytes.div_ceil(part_bytes) != n_parts {
        return None;
    }
    let mut table = vec![0; table_bytes as usize];
    read_exact_at(file, &mut table, n_bytes + HEAD_BYTES).ok()?;
    let counts = table
        .chunks_exact(COUNT_BYTES as usize)
        .map(|count| count.try_into().map(u64::from_le_bytes));
    let n_there: Vec<u64> = counts.collect::<Result<_, _>>().ok()?;
    let longest = |part: usize| part_bytes.min(n_bytes - part as u64 * part_bytes);
    let is_possible = (n_there.iter().enumerate()).all(|(part, count)| *count <= longest(part));
    is_possible.then_some((part_bytes, n_there))
}

#[cfg(unix)]
fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(unix)]
fn read_exact_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(windows)]
fn write_all_at(file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let n_written = std::os::windows::fs::FileExt::seek_write(file, bytes, at)?;
        if n_written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[n_written..];
        at += n_written as u64;
    }
    Ok(())
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut bytes: &mut [u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let n_read = std::os::windows::fs::FileExt::seek_read(file, bytes, at)?;
        if n_read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes = &mut bytes[n_read..];
        at += n_read as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_download_is_continued_with_its_parts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.incomplete");
        let first = Incomplete::open(&path, 10, 4).unwrap();
        assert_eq!(first.missing(), [0, 1, 2]);
        first.append(b"efgh", 4).unwrap();
        first.append(b"a", 0).unwrap();
        drop(first);
        assert_ne!(fs::metadata(&path).unwrap().len(), 10);
        assert_eq!(bytes_left_at(&path, 10), 5);
        let second = Incomplete::open(&path, 10, 1).unwrap();
        assert_eq!((second.missing(), second.done_bytes()), (vec![0, 2], 5));
        assert_eq!([0, 1, 2].map(|part| second.next_of(part)), [1, 8, 8]);
        second.append(b"bcd", 1).unwrap();
        second.append(b"ij", 8).unwrap();
        assert!(second.wait_for(2, &AtomicBool::new(true)));
        let target = folder.path().join("x");
        second.finish(&target).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"abcdefghij");
        assert!(!path.exists());
    }

    #[test]
    fn a_file_of_another_size_begins_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.incomplete");
        for left in [
            &b""[..],
            b"abcdefghij",
            b"something else that is longer than the file",
        ] {
            fs::write(&path, left).unwrap();
            assert_eq!(bytes_left_at(&path, 10), 0);
            assert_eq!(Incomplete::open(&path, 10, 4).unwrap().missing().len(), 3);
        }
        // A count longer than its part.
        Incomplete::open(&path, 10, 4).unwrap().write_count(2, 3).unwrap();
        assert_eq!(bytes_left_at(&path, 10), 0);
        assert_eq!(Incomplete::open(&path, 10, 4).unwrap().next_of(2), 8);
        assert_eq!(Incomplete::open(&path, 0, 4).unwrap().missing().len(), 0);
    }

    #[test]
    #[cfg(unix)]
    fn what_was_written_has_its_room_already() {
        const MIB: usize = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        assert_eq!(room_needed(&path, 4 << 20), 4 << 20);
        let file = Incomplete::open(&path, 4 << 20, 2 << 20).unwrap();
        // The beginning of the second part: no part is complete.
        file.append(&vec![1; MIB], 2 << 20).unwrap();
        file.file.sync_all().unwrap();
        assert_eq!(bytes_left_at(&path, 4 << 20), 1 << 20);
        let needed_bytes = room_needed(&path, 4 << 20);
        assert!((2 << 20..=3 << 20).contains(&needed_bytes), "{needed_bytes}");
    }

    #[test]
    fn parts_that_are_forgotten_are_missing() {
        let folder = tempfile::tempdir().unwrap();
        let file = Incomplete::open(&folder.path().join("x"), 10, 4).unwrap();
        // Across all parts at once, as from a server without range requests.
        file.append(b"abcdefghij", 0).unwrap();
        assert_eq!(file.forget_from(1).unwrap(), 6);
        assert_eq!(file.missing(), [1, 2]);
        assert!(!file.wait_for(1, &AtomicBool::new(true)));
    }
}
