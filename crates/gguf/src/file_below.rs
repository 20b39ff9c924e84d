//! [`RegularFile::open_below`]: opens a file of a folder that others may change.
//!
//! Such a file is opened one path component at a time. Invariant: the opened file is below the folder at the
//! moment of opening, even if links are moved meanwhile.

use std::{fs, io, path::Path};

use crate::RegularFile;

impl RegularFile {
    /// Opens a file of the folder `home` by the path `below` it. Links are followed if they stay in the
    /// folder.
    ///
    /// # Errors
    /// As [`Self::open`], and [`io::ErrorKind::InvalidInput`] for a file outside.
    pub fn open_below(home: &Path, below: &Path) -> io::Result<Self> {
        let home = home.canonicalize()?;
        let path = home.join(below).canonicalize()?;
        let below = path.strip_prefix(&home).map_err(|_| outside())?;
        open_without_links(&home, below)
    }
}

fn outside() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is outside of the folder")
}

/// Opens a file by a path without links. A component that has become a link since it was checked is refused.
#[cfg(unix)]
fn open_without_links(home: &Path, below: &Path) -> io::Result<RegularFile> {
    use std::path::Component;

    use rustix::fs::{CWD, Mode, OFlags, openat};

    let open = |folder: &dyn std::os::fd::AsFd, path: &Path, flags: OFlags| {
        openat(folder.as_fd(), path, flags | OFlags::CLOEXEC, Mode::empty())
    };
    let folder_flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let mut folder = open(&CWD, home, folder_flags)?;
    let mut parts = below.components().peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(name) = part else {
            return Err(outside());
        };
        if parts.peek().is_some() {
            folder = open(&folder, name.as_ref(), folder_flags)?;
            continue;
        }
        // Opening must not block if a pipe has taken its place.
        let file = open(
            &folder,
            name.as_ref(),
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK,
        )?;
        return RegularFile::of(fs::File::from(file), &home.join(below));
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "it is a folder, expected a file",
    ))
}

/// Opens a file by a path without links. The system cannot open a path by components, so it is checked again
/// after opening.
#[cfg(not(unix))]
fn open_without_links(home: &Path, below: &Path) -> io::Result<RegularFile> {
    let path = home.join(below);
    let file = RegularFile::open(&path)?;
    if path.canonicalize()? == path && fs::metadata(&path)?.len() == file.n_bytes() {
        Ok(file)
    } else {
        Err(outside())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_outside_is_not_opened() {
        let outer = tempfile::tempdir().unwrap();
        let home = outer.path().join("home");
        fs::create_dir_all(home.join("deep")).unwrap();
        fs::write(home.join("deep/a"), "abc").unwrap();
        fs::write(outer.path().join("secret"), "no").unwrap();
        let n_bytes = |below: &str| {
            let file = RegularFile::open_below(&home, Path::new(below));
            file.map(|file| file.n_bytes()).ok()
        };
        assert_eq!(n_bytes("deep/a"), Some(3));
        for below in ["../secret", "deep", "", "none", "deep/none", "/etc/passwd"] {
            assert_eq!(n_bytes(below), None, "{below}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_part_that_became_a_link_is_refused() {
        use std::{os::unix::fs::symlink, process::Command};
        let outer = tempfile::tempdir().unwrap();
        let home = outer.path().canonicalize().unwrap().join("home");
        fs::create_dir_all(home.join("deep")).unwrap();
        fs::create_dir(outer.path().join("other")).unwrap();
        fs::write(home.join("deep/a"), "abc").unwrap();
        fs::write(outer.path().join("other/a"), "no").unwrap();
        symlink(home.join("deep/a"), home.join("link")).unwrap();
        symlink(outer.path().join("other/a"), home.join("up")).unwrap();
        symlink(outer.path().join("other"), home.join("turned")).unwrap();
        assert!(
            Command::new("mkfifo")
                .arg(home.join("pipe"))
                .status()
                .unwrap()
                .success()
        );
        assert!(RegularFile::open_below(&home, Path::new("link")).is_ok());
        assert!(RegularFile::open_below(&home, Path::new("up")).is_err());
        // As if each had been a folder or a file when it was checked.
        let opened = |below: &str| open_without_links(&home, Path::new(below)).is_ok();
        assert!(opened("deep/a"));
        for below in ["link", "up", "turned/a", "pipe", "deep", "."] {
            assert!(!opened(below), "{below}");
        }
    }
}
