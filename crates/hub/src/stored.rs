//! [`stored_models`] and [`Removal`]: the contents of the cache, and their removal.
//!
//! No server is asked. Invariants: a removal changes the folders of one repository only, and no blob to which
//! another file of a snapshot links; it does so while no pull of the repository runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use crate::{
    HubError, HubSettings, ModelName, PullObserver,
    cache::{Cache, Entry, Hold, Waiter},
    choice::{Variant, choose, nextn, variants},
    on_disk::{bytes_below, file_bytes, incomplete_files},
    pull::{SAFETENSORS, commits_of, folder_bytes},
};

/// A model in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredModel {
    /// The name for requesting it.
    pub name: ModelName,
    /// The type of a GGUF file, or `safetensors`.
    pub label: String,
    /// Its bytes, including those of a separate MTP file.
    pub n_bytes: u64,
    /// The time of its last read, if the system reports it.
    pub last_used: Option<SystemTime>,
    /// The path to open.
    pub path: PathBuf,
    /// Its commit.
    pub commit: String,
}

/// Lists the models in the cache by name. The same files in several snapshots are listed once.
///
/// # Errors
/// An error if the cache cannot be read. A missing cache is empty.
pub fn stored_models(settings: &HubSettings) -> Result<Vec<StoredModel>, HubError> {
    let mut models = Vec::new();
    if !settings.cache.exists() {
        return Ok(models);
    }
    let folders = fs::read_dir(&settings.cache).map_err(HubError::file("read", &settings.cache))?;
    let names = folders.filter_map(|entry| ModelName::of_folder(entry.ok()?.file_name().to_str()?));
    for name in names {
        let cache = Cache::of(&settings.cache, &name);
        let mut seen = BTreeSet::new();
        for commit in commits_of(&cache, &name) {
            let snapshot = cache.snapshot(&commit);
            let entries = cache.entries(&commit);
            let sizes = sizes_of(&entries);
            for (variant, is_folder) in models_in(&entries) {
                let paths: Vec<PathBuf> = variant.files.iter().map(|file| snapshot.join(file)).collect();
                let blobs: Vec<_> = paths.iter().map(|path| cache.blob_of(path)).collect();
                if !seen.insert((variant.label.clone(), blobs)) {
                    continue;
                }
                let layers = nextn(&sizes, &variant).filter(|_| !is_folder);
                models.push(StoredModel {
                    name: if is_folder {
                        name.clone()
                    } else {
                        name.with_wanted(&variant.label)
                    },
                    last_used: paths.iter().filter_map(|path| last_used(path)).max(),
                    path: if is_folder {
                        snapshot.clone()
                    } else {
                        paths[0].clone()
                    },
                    label: variant.label,
                    n_bytes: variant.n_bytes + layers.map_or(0, |(_, n_bytes)| n_bytes),
                    commit: commit.clone(),
                });
            }
        }
    }
    models.sort_by_key(|model| model.name.to_string().to_lowercase());
    Ok(models)
}

/// Returns the complete models of a snapshot, and whether each is a folder.
fn models_in(entries: &[Entry]) -> Vec<(Variant, bool)> {
    let mut models: Vec<(Variant, bool)> = variants_of(entries)
        .into_iter()
        .filter(|variant| variant.missing.is_none())
        .map(|variant| (variant, false))
        .collect();
    if let Some(n_bytes) = folder_bytes(entries) {
        let variant = Variant {
            label: SAFETENSORS.to_owned(),
            files: (entries.iter().filter(|entry| !entry.is_gguf()))
                .map(|entry| entry.path.clone())
                .collect(),
            n_bytes,
            missing: None,
        };
        models.push((variant, true));
    }
    models
}

fn variants_of(entries: &[Entry]) -> Vec<Variant> {
    variants(&sizes_of(entries))
}

fn sizes_of(entries: &[Entry]) -> Vec<(String, u64)> {
    let sizes = entries.iter().map(|entry| (entry.path.clone(), entry.n_bytes));
    sizes.collect()
}

fn last_used(path: &Path) -> Option<SystemTime> {
    let metadata = fs::metadata(path).ok()?;
    metadata.accessed().ok().max(metadata.modified().ok())
}

/// The files to delete in a removal.
#[derive(Debug)]
pub struct Removal {
    name: ModelName,
    cache: Cache,
    pointers: Vec<PathBuf>,
    blobs: Vec<PathBuf>,
    takes_all: bool,
    /// Models to be removed.
    pub labels: Vec<String>,
    /// Bytes freed by the removal.
    pub freed_bytes: u64,
}

impl Removal {
    /// Finds the files that a name means in the cache: a type, a whole revision, or the whole repository.
    ///
    /// # Errors
    /// [`HubError::NotStored`], [`HubError::NoSuchType`] and [`HubError::SeveralOfType`].
    pub fn of(name: &ModelName, settings: &HubSettings) -> Result<Self, HubError> {
        Self::in_cache(name, Cache::of(&settings.cache, name))
    }

    fn in_cache(name: &ModelName, cache: Cache) -> Result<Self, HubError> {
        let snapshots: BTreeMap<String, Vec<Entry>> = cache
            .commits()
            .into_iter()
            .map(|commit| (commit.clone(), cache.entries(&commit)))
            .collect();
        let chosen: BTreeSet<String> = if name.revision().is_some() {
            commits_of(&cache, name).into_iter().collect()
        } else {
            snapshots.keys().cloned().collect()
        };
        if !cache.folder().is_dir() || name.revision().is_some() && chosen.is_empty() {
            return Err(HubError::NotStored {
                name: name.to_string(),
            });
        }
        let (mut removed, mut kept) = (Vec::new(), Vec::new());
        let mut labels = BTreeSet::new();
        let mut refused = None;
        for (commit, entries) in &snapshots {
            let taken = if chosen.contains(commit) {
                taken_of(name, entries)
            } else {
                Ok(Vec::new())
            };
            let taken = taken.unwrap_or_else(|error| {
                refused = Some(error);
                Vec::new()
            });
            let is_taken = |entry: &Entry| taken.contains(&entry.path);
            for (model, _) in models_in(entries) {
                if model.files.iter().all(|file| taken.contains(file)) {
                    labels.insert(model.label);
                }
            }
            removed.extend(entries.iter().filter(|entry| is_taken(entry)).cloned());
            kept.extend(entries.iter().filter(|entry| !is_taken(entry)).cloned());
        }
        // A type must be in at least one snapshot.
        if let Some(error) = refused.filter(|_| removed.is_empty()) {
            return Err(error);
        }
        let kept_blobs: BTreeSet<PathBuf> = kept
            .iter()
            .filter_map(|entry| cache.blob_of(&entry.pointer))
            .collect();
        let blobs: BTreeSet<PathBuf> = (removed.iter().filter_map(|entry| cache.blob_of(&entry.pointer)))
            .filter(|blob| !kept_blobs.contains(blob))
            .collect();
        // An interrupted download of another type stays.
        let takes_all = kept.is_empty()
            && chosen.len() == snapshots.len()
            && (name.wanted().is_none() || incomplete_files(&cache.blobs()).is_empty());
        let of_pointers = removed
            .iter()
            .filter(|entry| !entry.pointer.is_symlink())
            .map(|entry| entry.n_bytes);
        let freed_bytes = if takes_all {
            bytes_below(&cache.folder())
        } else {
            blobs.iter().map(|blob| file_bytes(blob)).chain(of_pointers).sum()
        };
        Ok(Self {
            name: name.clone(),
            cache,
            pointers: removed.into_iter().map(|entry| entry.pointer).collect(),
            blobs: blobs.into_iter().collect(),
            takes_all,
            labels: labels.into_iter().collect(),
            freed_bytes,
        })
    }

    /// Waits for running pulls of the repository, then deletes the files: links first, so that no listed model lacks its bytes.
    ///
    /// # Errors
    /// An error if a file cannot be removed, and [`HubError::Cancelled`] if the observer ends the wait for a running pull.
    pub fn apply(self, observer: &dyn PullObserver) -> Result<(), HubError> {
        let repository = self.name.repository();
        let waiter = Waiter {
            observer,
            file: Some(&repository),
        };
        let _alone = self.cache.lock_repository(Hold::Alone, waiter)?;
        // A pull that ended during the wait has linked its files.
        match Self::in_cache(&self.name, self.cache) {
            Ok(now) => now.apply_alone(waiter),
            Err(HubError::NotStored { .. } | HubError::NoSuchType { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Deletes the files while no pull of this program runs. Other programs lock only single blobs.
    fn apply_alone(self, waiter: Waiter<'_>) -> Result<(), HubError> {
        let incomplete = if self.takes_all {
            incomplete_files(&self.cache.blobs())
        } else {
            Vec::new()
        };
        let names = (self.blobs.iter()).filter_map(|blob| blob.file_name()?.to_str());
        let of_incomplete = (incomplete.iter()).filter_map(|(path, _)| Cache::etag_of(path));
        // Each once: a file may exist both complete and in part, and waiting for a lock held by this process
        // would block forever.
        let names: BTreeSet<&str> = names.chain(of_incomplete).collect();
        let _locked = (names.into_iter())
            .map(|name| self.cache.lock(name, waiter))
            .collect::<Result<Vec<_>, _>>()?;
        for path in self.pointers.iter().chain(&self.blobs) {
            remove(path)?;
        }
        let folder = self.cache.folder();
        if self.takes_all {
            fs::remove_dir_all(&folder).map_err(HubError::file("remove", &folder))?;
            // The locks stay: another program may be waiting for one, and would then hold another file than
            // the next.
            return Ok(());
        }
        for commit in self.cache.commits() {
            if self.cache.entries(&commit).is_empty() {
                let snapshot = self.cache.snapshot(&commit);
                fs::remove_dir_all(&snapshot).map_err(HubError::file("remove", &snapshot))?;
                self.cache.forget_projector(&commit)?;
            }
        }
        let commits = self.cache.commits();
        for (revision, commit) in self.cache.refs() {
            if !commits.contains(&commit) {
                remove(&folder.join("refs").join(revision))?;
            }
        }
        Ok(())
    }
}

/// Returns the files of a snapshot that a name means.
fn taken_of(name: &ModelName, entries: &[Entry]) -> Result<Vec<String>, HubError> {
    let all = || entries.iter().map(|entry| entry.path.clone()).collect();
    let there = variants_of(entries);
    let has_folder = folder_bytes(entries).is_some();
    let Some(wanted) = name.wanted() else {
        return Ok(all());
    };
    if wanted.eq_ignore_ascii_case(SAFETENSORS) && (has_folder || there.is_empty()) {
        let of_folder = entries.iter().filter(|entry| !entry.is_gguf());
        return Ok(of_folder.map(|entry| entry.path.clone()).collect());
    }
    let taken = choose(&there, name, None)?.variant;
    // Companion files are removed with the last model.
    let has_others = there.len() > 1 || has_folder;
    if !has_others {
        return Ok(all());
    }
    let sizes = sizes_of(entries);
    let path_for = |variant: &Variant| nextn(&sizes, variant).map(|(path, _)| path);
    let mut others = there.iter().filter(|variant| variant.files != taken.files);
    // A separate MTP file belongs to its model, unless another type uses it too.
    let layers = path_for(&taken).filter(|path| !others.any(|other| path_for(other).as_ref() == Some(path)));
    Ok(taken.files.into_iter().chain(layers).collect())
}

/// Removes a file, which may be gone already.
pub(crate) fn remove(path: &Path) -> Result<(), HubError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(HubError::file("remove", path)(error))
        }
        _ => Ok(()),
    }
}
