//! [`RegularFile`]: a file that is read by position.
//!
//! Headers, tensors and a model's JSON files are all opened this way. Invariants: only regular files are
//! opened, so that no read blocks on another program or never ends; a file that became shorter is an error
//! that says so.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use crate::{FileBytes, OpenFile, ReadAt};

/// An open regular file, with its length and modification time at opening.
#[derive(Debug)]
pub struct RegularFile {
    file: File,
    path: PathBuf,
    n_bytes: u64,
    /// The modification time; `None` if the system does not report it.
    modified: Option<SystemTime>,
}

impl RegularFile {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// The system's error, or [`io::ErrorKind::InvalidInput`] for a pipe, a device, a socket or a folder.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        // Checked before the file is opened: opening a pipe waits for its other end.
        check_regular(&fs::metadata(path)?)?;
        Self::of(File::open(path)?, path)
    }

    /// Wraps a file that was opened at `path`.
    pub(crate) fn of(file: File, path: &Path) -> io::Result<Self> {
        let metadata = file.metadata()?;
        check_regular(&metadata)?;
        Ok(Self {
            file,
            path: path.to_owned(),
            n_bytes: metadata.len(),
            modified: metadata.modified().ok(),
        })
    }

    /// Reads a whole file of at most `max_bytes` bytes.
    ///
    /// # Errors
    /// As [`Self::open`], and [`io::ErrorKind::FileTooLarge`] for a longer file.
    pub fn read(path: impl AsRef<Path>, max_bytes: usize) -> io::Result<Vec<u8>> {
        Self::open(path)?.read_whole(max_bytes)
    }

    /// Reads the whole file, at most `max_bytes` bytes.
    ///
    /// # Errors
    /// The system's error, or [`io::ErrorKind::FileTooLarge`] for a longer file.
    pub fn read_whole(&self, max_bytes: usize) -> io::Result<Vec<u8>> {
        let n_bytes = usize::try_from(self.n_bytes)
            .ok()
            .filter(|&n_bytes| n_bytes <= max_bytes)
            .ok_or_else(|| {
                let reason = format!("it has {} bytes, at most {max_bytes} are read", self.n_bytes);
                io::Error::new(io::ErrorKind::FileTooLarge, reason)
            })?;
        let mut bytes = vec![0; n_bytes];
        self.read_exact_at(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads a file of a model's folder, whose text a program may show.
    ///
    /// A downloaded folder may contain links to anything. A link is followed only inside the folder or, from
    /// a snapshot of Hugging Face's cache (`snapshots/NAME`), to its `blobs`, which hold a snapshot's files.
    ///
    /// # Errors
    /// As [`Self::read`], and [`io::ErrorKind::InvalidInput`] for a link out of the folder.
    pub fn read_in_folder(folder: &Path, name: &str, max_bytes: usize) -> io::Result<Vec<u8>> {
        let target = folder.join(name).canonicalize()?;
        let home = folder.canonicalize()?;
        let blobs = (home.ancestors())
            .find(|ancestor| ancestor.file_name().is_some_and(|name| name == "snapshots"))
            .and_then(|snapshots| Some(snapshots.parent()?.join("blobs")));
        if target.starts_with(&home) || blobs.is_some_and(|blobs| target.starts_with(blobs)) {
            return Self::read(target, max_bytes);
        }
        let reason = format!(
            "it is a link to {}, outside the model's folder; put the file itself there",
            target.display()
        );
        Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
    }

    /// Returns the file itself, to be read from its start.
    pub fn into_file(self) -> File {
        self.file
    }

    /// Returns the path at which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its length at opening.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Returns the open file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

impl ReadAt for RegularFile {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        read_exact_at(&self.file, offset, out).map_err(|error| {
            let path = self.path.display();
            let reason = match error.kind() {
                io::ErrorKind::UnexpectedEof => format!(
                    "{path} was opened with {} bytes and has become shorter; leave the file alone while it is read",
                    self.n_bytes
                ),
                _ => format!("{path}: {error}"),
            };
            io::Error::new(error.kind(), reason)
        })
    }
}

impl OpenFile for RegularFile {
    fn check_unchanged(&self) -> io::Result<()> {
        let named =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", self.path.display()));
        let metadata = self.file.metadata().map_err(named)?;
        if (metadata.len(), metadata.modified().ok()) == (self.n_bytes, self.modified) {
            return Ok(());
        }
        let reason = format!("{} was changed while the model was in use", self.path.display());
        Err(io::Error::new(io::ErrorKind::InvalidData, reason))
    }
}

impl ReadAt for Arc<RegularFile> {
    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        (**self).read_exact_at(offset, out)
    }

    fn keep(&self, start: u64, len: usize) -> Option<FileBytes> {
        Some(FileBytes::new(Arc::<RegularFile>::clone(self), start, len))
    }
}

fn check_regular(metadata: &fs::Metadata) -> io::Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let reason = if metadata.is_dir() {
        "it is a folder, expected a file"
    } else {
        "it is a pipe, a device or a socket, expected a regular file"
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
}

#[cfg(unix)]
fn read_exact_at(file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
    while !out.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, out, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n_read) => {
                out = &mut out[n_read..];
                offset += n_read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
