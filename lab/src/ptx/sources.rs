//! The sources of the archive, and their changes since it was built.
//!
//! The archive is large and git keeps every version of it, so it is rebuilt only in the commit that ends a piece of work; until
//! then the lock lists the changed sources as pending. Invariant: an accepted source is the built one or the listed one.

use std::{fs, path::Path};

use anyhow::{Context, ensure};

use super::lock::{Hashes, Lock, sha256};

/// Marks a file that no longer exists, in place of its hash.
const REMOVED: &str = "-";

/// Returns the hashes of all sources in a folder and below it.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn hashes(folder: &Path) -> anyhow::Result<Hashes> {
    let mut found = Hashes::new();
    add(folder, "", &mut found)?;
    Ok(found)
}

fn add(folder: &Path, prefix: &str, found: &mut Hashes) -> anyhow::Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            add(&path, &format!("{prefix}{name}/"), found)?;
        } else if path.extension().is_some_and(|end| end == "cu" || end == "cuh") {
            let text =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            found.insert(format!("{prefix}{name}"), sha256(&text));
        }
    }
    Ok(())
}

/// Returns the sources that differ from the built ones, with their present hashes.
pub(super) fn differing(built: &Hashes, now: &Hashes) -> Hashes {
    let changed = now.iter().filter(|(file, hash)| built.get(*file) != Some(hash));
    let removed = built.keys().filter(|file| !now.contains_key(*file));
    (changed.map(|(file, hash)| (file.clone(), hash.clone())))
        .chain(removed.map(|file| (file.clone(), REMOVED.to_owned())))
        .collect()
}

/// Checks that the lock has the right state of each source: built or pending.
///
/// # Errors
/// The sources with another state, and what to do about them.
pub(super) fn check(lock: &Lock, now: &Hashes) -> anyhow::Result<()> {
    let differing = differing(&lock.sources, now);
    let unsaid = (differing.iter()).filter(|(file, hash)| lock.pending.get(*file) != Some(hash));
    let settled = lock.pending.keys().filter(|file| !differing.contains_key(*file));
    let files: Vec<&str> = (unsaid.map(|(file, _)| file).chain(settled))
        .map(String::as_str)
        .collect();
    ensure!(
        files.is_empty(),
        "the lock does not know these sources as they are: {}; `cargo lab ptx` builds them, `cargo lab ptx --pending` notes that \
         this is to be done",
        files.join(", ")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes_of(files: &[(&str, &str)]) -> Hashes {
        files
            .iter()
            .map(|&(file, hash)| (file.to_owned(), hash.to_owned()))
            .collect()
    }

    #[test]
    fn a_source_is_the_built_one_or_pending() {
        let built = hashes_of(&[("a.cu", "1"), ("b.cu", "2"), ("c.cuh", "3")]);
        let now = hashes_of(&[("a.cu", "1"), ("b.cu", "4"), ("d.cu", "5")]);
        let pending = differing(&built, &now);
        assert_eq!(
            pending,
            hashes_of(&[("b.cu", "4"), ("c.cuh", REMOVED), ("d.cu", "5")])
        );
        let lock = |pending: &Hashes| Lock {
            sources: built.clone(),
            pending: pending.clone(),
            modules: Vec::new(),
        };
        let refused = |pending: &Hashes, now: &Hashes| {
            let error = check(&lock(pending), now).unwrap_err().to_string();
            error
                .split(": ")
                .nth(1)
                .unwrap()
                .split(';')
                .next()
                .unwrap()
                .to_owned()
        };
        check(&lock(&pending), &now).unwrap();
        check(&lock(&Hashes::new()), &built).unwrap();
        assert_eq!(refused(&Hashes::new(), &now), "b.cu, c.cuh, d.cu");
        // Changed once more, and back to the built version.
        let later = hashes_of(&[("a.cu", "1"), ("b.cu", "6"), ("d.cu", "5")]);
        assert_eq!(refused(&pending, &later), "b.cu");
        assert_eq!(refused(&pending, &built), "b.cu, c.cuh, d.cu");
    }
}
