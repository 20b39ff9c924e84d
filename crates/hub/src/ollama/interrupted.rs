//! [`remove_interrupted`]: removes the layers that a broken-off download of a model left.
//!
//! Layers are named by their hashes alone, so a download notes its manifest, and forgets it at its end. The notes lie next to the locks:
//! Ollama's folder contains only its own files. Invariants: a layer that a stored model or another download has stays; nothing of a model
//! is removed while a pull of it runs.
//!
//! ```text
//! CACHE/.locks/ollama/pulls/NAMESPACE/NAME/TAG          the manifest of a model that is not complete
//! CACHE/.locks/ollama/pulls/NAMESPACE/NAME/.TAG.lock    shared by running pulls of the model, exclusive to a removal
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

/// Locks the manifests and notes. A removal reads them, then removes layers that none of them names; a pull that writes its own
/// meanwhile could find such a layer and keep it.
pub(super) fn lock_manifests(settings: &HubSettings, waiter: Waiter<'_>) -> Result<Option<File>, HubError> {
    let locks = locks_of(settings);
    fs::create_dir_all(&locks).map_err(HubError::file("write", &locks))?;
    lock_file(&locks.join("manifests.lock"), Hold::Alone, waiter)
}

/// Returns the digests of the layers that stored models and downloads have, without those in the file `own`.
///
/// # Errors
/// An error if a manifest cannot be read.
pub(super) fn digests_in_use(settings: &HubSettings, own: &Path) -> Result<BTreeSet<String>, HubError> {
    let mut others = Vec::new();
    for folder in [Store::of(settings).manifests(), notes_of(settings)] {
        if folder.is_dir() {
            files_below(&folder, &mut others)?;
        }
    }
    let mut used = BTreeSet::new();
    for path in others.iter().filter(|path| *path != own) {
        used.append(&mut Store::digests_of(path)?);
    }
    Ok(used)
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

/// Removes the layers that a broken-off download of a model left, complete or not. Returns whether there was such a download.
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
    let own = Store::digests_of(&note)?;
    // Another model's download may have one of these layers.
    let _locked = (own.iter())
        .map(|digest| lock_layer(settings, digest, waiter))
        .collect::<Result<Vec<_>, _>>()?;
    let _unchanged = lock_manifests(settings, waiter)?;
    let kept = digests_in_use(settings, &note)?;
    for digest in own.difference(&kept) {
        remove(&store.incomplete(digest))?;
        remove(&store.blob(digest))?;
    }
    // The locks stay: another program may be waiting for one, and would then hold another file than the next.
    remove(&note)?;
    Ok(true)
}
