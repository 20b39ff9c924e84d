//! [`Store`]: the folder in which Ollama keeps models.
//!
//! Ollama reads and writes it too. Invariants: a manifest is written only when all its layers exist; a layer
//! is removed only when no manifest names it any more.
//!
//! ```text
//! manifests/registry.ollama.ai/NAMESPACE/NAME/TAG    the layers of a model, as JSON
//! blobs/sha256-DIGEST                                a layer's bytes
//! ```

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::{
    OllamaName,
    interrupted::{lock_manifests, lock_model, lock_unused, unused_layers},
    manifest::Manifest,
};
use crate::{
    HubError, HubSettings, PullObserver, PulledModel,
    cache::{Hold, Waiter},
    replace::replace,
    stored::remove,
};

/// The folder of manifests for the default registry.
const REGISTRY: &str = "registry.ollama.ai";
/// The type of a model whose configuration does not state it.
const LABEL: &str = "gguf";
/// Largest configuration that is read, in bytes. Real ones have some hundred bytes.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// Maximum length of a type's name, in bytes.
const MAX_TYPE_BYTES: usize = 16;

pub(super) struct Store<'s> {
    root: &'s Path,
}

impl<'s> Store<'s> {
    pub(super) fn of(settings: &'s HubSettings) -> Self {
        Self {
            root: &settings.ollama_models,
        }
    }

    pub(super) fn blob(&self, digest: &str) -> PathBuf {
        self.root.join("blobs").join(format!("sha256-{digest}"))
    }

    pub(super) fn incomplete(&self, digest: &str) -> PathBuf {
        (self.root.join("blobs")).join(format!("sha256-{digest}.tokenmill.incomplete"))
    }

    pub(super) fn has(&self, digest: &str, n_bytes: u64) -> bool {
        fs::metadata(self.blob(digest)).is_ok_and(|found| found.is_file() && found.len() == n_bytes)
    }

    /// Creates the folder of the layers.
    pub(super) fn prepare(&self) -> Result<(), HubError> {
        let folder = self.root.join("blobs");
        fs::create_dir_all(&folder).map_err(HubError::file("write", folder))
    }

    /// Returns the folder of the manifests.
    pub(super) fn manifests(&self) -> PathBuf {
        self.root.join("manifests")
    }

    fn manifest_path(&self, name: &OllamaName) -> PathBuf {
        let repository = name.repository();
        (self.manifests().join(REGISTRY))
            .join(repository.owner())
            .join(repository.short_name())
            .join(name.tag())
    }

    /// Writes a manifest; all its layers must exist.
    pub(super) fn write_manifest(&self, name: &OllamaName, bytes: &[u8]) -> Result<(), HubError> {
        // Ollama does not take names that begin with a dot for tags.
        let aside = format!(".{}.tokenmill", name.tag());
        replace(&self.manifest_path(name), &aside, bytes)
    }

    /// Returns the model with this name, if it is complete.
    pub(super) fn find(&self, name: &OllamaName) -> Option<PulledModel> {
        let manifest = Manifest::of(&fs::read(self.manifest_path(name)).ok()?).ok()?;
        let weights = &manifest.weights;
        self.has(&weights.digest, weights.n_bytes).then(|| PulledModel {
            path: self.blob(&weights.digest),
            label: self.type_of(&manifest).unwrap_or_else(|| LABEL.to_owned()),
            commit: weights.digest.clone(),
            n_bytes: weights.n_bytes,
        })
    }

    /// Returns the type of the weights from the model's configuration, for example `Q4_K_M`.
    fn type_of(&self, manifest: &Manifest) -> Option<String> {
        let config = manifest
            .config()
            .filter(|config| config.n_bytes <= MAX_CONFIG_BYTES)?;
        let path = self.blob(&config.digest);
        let n_bytes = fs::metadata(&path).ok()?.len();
        let bytes = (n_bytes <= MAX_CONFIG_BYTES).then(|| fs::read(&path).ok())??;
        let json: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
        let name = json["file_type"].as_str()?;
        let is_type = name.len() <= MAX_TYPE_BYTES && !name.is_empty();
        let is_plain = name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        (is_type && is_plain).then(|| name.to_owned())
    }

    /// Returns all names with a manifest.
    fn names(&self) -> Vec<OllamaName> {
        let registry = self.manifests().join(REGISTRY);
        let mut names = Vec::new();
        for namespace in names_in(&registry) {
            for name in names_in(&registry.join(&namespace)) {
                let tags = names_in(&registry.join(&namespace).join(&name));
                names.extend(
                    tags.iter()
                        .filter_map(|tag| OllamaName::of_parts(&namespace, &name, tag)),
                );
            }
        }
        names
    }

    /// Returns the digests in the manifest at `path`, even if this program cannot use it.
    pub(super) fn digests_of(path: &Path) -> Result<BTreeSet<String>, HubError> {
        let bytes = fs::read(path).map_err(HubError::file("read", path))?;
        let json: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|error| HubError::file("read", path)(error.into()))?;
        let layers = json["layers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let digests = (layers.iter().chain([&json["config"]]))
            .filter_map(|layer| Some(layer["digest"].as_str()?.strip_prefix("sha256:")?.to_owned()))
            .filter(|digest| digest.bytes().all(|byte| byte.is_ascii_hexdigit()));
        Ok(digests.collect())
    }
}

/// Returns the names of a folder's entries, sorted.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    names
}

/// Lists all files below a folder, including linked ones. Unfinished files of Ollama and of this program
/// begin with a dot.
pub(super) fn files_below(folder: &Path, found: &mut Vec<PathBuf>) -> Result<(), HubError> {
    for entry in fs::read_dir(folder).map_err(HubError::file("read", folder))? {
        let entry = entry.map_err(HubError::file("read", folder))?;
        let path = entry.path();
        let is_folder = fs::metadata(&path)
            .map_err(HubError::file("read", &path))?
            .is_dir();
        if is_folder {
            files_below(&path, found)?;
        } else if !entry.file_name().to_string_lossy().starts_with('.') {
            found.push(path);
        }
    }
    Ok(())
}

/// Finds a model that Ollama or this program has downloaded, without asking a server.
///
/// # Errors
/// Currently none: an unreadable store has no models.
pub fn find_stored(name: &OllamaName, settings: &HubSettings) -> Result<Option<PulledModel>, HubError> {
    Ok(Store::of(settings).find(name))
}

/// Returns the name of the model whose weights are this file in Ollama's folder; the first if there are
/// several. Files there are named by the hash of their bytes.
pub fn name_of(path: &Path) -> Option<OllamaName> {
    let digest = path.file_name()?.to_str()?.strip_prefix("sha256-")?;
    let blobs = path.parent().filter(|folder| folder.ends_with("blobs"))?;
    let store = Store {
        root: blobs.parent()?,
    };
    let has_weights = |name: &OllamaName| {
        let bytes = fs::read(store.manifest_path(name)).ok();
        let manifest = bytes.and_then(|bytes| Manifest::of(&bytes).ok());
        manifest.is_some_and(|manifest| manifest.weights.digest == digest)
    };
    store.names().into_iter().find(has_weights)
}

/// A model in Ollama's folder.
#[derive(Clone, Debug)]
pub struct StoredOllamaModel {
    /// Its name.
    pub name: OllamaName,
    /// Its file.
    pub model: PulledModel,
    /// The time of the last read of its file, if the system reports it.
    pub last_used: Option<SystemTime>,
}

/// Returns the usable models in Ollama's folder.
pub fn stored_models(settings: &HubSettings) -> Vec<StoredOllamaModel> {
    let store = Store::of(settings);
    let names = store.names().into_iter();
    names
        .filter_map(|name| {
            let model = store.find(&name)?;
            let metadata = fs::metadata(&model.path).ok();
            let last_used =
                metadata.and_then(|metadata| metadata.accessed().or_else(|_| metadata.modified()).ok());
            Some(StoredOllamaModel {
                name,
                model,
                last_used,
            })
        })
        .collect()
}

/// The files to delete when a model is removed.
#[derive(Debug)]
pub struct OllamaRemoval {
    name: OllamaName,
    settings: HubSettings,
    manifest: PathBuf,
    /// Bytes freed by the removal. Layers that other models use stay.
    pub freed_bytes: u64,
}

impl OllamaRemoval {
    /// Finds the files to delete with a model.
    ///
    /// # Errors
    /// An error if the model is not stored, or if another model's manifest, which may name the same layers,
    /// cannot be read.
    pub fn of(name: &OllamaName, settings: &HubSettings) -> Result<Self, HubError> {
        let store = Store::of(settings);
        let manifest = store.manifest_path(name);
        if !manifest.is_file() {
            return Err(HubError::NotStored {
                name: name.to_string(),
            });
        }
        // Whoever holds this lock writes a manifest or removes a model, which takes a moment.
        let waiter = Waiter {
            observer: &(),
            file: None,
        };
        let _unchanged = lock_manifests(settings, waiter)?;
        let layers = unused_layers(settings, &manifest)?.into_iter();
        let sizes = layers.filter_map(|digest| fs::metadata(store.blob(&digest)).ok());
        Ok(Self {
            name: name.clone(),
            settings: settings.clone(),
            freed_bytes: sizes.map(|metadata| metadata.len()).sum(),
            manifest,
        })
    }

    /// Waits for running pulls of the model, then deletes the files: the manifest first, so that no listed model lacks its bytes.
    ///
    /// # Errors
    /// An error if a file cannot be removed, and [`HubError::Cancelled`] if the observer ends the wait for a running pull.
    pub fn apply(self, observer: &dyn PullObserver) -> Result<(), HubError> {
        let shown = self.name.to_string();
        let waiter = Waiter {
            observer,
            file: Some(&shown),
        };
        let _alone = lock_model(&self.settings, &self.name, Hold::Alone, waiter)?;
        if !self.manifest.is_file() {
            return Ok(());
        }
        let store = Store::of(&self.settings);
        // Pulls that ran since may have other models with these layers.
        let unused = lock_unused(&self.settings, &self.manifest, waiter)?;
        remove(&self.manifest)?;
        for digest in &unused.digests {
            remove(&store.blob(digest))?;
        }
        // The folders of a name without tags; folders with other tags stay.
        for folder in self.manifest.ancestors().skip(1).take(2) {
            let _still_used = fs::remove_dir(folder);
        }
        Ok(())
    }
}
