//! [`FolderLock`] lets one process at a time use a folder.
//!
//! Prefix folders and session folders both take it. Invariant: the holder of a lock is the only one, except
//! on file systems without locks, about which the user is warned.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use crate::Error;

/// Holds a folder's lock until it is dropped or the process ends.
#[derive(Debug)]
pub struct FolderLock(#[expect(dead_code, reason = "the system keeps the lock while the file is open")] File);

impl FolderLock {
    /// Locks a folder by the file `name` in it. Calls `warn` if the file system has no locks.
    ///
    /// # Errors
    /// [`Error::FolderInUse`] if another process holds the lock; [`Error::Write`] and [`Error::Read`].
    pub fn take(folder: &Path, name: &str, warn: impl Fn(&str)) -> Result<Self, Error> {
        let path = folder.join(name);
        let file = private_file(&path).map_err(|source| Error::Write { path, source })?;
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                return Err(Error::FolderInUse {
                    path: folder.to_owned(),
                });
            }
            // Nothing can stop a second process here.
            Err(fs::TryLockError::Error(error)) if has_no_locks(&error) => {
                warn(&format!(
                    "{} is on a file system without locks; do not use it from another process",
                    folder.display()
                ));
            }
            Err(fs::TryLockError::Error(source)) => {
                return Err(Error::Read {
                    path: folder.to_owned(),
                    source,
                });
            }
        }
        Ok(Self(file))
    }
}

/// Says whether a lock failed because the file system has no locks or no lock daemon. Without the daemon NFS returns `ENOLCK`, which has no
/// error kind of its own.
fn has_no_locks(error: &io::Error) -> bool {
    const ENOLCK: i32 = if cfg!(target_os = "linux") { 37 } else { 77 };
    error.kind() == io::ErrorKind::Unsupported || (cfg!(unix) && error.raw_os_error() == Some(ENOLCK))
}

/// Opens a file that only its owner can read, and creates it if it is missing.
pub(crate) fn private_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_lock_is_exclusive() {
        let folder = tempfile::tempdir().unwrap();
        let take = || FolderLock::take(folder.path(), ".lock", |_| {});
        let lock = take().unwrap();
        assert!(matches!(take(), Err(Error::FolderInUse { .. })));
        drop(lock);
        assert!(take().is_ok());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn file_systems_without_locks_are_told_from_failures() {
        let check = |code: i32, expected: bool| {
            let error = io::Error::from_raw_os_error(code);
            assert_eq!(has_no_locks(&error), expected, "{error}");
        };
        let [enolck, eopnotsupp, eio, eacces] = [37, 95, 5, 13];
        check(enolck, true);
        check(eopnotsupp, true);
        check(eio, false);
        check(eacces, false);
    }
}
