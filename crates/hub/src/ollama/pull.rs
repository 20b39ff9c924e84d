//! [`plan`] and [`OllamaPlan::fetch`]: the size of a model of Ollama's registry, and its download.
//!
//! Unlike on the Hub, a manifest states everything: layers, sizes and hashes. The transfer of a file is the
//! same.

use std::{
    fs::{self, File},
    path::PathBuf,
};

use super::{
    OllamaName,
    interrupted::{forget_pull, lock_manifests, lock_model, note_pull},
    manifest::{Layer, Manifest},
    store::Store,
};
use crate::{
    HubError, HubSettings, PullObserver, PulledModel,
    api::{Hub, RemoteFile},
    blob,
    cache::{Hold, Waiter, check_room, lock_file},
    digest::remove_if_damaged,
    http::bad_answer,
    incomplete::{bytes_left_at, room_needed},
    observer::Tally,
};

/// A plan of a pull.
#[derive(Debug)]
pub struct OllamaPlan {
    name: OllamaName,
    manifest: Manifest,
    /// The received bytes of the manifest.
    bytes: Vec<u8>,
    /// Total bytes of all layers.
    pub total_bytes: u64,
    /// Bytes to download.
    pub missing_bytes: u64,
}

/// Returns the settings with the registry as the endpoint and without the Hub's token.
fn of_registry(settings: &HubSettings) -> HubSettings {
    HubSettings {
        endpoint: settings.ollama_registry.clone(),
        token: None,
        ..settings.clone()
    }
}

/// Requests a model's manifest from the registry, and plans the pull.
///
/// # Errors
/// An error if the model does not exist, the registry cannot be reached, or this program cannot use the
/// model.
pub fn plan(
    name: &OllamaName,
    settings: &HubSettings,
    observer: &dyn PullObserver,
) -> Result<OllamaPlan, HubError> {
    if settings.is_offline {
        return Err(HubError::Offline {
            name: name.to_string(),
        });
    }
    let registry = of_registry(settings);
    let is_stored = Store::of(settings).find(name).is_some();
    let hub = Hub::new(&registry, observer)?.waiting_for_network(!is_stored);
    let repository = name.repository();
    let url = format!(
        "{}/v2/{}/manifests/{}",
        registry.endpoint,
        repository.repository(),
        name.tag()
    );
    let bytes = hub.get(&url, repository).map_err(|error| match error {
        HubError::NotFound { host, near, .. } => HubError::NotFound {
            name: name.to_string(),
            host,
            near,
        },
        error => error,
    })?;
    let manifest = Manifest::of(&bytes).map_err(|reason| bad_answer(&url, reason))?;
    let store = Store::of(settings);
    let left = |layer: &Layer| {
        (layer.n_bytes).saturating_sub(bytes_left_at(&store.incomplete(&layer.digest), layer.n_bytes))
    };
    let missing = manifest
        .layers
        .iter()
        .filter(|layer| !store.has(&layer.digest, layer.n_bytes));
    Ok(OllamaPlan {
        name: name.clone(),
        total_bytes: manifest
            .layers
            .iter()
            .map(|layer| layer.n_bytes)
            .fold(0, u64::saturating_add),
        missing_bytes: missing.map(left).fold(0, u64::saturating_add),
        manifest,
        bytes,
    })
}

/// Returns the folder of locks. They are next to the Hub's: Ollama's folder contains only its own files.
pub(super) fn locks_of(settings: &HubSettings) -> PathBuf {
    settings.cache.join(".locks").join("ollama")
}

/// Locks a layer.
pub(super) fn lock_layer(
    settings: &HubSettings,
    digest: &str,
    waiter: Waiter<'_>,
) -> Result<Option<File>, HubError> {
    let locks = locks_of(settings);
    fs::create_dir_all(&locks).map_err(HubError::file("write", &locks))?;
    lock_file(&locks.join(format!("{digest}.lock")), Hold::Alone, waiter)
}

impl OllamaPlan {
    /// Returns the model's name.
    pub fn name(&self) -> &OllamaName {
        &self.name
    }

    /// Returns the number of its files.
    pub fn n_files(&self) -> usize {
        self.manifest.layers.len()
    }

    /// Hashes the stored layers, and removes those that do not match their names; these are then missing.
    ///
    /// # Errors
    /// An error if a layer cannot be read or removed.
    pub fn remove_damaged(
        &mut self,
        settings: &HubSettings,
        observer: &dyn PullObserver,
    ) -> Result<(), HubError> {
        let store = Store::of(settings);
        for layer in &self.manifest.layers {
            if !store.has(&layer.digest, layer.n_bytes) {
                continue;
            }
            let name = self.name_of(layer);
            let waiter = Waiter {
                observer,
                file: Some(&name),
            };
            let _locked = lock_layer(settings, &layer.digest, waiter)?;
            if remove_if_damaged(&store.blob(&layer.digest), &layer.digest, &name, observer)? {
                self.missing_bytes = self.missing_bytes.saturating_add(layer.n_bytes);
            }
        }
        Ok(())
    }

    /// Returns a layer's name for messages.
    fn name_of(&self, layer: &Layer) -> String {
        format!("{} of {}", &layer.digest[..12], self.name)
    }

    /// Downloads the missing layers, verifies them, and writes the manifest.
    ///
    /// # Errors
    /// [`HubError`]. Received bytes stay, and the next call continues from there.
    pub fn fetch(self, settings: &HubSettings, observer: &dyn PullObserver) -> Result<PulledModel, HubError> {
        let store = Store::of(settings);
        let waiter = Waiter { observer, file: None };
        let _pulling = lock_model(settings, &self.name, Hold::Shared, waiter)?;
        store.prepare()?;
        self.check_room(&store, settings)?;
        let unchanged = lock_manifests(settings, waiter)?;
        note_pull(settings, &self.name, &self.bytes)?;
        drop(unchanged);
        let registry = of_registry(settings);
        let hub = Hub::new(&registry, observer)?;
        let tally = Tally::new(self.total_bytes, observer);
        for layer in &self.manifest.layers {
            self.fetch_layer(&hub, layer, &store, &registry, &tally)
                .map_err(|error| match error {
                    // Another program may have filled the disk meanwhile.
                    error if error.is_of_full_disk() => {
                        self.check_room(&store, settings).err().unwrap_or(error)
                    }
                    error => error,
                })?;
        }
        let _unchanged = lock_manifests(settings, waiter)?;
        store.write_manifest(&self.name, &self.bytes)?;
        forget_pull(settings, &self.name)?;
        store.find(&self.name).ok_or_else(|| HubError::Vanished {
            file: self.name.to_string(),
        })
    }

    /// Checks that the disk has room for the missing layers.
    fn check_room(&self, store: &Store<'_>, settings: &HubSettings) -> Result<(), HubError> {
        let absent = (self.manifest.layers.iter()).filter(|layer| !store.has(&layer.digest, layer.n_bytes));
        let needed_bytes = absent
            .map(|layer| room_needed(&store.incomplete(&layer.digest), layer.n_bytes))
            .fold(0, u64::saturating_add);
        check_room(&settings.ollama_models, needed_bytes)
    }

    fn fetch_layer(
        &self,
        hub: &Hub<'_>,
        layer: &Layer,
        store: &Store<'_>,
        registry: &HubSettings,
        tally: &Tally<'_>,
    ) -> Result<(), HubError> {
        let is_there = || store.has(&layer.digest, layer.n_bytes);
        if !is_there() {
            let repository = self.name.repository();
            let file = RemoteFile {
                path: self.name_of(layer),
                url: format!(
                    "{}/v2/{}/blobs/sha256:{}",
                    registry.endpoint,
                    repository.repository(),
                    layer.digest
                ),
                etag: layer.digest.clone(),
                n_bytes: layer.n_bytes,
            };
            let (incomplete, target) = (store.incomplete(&layer.digest), store.blob(&layer.digest));
            let waiter = Waiter {
                observer: tally.observer,
                file: Some(&file.path),
            };
            let _locked = lock_layer(registry, &layer.digest, waiter)?;
            // Another program may have held the lock and downloaded it.
            if !is_there() {
                return blob::download(hub, repository, &file, registry, tally, &incomplete, &target);
            }
        }
        tally.add(layer.n_bytes);
        Ok(())
    }
}
