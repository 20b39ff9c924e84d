//! [`remove_interrupted`]: removes what broken-off downloads of a repository left in the cache.
//!
//! Separate from the removal of models because no snapshot names these files. Invariant: a blob to which a file of a snapshot links
//! stays.

use std::{collections::BTreeSet, path::PathBuf};

use crate::{
    HubError, HubSettings, ModelName, PullObserver, Removal,
    cache::{Cache, Waiter},
    on_disk::entries,
    stored::remove,
};

/// Removes the incomplete files of a repository, and the complete ones that no snapshot links because other files of their model are
/// missing. The type and the revision in `name` do not matter: such files do not tell theirs. Returns whether there were any.
///
/// # Errors
/// An error if a file cannot be removed, and [`HubError::Cancelled`] if the observer ends the wait for a download of such a file.
pub fn remove_interrupted(
    name: &ModelName,
    settings: &HubSettings,
    observer: &dyn PullObserver,
) -> Result<bool, HubError> {
    let cache = Cache::of(&settings.cache, name);
    let left = unlinked(&cache);
    if left.is_empty() {
        return Ok(false);
    }
    if cache.commits().is_empty() {
        let whole: ModelName = name.repository().parse()?;
        Removal::of(&whole, settings)?.apply(observer)?;
        return Ok(true);
    }
    cache.prepare()?;
    // Each once: a file may exist both complete and in part.
    let etags: BTreeSet<&str> = (left.iter())
        .filter_map(|path| Cache::etag_of_incomplete(path).or_else(|| path.file_name()?.to_str()))
        .collect();
    let waiter = Waiter { observer, file: None };
    let _locked = (etags.into_iter())
        .map(|etag| cache.lock(etag, waiter))
        .collect::<Result<Vec<_>, _>>()?;
    // A download that ended during the wait has linked its files.
    let left: BTreeSet<PathBuf> = left.into_iter().collect();
    let mut still = unlinked(&cache).into_iter().filter(|path| left.contains(path));
    still.try_for_each(|path| remove(&path))?;
    Ok(true)
}

/// Lists the blobs and parts of blobs to which no file of a snapshot links.
fn unlinked(cache: &Cache) -> Vec<PathBuf> {
    let linked: BTreeSet<PathBuf> = (cache.commits().iter())
        .flat_map(|commit| cache.entries(commit))
        .filter_map(|entry| cache.blob_of(&entry.pointer))
        .collect();
    (entries(&cache.blobs()).map(|entry| entry.path()))
        .filter(|path| !linked.contains(path))
        .collect()
}
