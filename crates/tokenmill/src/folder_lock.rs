//! [`FolderLock`]: a folder that one process uses at a time.
//!
//! Separate because prompts and sessions are kept in such folders alike. Invariant: who has the lock is the only one, but on file systems
//! that have no locks, which is told.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use crate::Error;

/// A folder's lock, as long as this is not dropped and the process lives.
#[derive(Debug)]
pub struct FolderLock(#[expect(dead_code, reason = "the system keeps the lock while the file is open")] File);

impl FolderLock {
    /// Takes the lock of a folder, which is that of the file `name` in it. `warn` is told where the file system has no locks.
    ///
    /// # Errors
    /// [`Error::FolderInUse`] where another has it; [`Error::Write`] and [`Error::Read`].
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
            // Whoever starts a second process on the folder is not told.
            Err(fs::TryLockError::Error(error)) if has_no_locks(&error) => {
                warn(&format!(
                    "{} lies on a file system without locks; let no other process use it",
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

/// Whether a lock failed since the file system has none, or no process that keeps them: NFS answers `ENOLCK` without a daemon for locks, which
/// has no kind of its own.
fn has_no_locks(error: &io::Error) -> bool {
    const ENOLCK: i32 = if cfg!(target_os = "linux") { 37 } else { 77 };
    error.kind() == io::ErrorKind::Unsupported || (cfg!(unix) && error.raw_os_error() == Some(ENOLCK))
}

/// Opens a file that its owner alone can read, and makes it where it is missing.
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
    fn one_at_a_time_has_a_folder() {
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
