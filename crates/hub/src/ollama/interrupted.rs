//! [`remove_interrupted`]: removes the layers that a broken-off download of a model left.
//!
//! Layers are named by their hashes alone, so a download notes its manifest, and forgets it at its end. The notes lie next to the locks:
//! Ollama's folder contains only its own files. Invariant: a layer that a stored model or another download has stays.
//!
//! ```text
//! CACHE/.locks/ollama/pulls/NAMESPACE/NAME/TAG    the manifest of a model that is not complete
//! ```

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use super::{
    OllamaName,
    pull::{lock_layer, locks_of},
    store::{Store, files_below},
};
use crate::{HubError, HubSettings, PullObserver, cache::Waiter, replace::replace, stored::remove};

fn notes_of(settings: &HubSettings) -> PathBuf {
    locks_of(settings).join("pulls")
}

fn note_of(settings: &HubSettings, name: &OllamaName) -> PathBuf {
    let repository = name.repository();
    (notes_of(settings).join(repository.owner()))
        .join(repository.short_name())
        .join(name.tag())
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
/// download of such a layer.
pub fn remove_interrupted(
    name: &OllamaName,
    settings: &HubSettings,
    observer: &dyn PullObserver,
) -> Result<bool, HubError> {
    let note = note_of(settings, name);
    if !note.is_file() {
        return Ok(false);
    }
    let store = Store::of(settings);
    let own = Store::digests_of(&note)?;
    let waiter = Waiter { observer, file: None };
    // Before the others are read: a download that ends during the wait has written its manifest.
    let _locked = (own.iter())
        .map(|digest| lock_layer(settings, digest, waiter))
        .collect::<Result<Vec<_>, _>>()?;
    let mut others = Vec::new();
    for folder in [store.manifests(), notes_of(settings)] {
        if folder.is_dir() {
            files_below(&folder, &mut others)?;
        }
    }
    let mut kept = BTreeSet::new();
    for path in others.iter().filter(|path| **path != note) {
        kept.append(&mut Store::digests_of(path)?);
    }
    for digest in own.difference(&kept) {
        remove(&store.incomplete(digest))?;
        remove(&store.blob(digest))?;
    }
    remove(&note)?;
    remove_empty(&note);
    Ok(true)
}

/// Removes the folders of a note; those with others stay.
fn remove_empty(note: &Path) {
    for folder in note.ancestors().skip(1).take(2) {
        let _still_used = fs::remove_dir(folder);
    }
}
