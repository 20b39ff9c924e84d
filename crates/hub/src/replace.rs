//! [`replace`]: writes a small file so that readers see its old contents or its new ones.
//!
//! Manifests, references and notes are read by other programs while they are written. Invariant: a file with its final name is complete.

use std::{fs, path::Path};

use crate::HubError;

/// Writes `bytes` to a file called `aside` in the folder of `path`, then renames it to `path`. Creates the folder if it is missing.
///
/// # Errors
/// [`HubError::File`] if a step fails.
///
/// # Panics
/// If `path` has no folder.
pub(crate) fn replace(path: &Path, aside: &str, bytes: &[u8]) -> Result<(), HubError> {
    let folder = path.parent().expect("the path of a file in a cache has a folder");
    let aside = folder.join(aside);
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&aside, bytes))
        .and_then(|()| fs::rename(&aside, path))
        .map_err(HubError::file("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_its_folder_created() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b/file");
        for bytes in [&b"first"[..], b"second"] {
            replace(&path, ".file.tmp", bytes).unwrap();
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        let below_a_file = replace(&path.join("c"), ".c.tmp", b"");
        assert!(
            matches!(below_a_file, Err(HubError::File { .. })),
            "{below_a_file:?}"
        );
    }
}
