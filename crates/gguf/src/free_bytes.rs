//! [`free_bytes`]: the room on a disk.
//!
//! Separate because whoever writes large files asks before the work, and this crate lies below all of them. Invariant: what the system
//! does not say is not guessed.

use std::path::Path;

/// Bytes that are free where a file or a folder lies or will lie; `None` where the system does not say.
#[cfg(unix)]
pub fn free_bytes(path: &Path) -> Option<u64> {
    let named = path.ancestors().find(|ancestor| ancestor.exists());
    // A name alone lies in the folder that the process works in, whose path is empty.
    let there = named.unwrap_or(Path::new("."));
    let disk = rustix::fs::statvfs(there).ok()?;
    // What is made of no disk, such as /proc, has no blocks at all.
    if disk.f_blocks == 0 {
        return None;
    }
    disk.f_bavail.checked_mul(disk.f_frsize)
}

/// Bytes that are free where a file or a folder lies or will lie; not known on this system.
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
