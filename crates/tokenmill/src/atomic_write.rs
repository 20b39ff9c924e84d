//! [`write_atomically`]: writes a file that exists completely or not at all.
//!
//! It protects the earlier file from a crash. Invariant: the name never refers to a partial file, and refers
//! to the earlier file until the new bytes are on the disk.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    process,
};

/// Names that are tried where others are taken.
const MAX_TAKEN: u32 = 1000;

/// How the names of unfinished files end.
const UNFINISHED: &str = ".incomplete";

/// Writes a file under another name in the same folder, brings it to the disk, and gives it its own.
pub(crate) fn write_atomically<E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&mut File) -> Result<(), E>,
) -> Result<(), E> {
    write_unsynced::<E>(path, |file| {
        write(file)?;
        Ok(file.sync_all()?)
    })?;
    Ok(sync_folder(path)?)
}

/// As [`write_atomically`], but leaves it to the system when the bytes come to the disk: a power cut may cut the file.
pub(crate) fn write_unsynced<E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&mut File) -> Result<(), E>,
) -> Result<(), E> {
    let (mut file, aside) = create_aside(path)?;
    keep_mode(path, &file)?;
    let written = write(&mut file).and_then(|()| {
        drop(file);
        Ok(fs::rename(&aside, path)?)
    });
    if written.is_err() {
        // The file may no longer exist, and the caller reports the first error.
        let _ = fs::remove_file(&aside);
    }
    written
}

fn create_aside(path: &Path) -> io::Result<(File, PathBuf)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // A file left by a killed process may have the id of this process, as in a container.
    let mut n_taken = 0;
    loop {
        let aside = path.with_file_name(format!(".{name}.{}-{n_taken}{UNFINISHED}", process::id()));
        match create_private(&aside) {
            Ok(file) => return Ok((file, aside)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && n_taken < MAX_TAKEN => n_taken += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Creates a file that its owner alone can read: it holds a conversation.
fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Gives a file the mode of the file that it replaces, if there is one.
#[cfg(unix)]
fn keep_mode(replaced: &Path, file: &File) -> io::Result<()> {
    match fs::metadata(replaced) {
        Ok(metadata) => file.set_permissions(metadata.permissions()),
        Err(_) => Ok(()),
    }
}

#[cfg(not(unix))]
fn keep_mode(_: &Path, _: &File) -> io::Result<()> {
    Ok(())
}

/// Brings the name to the disk too, where folders can be opened.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match File::open(folder.unwrap_or(Path::new("."))) {
        Ok(folder) if cfg!(unix) => folder.sync_all(),
        _ => Ok(()),
    }
}

/// Removes partial files that killed processes left in a folder to which no other process writes.
pub(crate) fn remove_unfinished(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') && name.ends_with(UNFINISHED) && entry.file_type()?.is_file() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_full_disk_leaves_the_file_that_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let n_files = || fs::read_dir(folder.path()).unwrap().count();
        write_atomically(&path, |file| file.write_all(b"old")).unwrap();
        let full = write_atomically(&path, |file| {
            file.write_all(b"ne")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        });
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!((fs::read(&path).unwrap(), n_files()), (b"old".to_vec(), 1));
        write_atomically(&path, |file| file.write_all(b"new")).unwrap();
        assert_eq!((fs::read(&path).unwrap(), n_files()), (b"new".to_vec(), 1));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_is_its_owners_and_keeps_the_mode_that_it_was_given() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        write_atomically(&path, |file| file.write_all(b"old")).unwrap();
        assert_eq!(mode(), 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        write_atomically(&path, |file| file.write_all(b"new")).unwrap();
        assert_eq!(mode(), 0o640);
    }

    #[test]
    fn what_a_killed_process_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write_atomically(&path, |file| file.write_all(b"whole")).unwrap();
        let (file, aside) = create_aside(&path).unwrap();
        // The next file with the name is not affected.
        write_atomically(&path, |file| file.write_all(b"newer")).unwrap();
        drop(file);
        assert!(aside.exists());
        remove_unfinished(folder.path()).unwrap();
        assert!(!aside.exists());
        assert_eq!(fs::read(&path).unwrap(), b"newer");
    }
}
