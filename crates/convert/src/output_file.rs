//! [`OutputFile`]: a file that exists completely or not at all.
//!
//! All output is written through it. Invariants: the requested name never refers to a partial file;
//! unfinished files are removed, at the latest by the next process that writes a file with the same name; a
//! link stays a link, even one to a missing file; an overwritten file keeps its mode and its owner, as far as
//! the system allows.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
    process,
};

use tokenmill_gguf::free_bytes;

use crate::ConvertError;

/// Maximum number of names to try if others are taken.
const MAX_TAKEN: u32 = 1000;
/// Suffix of unfinished files.
const END: &str = ".incomplete";
/// Maximum number of links to follow, the same as in Linux.
const MAX_LINKS: u32 = 40;

/// A file that is written under a temporary name and renamed at the end. A device or a pipe is written
/// directly.
#[derive(Debug)]
pub struct OutputFile {
    file: File,
    path: PathBuf,
    /// The temporary path; `None` once it is finished.
    aside: Option<PathBuf>,
}

impl OutputFile {
    /// Returns whether a path is written directly, because it is a device or a pipe. There is no room to
    /// check, and opening and closing a pipe would end it for its reader.
    pub fn is_in_place(path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
    }

    /// Creates a temporary file next to the final path. Leftovers of killed processes with the same name are
    /// removed.
    ///
    /// # Errors
    /// [`ConvertError::Io`] if it cannot be created.
    pub fn create(path: &Path) -> Result<Self, ConvertError> {
        let io_error = |source| ConvertError::Io {
            what: "write to",
            path: path.to_owned(),
            source,
        };
        let path = target_of(path).map_err(io_error)?;
        if Self::is_in_place(&path) {
            let file = File::options().write(true).open(&path).map_err(io_error)?;
            return Ok(Self {
                file,
                path,
                aside: None,
            });
        }
        remove_abandoned(&path);
        let start = start_of_names(&path);
        // A killed process may have had the same process number, as in a container.
        let mut n_taken = 0;
        loop {
            let aside = path.with_file_name(format!("{start}{}-{n_taken}{END}", process::id()));
            match create_aside(&aside, &path) {
                Ok(file) if is_held(&file, &aside) => {
                    take_over_mode(&file, &path);
                    return Ok(Self {
                        file,
                        path,
                        aside: Some(aside),
                    });
                }
                Ok(_) if n_taken < MAX_TAKEN => n_taken += 1,
                Ok(_) => return Err(io_error(io::ErrorKind::AlreadyExists.into())),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && n_taken < MAX_TAKEN => {
                    n_taken += 1;
                }
                Err(source) => return Err(io_error(source)),
            }
        }
    }

    /// Checks that the disk has room for this many bytes. If the system does not report it, or for devices
    /// and pipes, the check passes.
    ///
    /// # Errors
    /// [`ConvertError::NoRoom`].
    pub fn check_room(&self, needed_bytes: u64) -> Result<(), ConvertError> {
        let folder = self.folder();
        match free_bytes(folder) {
            Some(free_bytes) if self.aside.is_some() && free_bytes < needed_bytes => {
                Err(ConvertError::NoRoom {
                    folder: folder.to_owned(),
                    needed_bytes,
                    free_bytes,
                })
            }
            _ => Ok(()),
        }
    }

    /// Returns the folder of the file.
    pub(crate) fn folder(&self) -> &Path {
        folder_of(&self.path)
    }

    /// Flushes the bytes to the disk and gives the file its name.
    ///
    /// # Errors
    /// [`ConvertError::Io`]; then no file is left.
    pub fn finish(mut self) -> Result<(), ConvertError> {
        let io_error = |source| ConvertError::Io {
            what: "write to",
            path: self.path.clone(),
            source,
        };
        let Some(aside) = self.aside.clone() else {
            return self.file.flush().map_err(io_error);
        };
        self.file.sync_all().map_err(io_error)?;
        fs::rename(&aside, &self.path).map_err(io_error)?;
        self.aside = None;
        Ok(())
    }
}

/// Resolves a path through links, even to a missing file, so that a link is not replaced.
fn target_of(path: &Path) -> io::Result<PathBuf> {
    if let Ok(path) = fs::canonicalize(path) {
        return Ok(path);
    }
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        match fs::read_link(&path) {
            // Relative to the folder of the link; an absolute target replaces it.
            Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("too many levels of links"))
}

/// Creates a file that will replace another, if there is one: only the writer can access it until it has the
/// other's mode.
#[cfg(unix)]
fn create_aside(aside: &Path, replaced: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    const OWNER_ALONE: u32 = 0o600;
    let mut options = File::options();
    options.write(true).create_new(true);
    if replaced.is_file() {
        options.mode(OWNER_ALONE);
    }
    options.open(aside)
}

#[cfg(not(unix))]
fn create_aside(aside: &Path, _: &Path) -> io::Result<File> {
    File::create_new(aside)
}

/// Copies the mode and the owner of the replaced file, if there is one, as far as the system allows: apart
/// from the writer, the new file is readable only by those who could read the old one. Access control lists
/// are not copied.
#[cfg(unix)]
fn take_over_mode(file: &File, replaced: &Path) {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
    /// Permission bits for reading, writing and executing, without the setuid, setgid and sticky bits.
    const MODE_BITS: u32 = 0o777;
    let (Ok(old), Ok(new)) = (fs::metadata(replaced), file.metadata()) else {
        return;
    };
    if !old.is_file() {
        return;
    }
    if (old.uid(), old.gid()) != (new.uid(), new.gid())
        // Only a privileged process may change a file's owner; others may change its group to one of their
        // own.
        && fchown(file, Some(old.uid()), Some(old.gid())).is_err()
    {
        let _kept = fchown(file, None, Some(old.gid()));
    }
    let has_group = file.metadata().is_ok_and(|now| now.gid() == old.gid());
    let mode = mode_for(old.mode() & MODE_BITS, has_group);
    // Some file systems have no modes.
    let _kept = file.set_permissions(fs::Permissions::from_mode(mode));
}

/// Returns the mode of a file that replaces one of mode `old`. If the group could not be copied, members of
/// the new group were "others" before, and members of the old group are now; so both get only the permissions
/// that group and others had in common.
#[cfg(unix)]
fn mode_for(old: u32, has_group: bool) -> u32 {
    const GROUP_BITS: u32 = 0o070;
    const OTHER_BITS: u32 = 0o007;
    if has_group {
        old
    } else {
        let both = old & (old << 3) & GROUP_BITS;
        old & !(GROUP_BITS | OTHER_BITS) | both | both >> 3
    }
}

#[cfg(not(unix))]
fn take_over_mode(_: &File, _: &Path) {}

/// Returns the folder of a file; the current directory for a bare name.
fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Returns the prefix of a file's temporary names.
fn start_of_names(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    format!(".{name}.")
}

/// Locks a newly created file. The lock shows that a process is writing it, and ends with the process.
/// Returns `false` if another process has removed it as abandoned before.
fn is_held(file: &File, aside: &Path) -> bool {
    // Without lock support in the file system, no process removes files that another may be writing.
    !matches!(file.try_lock(), Err(TryLockError::WouldBlock)) && aside.exists()
}

/// Removes leftovers of killed processes: partial files that no process has locked.
fn remove_abandoned(path: &Path) {
    let start = start_of_names(path);
    let is_part = |name: &str| {
        let numbers = name.strip_prefix(&start).and_then(|rest| rest.strip_suffix(END));
        let numbers = numbers.and_then(|numbers| numbers.split_once('-'));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        numbers.is_some_and(|(process, no)| is_number(process) && is_number(no))
    };
    let entries = fs::read_dir(folder_of(path));
    for entry in entries.into_iter().flatten().filter_map(Result::ok) {
        if entry.file_name().to_str().is_some_and(is_part) {
            let part = entry.path();
            let Ok(file) = File::open(&part) else { continue };
            // The lock is held until the file is gone, so that no process claims it meanwhile.
            if file.try_lock().is_ok() {
                // If removal fails, the next name is used.
                let _left = fs::remove_file(&part);
            }
        }
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Some(aside) = &self.aside {
            // There is no caller to report to here, and the original error is reported.
            let _ = fs::remove_file(aside);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn another_group_may_do_what_both_the_old_one_and_others_might() {
        for (old, expected) in [
            (0o640, 0o600),
            (0o664, 0o644),
            (0o660, 0o600),
            (0o604, 0o600),
            (0o755, 0o755),
            (0o777, 0o777),
        ] {
            assert_eq!(mode_for(old, true), old);
            assert_eq!(mode_for(old, false), expected, "{old:o}");
        }
    }

    #[test]
    fn what_is_not_finished_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.gguf");
        let n_files = || fs::read_dir(folder.path()).unwrap().count();
        let mut file = OutputFile::create(&path).unwrap();
        file.write_all(b"part").unwrap();
        assert!(!path.exists());
        // Another file with the same name in the same process.
        drop(OutputFile::create(&path).unwrap());
        drop(file);
        assert_eq!(n_files(), 0);
        let mut file = OutputFile::create(&path).unwrap();
        file.write_all(b"whole").unwrap();
        file.finish().unwrap();
        assert_eq!((fs::read(&path).unwrap(), n_files()), (b"whole".to_vec(), 1));
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_what_is_written_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.gguf");
        let [left, other, named_by_a_person] = [
            ".out.gguf.77-0.incomplete",
            ".other.gguf.77-0.incomplete",
            ".out.gguf.mine.incomplete",
        ]
        .map(|name| folder.path().join(name));
        for path in [&left, &other, &named_by_a_person] {
            fs::write(path, "left").unwrap();
        }
        let first = OutputFile::create(&path).unwrap();
        assert!(!left.exists() && other.exists() && named_by_a_person.exists());
        let second = OutputFile::create(&path).unwrap();
        assert!(first.aside.as_ref().is_some_and(|aside| aside.exists()));
        assert_ne!(first.aside, second.aside);
        first.finish().unwrap();
        assert!(path.exists());
    }

    #[test]
    #[cfg(unix)]
    fn links_stay_links() {
        let folder = tempfile::tempdir().unwrap();
        let [target, link] = ["target", "link"].map(|name| folder.path().join(name));
        fs::write(&target, "old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let mut file = OutputFile::create(&link).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"old");
        file.finish().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"new");
        assert!(link.is_symlink());
    }

    #[test]
    #[cfg(unix)]
    fn a_link_to_nothing_gets_its_target() {
        let folder = tempfile::tempdir().unwrap();
        let [target, first, second] =
            ["sub/target", "first", "sub/second"].map(|name| folder.path().join(name));
        fs::create_dir(folder.path().join("sub")).unwrap();
        // One relative to its own folder, one absolute.
        std::os::unix::fs::symlink("sub/second", &first).unwrap();
        std::os::unix::fs::symlink(&target, &second).unwrap();
        let mut file = OutputFile::create(&first).unwrap();
        file.write_all(b"new").unwrap();
        assert!(!target.exists());
        file.finish().unwrap();
        assert!(first.is_symlink() && second.is_symlink() && !target.is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"new");
        let round = folder.path().join("round");
        std::os::unix::fs::symlink(&round, &round).unwrap();
        assert!(OutputFile::create(&round).is_err() && round.is_symlink());
    }

    #[test]
    #[cfg(unix)]
    fn a_file_that_is_written_over_keeps_its_mode() {
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.gguf");
        fs::write(&path, "old").unwrap();
        for mode in [0o600, 0o664, 0o444] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let mut file = OutputFile::create(&path).unwrap();
            // A private file stays private while it is written.
            assert_eq!(file.file.metadata().unwrap().mode() & 0o777, mode);
            file.write_all(b"new").unwrap();
            file.finish().unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, mode);
        }
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_device_is_written_to_and_not_replaced() {
        use std::os::unix::fs::FileTypeExt as _;
        let null = Path::new("/dev/null");
        let mut file = OutputFile::create(null).unwrap();
        file.write_all(b"x").unwrap();
        file.finish().unwrap();
        assert!(fs::metadata(null).unwrap().file_type().is_char_device());
    }
}
