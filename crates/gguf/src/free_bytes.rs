//! [`free_bytes`]: the free room on a disk.
//!
//! Writers of large files check it first, and this crate is below all of them. Invariant: nothing is guessed
//! if the system does not report it.

use std::path::Path;

/// Returns the free bytes at the location of a file or folder, which need not exist; `None` if the system
/// does not report it.
#[cfg(unix)]
pub fn free_bytes(path: &Path) -> Option<u64> {
    let named = path.ancestors().find(|ancestor| ancestor.exists());
    // A bare name is in the current directory; its parent path is empty.
    let there = named.unwrap_or(Path::new("."));
    let disk = rustix::fs::statvfs(there).ok()?;
    // File systems without a disk, such as /proc, have no blocks at all.
    if disk.f_blocks == 0 {
        return None;
    }
    disk.f_bavail.checked_mul(disk.f_frsize)
}

/// Returns `None`, because this system does not report free bytes.
#[cfg(not(unix))]
pub fn free_bytes(_path: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_known_before_the_folder_exists() {
        let folder = tempfile::tempdir().unwrap();
        for path in [&*folder.path().join("no/such/folder"), Path::new("no-such-file")] {
            assert!(
                free_bytes(path).is_some_and(|n_bytes| n_bytes > 0),
                "{}",
                path.display()
            );
        }
        #[cfg(target_os = "linux")]
        assert_eq!(free_bytes(Path::new("/proc/x")), None);
    }
}
