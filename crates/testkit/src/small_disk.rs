//! [`SmallDisk`]: a disk in memory, for tests with a full disk. Several crates use it. Invariant: it is
//! removed with its owner.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

/// A disk of a few bytes.
#[derive(Debug)]
pub struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// Mounts a disk of `n_bytes`; `None`, with a printed line, if that is not allowed.
    ///
    /// # Panics
    /// If there is no folder for it.
    pub fn mount(n_bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={n_bytes}"), "tmpfs"])
            .arg(folder.path())
            .output();
        let reason = match mounted {
            Ok(output) if output.status.success() => return Some(Self { folder }),
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        eprintln!("full disks: skipped, no disk can be mounted: {reason}");
        None
    }

    /// Returns its mount point.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Fills it with a file; remove the file to free the space.
    ///
    /// # Panics
    /// If the file cannot be created.
    pub fn fill(&self) -> PathBuf {
        let filler = self.path().join("filler");
        let mut file = File::create(&filler).expect("a file");
        // Single bytes at the end, so that not even a part of a page is free.
        for n_bytes in [1 << 16, 1 << 12, 1] {
            while file.write_all(&vec![1; n_bytes]).is_ok() {}
        }
        filler
    }

    /// Lists the names of its files, in order.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path()).expect("it is mounted");
        let mut names: Vec<String> = entries
            .map(|entry| {
                entry
                    .expect("it can be read")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        names.sort();
        names
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.folder.path()).status();
        assert!(
            unmounted.is_ok_and(|status| status.success()) || std::thread::panicking(),
            "the disk stays mounted"
        );
    }
}
