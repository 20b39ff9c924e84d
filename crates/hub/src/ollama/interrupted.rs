//! [`remove_interrupted`]: removes the layers of a model's interrupted download.
//!
//! Layers are named by their hashes alone, so a download notes its manifest, and forgets it at its end. The notes lie next to the locks:
//! Ollama's folder contains only its own files. Invariants: a layer that a stored model or another download has stays; nothing of a model
//! is removed while a pull of it runs. Locks are taken in the order of this table, and nothing waits for a layer while it holds the manifests.
//!
//! ```text
//! CACHE/.locks/ollama/pulls/NAMESPACE/NAME/TAG          the manifest of a model that is not complete
//! CACHE/.locks/ollama/pulls/NAMESPACE/NAME/.TAG.lock    shared by running pulls of the model, exclusive to a removal
//! CACHE/.locks/ollama/DIGEST.lock                       locked while the layer is downloaded, checked or removed
//! CACHE/.locks/ollama/manifests.lock                    locked while the manifests in use are written, or read for a removal
//! ```

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
};

use super::{
    OllamaName,
    pull::{lock_layer, locks_of},
    store::{Store, files_below},
};
use crate::{
    HubError, HubSettings, PullObserver,
    cache::{Hold, Waiter, lock_file},
    replace::replace,
    stored::remove,
};

fn notes_of(settings: &HubSettings) -> PathBuf {
    locks_of(settings).join("pulls")
}

fn note_of(settings: &HubSettings, name: &OllamaName) -> PathBuf {
    let repository = name.repository();
    (notes_of(settings).join(repository.owner()))
        .join(repository.short_name())
        .join(name.tag())
}

/// Locks a model for a pull ([`Hold::Shared`]) or for a removal ([`Hold::Alone`]).
pub(super) fn lock_model(
    settings: &HubSettings,
    name: &OllamaName,
    hold: Hold,
    waiter: Waiter<'_>,
) -> Result<Option<File>, HubError> {
    let note = note_of(settings, name);
    let folder = note.parent().expect("a note lies in a folder");
    fs::create_dir_all(folder).map_err(HubError::file("write", folder))?;
    lock_file(&folder.join(format!(".{}.lock", name.tag())), hold, waiter)
}

/// Locks the manifests and notes, for a moment. A removal reads them, then removes layers that none of them names; a pull that writes its own
/// meanwhile could find such a layer and keep it.
pub(super) fn lock_manifests(settings: &HubSettings, waiter: Waiter<'_>) -> Result<Option<File>, HubError> {
    let locks = locks_of(settings);
    fs::create_dir_all(&locks).map_err(HubError::file("write", &locks))?;
    lock_file(&locks.join("manifests.lock"), Hold::Alone, waiter)
}

/// Holds layers for a removal, so that nothing writes or reads them meanwhile.
pub(super) struct Unused {
    /// Digests of the layers.
    pub(super) digests: BTreeSet<String>,
    _layers: Vec<Option<File>>,
    _manifests: Option<File>,
}

/// Locks the layers of a manifest or a note that no other model or download has, then the manifests and notes: the layers stay unused. A
/// layer that stays is not locked: the download of another model may hold it for long, and the removal need not wait for that.
///
/// # Errors
/// An error if a manifest cannot be read, and [`HubError::Cancelled`] if the observer ends the wait.
pub(super) fn lock_unused(
    settings: &HubSettings,
    manifest: &Path,
    waiter: Waiter<'_>,
) -> Result<Unused, HubError> {
    let mut locked = {
        let _unchanged = lock_manifests(settings, waiter)?;
        unused_layers(settings, manifest)?
    };
    loop {
        let layers = (locked.iter())
            .map(|digest| lock_layer(settings, digest, waiter))
            .collect::<Result<_, _>>()?;
        let manifests = lock_manifests(settings, waiter)?;
        let digests = unused_layers(settings, manifest)?;
        if digests.is_subset(&locked) {
            return Ok(Unused {
                digests,
                _layers: layers,
                _manifests: manifests,
            });
        }
        // Another removal has just ended, which kept layers because they were in this manifest too.
        locked = digests;
    }
}

/// Returns the digests of the layers of a manifest or a note that no other model or download has. The manifests must be locked.
///
/// # Errors
/// An error if a manifest cannot be read.
pub(super) fn unused_layers(settings: &HubSettings, manifest: &Path) -> Result<BTreeSet<String>, HubError> {
    let mut others = Vec::new();
    for folder in [Store::of(settings).manifests(), notes_of(settings)] {
        if folder.is_dir() {
            files_below(&folder, &mut others)?;
        }
    }
    let mut unused = Store::digests_of(manifest)?;
    for path in others.iter().filter(|path| *path != manifest) {
        for digest in Store::digests_of(path)? {
            unused.remove(&digest);
        }
    }
    Ok(unused)
}

/// Notes that a download has begun, with the bytes of its manifest.
pub(super) fn note_pull(settings: &HubSettings, name: &OllamaName, manifest: &[u8]) -> Result<(), HubError> {
    // A tag begins with another letter.
    let aside = format!(".{}", name.tag());
    replace(&note_of(settings, name), &aside, manifest)
}

/// Forgets a download that is complete.
pub(super) fn forget_pull(settings: &HubSettings, name: &OllamaName) -> Result<(), HubError> {
    remove(&note_of(settings, name))
}

/// Removes the layers of a model's interrupted download, complete or not. Returns whether there was such a download.
///
/// # Errors
/// An error if a manifest cannot be read or a layer cannot be removed, and [`HubError::Cancelled`] if the observer ends the wait for a
/// running pull of the model, or of such a layer.
pub fn remove_interrupted(
    name: &OllamaName,
    settings: &HubSettings,
    observer: &dyn PullObserver,
) -> Result<bool, HubError> {
    let note = note_of(settings, name);
    if !note.parent().is_some_and(Path::is_dir) {
        return Ok(false);
    }
    let shown = name.to_string();
    let waiter = Waiter {
        observer,
        file: Some(&shown),
    };
    let _alone = lock_model(settings, name, Hold::Alone, waiter)?;
    if !note.is_file() {
        return Ok(false);
    }
    let store = Store::of(settings);
    let unused = lock_unused(settings, &note, waiter)?;
    for digest in &unused.digests {
        remove(&store.incomplete(digest))?;
        remove(&store.blob(digest))?;
    }
    // The locks stay: another program may be waiting for one, and would then hold another file than the next.
    remove(&note)?;
    Ok(true)
}
