//! [`remove_interrupted`]: removes the remains of interrupted downloads of a repository from the cache.
//!
//! No snapshot names these files. Invariants: a blob to which a file of a snapshot links stays; so do the
//! incomplete files of other programs, which continue them; nothing is removed while a pull of the repository
//! runs.

use std::{collections::BTreeSet, fs, path::PathBuf};

use crate::{
    HubError, HubSettings, ModelName, PullObserver,
    cache::{Cache, Hold, Waiter},
    incomplete::INCOMPLETE,
    on_disk::entries,
    stored::remove,
};

/// Removes this program's incomplete files of a repository, and the complete ones that no snapshot links because other files of their
/// model are missing. The type and the revision in `name` do not matter: such files do not tell theirs. Returns whether there were any.
///
/// # Errors
/// An error if a file cannot be removed, and [`HubError::Cancelled`] if the observer ends the wait for a running pull of the repository.
pub fn remove_interrupted(
    name: &ModelName,
    settings: &HubSettings,
    observer: &dyn PullObserver,
) -> Result<bool, HubError> {
    let cache = Cache::of(&settings.cache, name);
    if !cache.folder().is_dir() && !cache.locks().is_dir() {
        return Ok(false);
    }
    let repository = name.repository();
    let waiter = Waiter {
        observer,
        file: Some(&repository),
    };
    let _alone = cache.lock_repository(Hold::Alone, waiter)?;
    let left: BTreeSet<PathBuf> = unlinked(&cache).into_iter().collect();
    if left.is_empty() {
        return Ok(false);
    }
    // Other programs lock only single blobs. Each etag once: a file may exist both complete and in part.
    let etags: BTreeSet<&str> = left.iter().filter_map(|path| Cache::etag_of(path)).collect();
    let _locked = (etags.into_iter())
        .map(|etag| cache.lock(etag, waiter))
        .collect::<Result<Vec<_>, _>>()?;
    // A download that ended during the wait has linked its files.
    let mut still = unlinked(&cache).into_iter().filter(|path| left.contains(path));
    still.try_for_each(|path| remove(&path))?;
    if cache.commits().is_empty() && entries(&cache.blobs()).next().is_none() {
        let folder = cache.folder();
        fs::remove_dir_all(&folder).map_err(HubError::file("remove", &folder))?;
    }
    Ok(true)
}

/// Lists the blobs to which no file of a snapshot links, and this program's parts of blobs.
fn unlinked(cache: &Cache) -> Vec<PathBuf> {
    let linked: BTreeSet<PathBuf> = (cache.commits().iter())
        .flat_map(|commit| cache.entries(commit))
        .filter_map(|entry| cache.blob_of(&entry.pointer))
        .collect();
    let is_foreign_part =
        |path: &PathBuf| path.to_string_lossy().ends_with(INCOMPLETE) && !Cache::is_own_incomplete(path);
    (entries(&cache.blobs()).map(|entry| entry.path()))
        .filter(|path| !linked.contains(path) && !is_foreign_part(path))
        .collect()
}
