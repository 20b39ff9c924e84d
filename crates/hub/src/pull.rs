//! [`pull`]: from a name to a model on this machine; [`plan`] describes it first.
//!
//! A model consists of several files. Invariant: the links of a snapshot are created when all files of the
//! request exist, so that a model that can be found is complete.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::{
    HubError, HubSettings, ModelName, PullEvent, PullObserver, Variant,
    api::{Hub, ListedFile, RemoteFile},
    blob,
    cache::{Cache, Entry, Hold, Waiter, check_room},
    choice::{choose, nextn, projector, variants},
    digest::remove_if_damaged,
    incomplete::{bytes_left_at, room_needed},
    lists,
    model_name::is_relative_path,
    model_type::missing_shard,
    observer::Tally,
};

/// Options for the parts of a repository, in addition to those that the name selects.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PullWishes {
    /// The memory into which a model must fit if the name states no type; `None` allows any size.
    pub memory_bytes: Option<u64>,
    /// Whether to download the image encoder of a model that has one.
    pub with_projector: bool,
    /// Whether to download a separate MTP file with its model.
    pub with_nextn: bool,
}

impl Default for PullWishes {
    fn default() -> Self {
        Self {
            memory_bytes: None,
            with_projector: true,
            with_nextn: true,
        }
    }
}

/// Describes a pull before it starts.
#[derive(Debug)]
pub struct PullPlan {
    name: ModelName,
    commit: String,
    files: Vec<(ListedFile, RemoteFile)>,
    opens: Option<String>,
    /// The image encoder that the repository has next to GGUF files, whether or not it was requested.
    projector: Option<String>,
    /// Selected variant: the type of a GGUF file, or `safetensors`.
    pub label: String,
    /// The reason for the selection, if the name does not determine it.
    pub why: Option<String>,
    /// The separate MTP file for the model, and its bytes.
    pub nextn: Option<(String, u64)>,
    /// Total bytes of all files.
    pub total_bytes: u64,
    /// Bytes to download.
    pub missing_bytes: u64,
    /// Bytes of them that belong to the image encoder.
    pub missing_projector_bytes: u64,
    /// Bytes of them that belong to MTP layers.
    pub missing_nextn_bytes: u64,
}

/// A model stored on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PulledModel {
    /// Path to open: the first GGUF file, or a folder.
    pub path: PathBuf,
    /// The type of a GGUF file, or `safetensors`.
    pub label: String,
    /// Its commit.
    pub commit: String,
    /// Its size in bytes.
    pub n_bytes: u64,
}

/// Type name of safetensors models.
pub const SAFETENSORS: &str = "safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Gets a model: downloads the parts that are not in the cache.
///
/// # Errors
/// [`HubError`]. Downloaded parts stay, and the next call continues from there.
pub fn pull(
    name: &ModelName,
    wishes: &PullWishes,
    settings: &HubSettings,
    observer: &dyn PullObserver,
) -> Result<PulledModel, HubError> {
    plan(name, wishes, settings, observer)?.fetch(settings, observer)
}

/// Requests the repository's contents from the server, and plans the pull.
///
/// # Errors
/// An error if the model does not exist, has no such type, does not fit into memory, or cannot be requested.
pub fn plan(
    name: &ModelName,
    wishes: &PullWishes,
    settings: &HubSettings,
    observer: &dyn PullObserver,
) -> Result<PullPlan, HubError> {
    if settings.is_offline {
        return Err(HubError::Offline {
            name: name.to_string(),
        });
    }
    let is_stored = matches!(find_stored(name, wishes, settings), Ok(Some(_)));
    let hub = Hub::new(settings, observer)?.waiting_for_network(!is_stored);
    let list = hub.list(name)?;
    let sizes: Vec<(String, u64)> = list
        .files
        .iter()
        .map(|file| (file.path.clone(), file.n_bytes.unwrap_or(0)))
        .collect();
    let found = variants(&sizes);
    let projector = projector(&sizes).filter(|_| !found.is_empty());
    let mut layers = None;
    let (paths, opens, label, why) = if found.is_empty() {
        if let Some(wanted) = name
            .wanted()
            .filter(|wanted| !wanted.eq_ignore_ascii_case(SAFETENSORS))
        {
            return Err(HubError::NoSuchType {
                name: name.repository(),
                wanted: wanted.to_owned(),
                there: vec!["no GGUF files".to_owned()],
            });
        }
        let paths = folder_files(&hub, name, &list.commit, &sizes)?;
        (paths, None, SAFETENSORS.to_owned(), None)
    } else {
        let choice = choose(&found, name, wishes.memory_bytes)?;
        layers = nextn(&sizes, &choice.variant).filter(|_| wishes.with_nextn);
        let Variant { label, files, .. } = choice.variant;
        let opens = files.first().cloned();
        let beside = projector.clone().filter(|_| wishes.with_projector);
        (
            (files.into_iter().chain(beside))
                .chain(layers.iter().map(|(path, _)| path.clone()))
                .collect(),
            opens,
            label,
            choice.why,
        )
    };
    let wanted: BTreeSet<String> = paths.into_iter().collect();
    let files = (list.files.into_iter().filter(|file| wanted.contains(&file.path)))
        .map(|file| Ok((hub.file(name, &list.commit, &file)?, file)))
        .map(|found| found.map(|(remote, file)| (file, remote)))
        .collect::<Result<Vec<_>, HubError>>()?;
    let cache = Cache::of(&settings.cache, name);
    let missing = files
        .iter()
        .map(|(_, file)| bytes_to_fetch(&cache, &list.commit, file));
    let missing_bytes = missing.fold(0, u64::saturating_add);
    let missing_of = |path: Option<&String>| {
        let file = files.iter().find(|(_, file)| Some(&file.path) == path);
        file.map_or(0, |(_, file)| bytes_to_fetch(&cache, &list.commit, file))
    };
    let missing_projector_bytes = missing_of(projector.as_ref());
    let missing_nextn_bytes = missing_of(layers.as_ref().map(|(path, _)| path));
    Ok(PullPlan {
        name: name.clone(),
        opens,
        projector,
        label,
        why,
        nextn: layers,
        total_bytes: files
            .iter()
            .map(|(_, file)| file.n_bytes)
            .fold(0, u64::saturating_add),
        missing_bytes,
        missing_projector_bytes,
        missing_nextn_bytes,
        commit: list.commit,
        files,
    })
}

/// Returns the files of a safetensors folder: the weights, and their companion files.
fn folder_files(
    hub: &Hub<'_>,
    name: &ModelName,
    commit: &str,
    files: &[(String, u64)],
) -> Result<Vec<String>, HubError> {
    let known: BTreeSet<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
    let has = |path: &str| known.contains(path);
    let nothing = || HubError::NothingToOpen {
        name: name.repository(),
    };
    if !has("config.json") {
        return Err(nothing());
    }
    let weights: Vec<String> = if has(INDEX) {
        let parts = parts_of_index(&hub.read(name, commit, INDEX)?);
        let parts = parts.map_err(|error| HubError::BadAnswer {
            url: format!("{}/{INDEX}", name.repository()),
            reason: error.to_string(),
        })?;
        if let Some(missing) = parts.iter().find(|part| !has(part)) {
            return Err(HubError::MissingPart {
                name: name.repository(),
                missing: missing.clone(),
            });
        }
        parts.into_iter().collect()
    } else {
        let is_weights = |path: &&String| {
            path.ends_with(".safetensors") && !path.contains('/') && !path.starts_with("consolidated")
        };
        let all: Vec<String> = files
            .iter()
            .map(|(path, _)| path)
            .filter(is_weights)
            .cloned()
            .collect();
        match all.iter().find(|path| *path == "model.safetensors") {
            Some(one) => vec![one.clone()],
            None => all,
        }
    };
    if weights.is_empty() {
        return Err(nothing());
    }
    // An index already lists all parts.
    let shards: Vec<&str> = weights.iter().map(String::as_str).collect();
    if let Some(missing) = missing_shard(&shards).filter(|_| !has(INDEX)) {
        return Err(HubError::MissingPart {
            name: name.repository(),
            missing,
        });
    }
    let is_side = |path: &str| {
        let is_at_root = !path.contains('/');
        let is_text = [".json", ".jinja", ".txt"].iter().any(|end| path.ends_with(end));
        is_at_root && (is_text || path == "tokenizer.model") || path == "1_Pooling/config.json"
    };
    let side = files
        .iter()
        .map(|(path, _)| path)
        .filter(|path| is_side(path))
        .cloned();
    Ok(side.chain(weights).collect())
}

/// Returns the files of the folder that are named in a safetensors index.
///
/// # Errors
/// An error if `bytes` is not an index, or names too many files.
fn parts_of_index(bytes: &[u8]) -> Result<BTreeSet<String>, serde_json::Error> {
    let mut parts = lists::parts_of_index(bytes)?;
    parts.retain(|part| is_relative_path(part));
    Ok(parts)
}

/// Returns the bytes of a file that must be downloaded.
fn bytes_to_fetch(cache: &Cache, commit: &str, file: &RemoteFile) -> u64 {
    if is_there(cache, commit, file) {
        return 0;
    }
    (file.n_bytes).saturating_sub(bytes_left_at(&cache.incomplete(&file.etag), file.n_bytes))
}

/// Returns whether a file's bytes are in the cache.
fn is_there(cache: &Cache, commit: &str, file: &RemoteFile) -> bool {
    let has_size =
        |path: &Path| fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == file.n_bytes);
    let pointer = cache.snapshot(commit).join(&file.path);
    // On systems without links, the file itself is in the snapshot.
    has_size(&cache.blob(&file.etag)) || !pointer.is_symlink() && has_size(&pointer)
}

impl PullPlan {
    /// Returns the name with its type.
    pub fn full_name(&self) -> ModelName {
        match &self.opens {
            Some(_) if self.name.wanted().is_none() => self.name.with_wanted(&self.label),
            _ => self.name.clone(),
        }
    }

    /// Returns the number of files.
    pub fn n_files(&self) -> usize {
        self.files.len()
    }

    /// Hashes the stored files, and removes those that do not match; these are then missing. Without this
    /// call a file of the right size counts as complete.
    ///
    /// # Errors
    /// An error if a file cannot be read or removed.
    pub fn remove_damaged(
        &mut self,
        settings: &HubSettings,
        observer: &dyn PullObserver,
    ) -> Result<(), HubError> {
        let cache = Cache::of(&settings.cache, &self.name);
        cache.prepare()?;
        for (_, file) in &self.files {
            if !is_there(&cache, &self.commit, file) {
                continue;
            }
            let waiter = Waiter {
                observer,
                file: Some(&file.path),
            };
            let _locked = cache.lock(&file.etag, waiter)?;
            let pointer = cache.snapshot(&self.commit).join(&file.path);
            let path = Some(cache.blob(&file.etag)).filter(|blob| blob.exists());
            if remove_if_damaged(&path.unwrap_or(pointer), &file.etag, &file.path, observer)? {
                self.missing_bytes = self.missing_bytes.saturating_add(file.n_bytes);
                if self.projector.as_ref() == Some(&file.path) {
                    self.missing_projector_bytes = file.n_bytes;
                }
                if self.nextn.as_ref().is_some_and(|(path, _)| *path == file.path) {
                    self.missing_nextn_bytes = file.n_bytes;
                }
            }
        }
        Ok(())
    }

    /// Downloads the missing parts, checks them, and puts the model into the cache.
    ///
    /// # Errors
    /// [`HubError`]. Downloaded parts stay, and the next call continues from there.
    pub fn fetch(
        mut self,
        settings: &HubSettings,
        observer: &dyn PullObserver,
    ) -> Result<PulledModel, HubError> {
        let cache = Cache::of(&settings.cache, &self.name);
        // Before the folders are made: a removal that runs removes them.
        let waiter = Waiter { observer, file: None };
        let _pulling = cache.lock_repository(Hold::Shared, waiter)?;
        self.check_room(&cache, settings)?;
        cache.prepare()?;
        self.fetch_files(&cache, settings, observer)
            .map_err(|error| match error {
                // Another program may have filled the disk meanwhile.
                error if error.is_of_full_disk() => self.check_room(&cache, settings).err().unwrap_or(error),
                error => error,
            })?;
        // Two programs that create the same links at once could rename each other's away.
        let _locked = cache.lock(&self.commit, waiter)?;
        if self.opens.is_some() {
            cache.note_projector(&self.commit, self.projector.as_deref())?;
        }
        for (_, file) in &self.files {
            cache.link(&self.commit, &file.path, &file.etag)?;
        }
        cache.write_ref(self.name.revision().unwrap_or("main"), &self.commit)?;
        let snapshot = cache.snapshot(&self.commit);
        if let Some((_, gone)) = (self.files.iter()).find(|(_, file)| !snapshot.join(&file.path).exists()) {
            return Err(HubError::Vanished {
                file: gone.path.clone(),
            });
        }
        Ok(PulledModel {
            path: match &self.opens {
                Some(file) => snapshot.join(file),
                None => snapshot,
            },
            label: self.label,
            commit: self.commit,
            n_bytes: self.total_bytes,
        })
    }

    /// Checks that the disk has room for the missing files.
    fn check_room(&self, cache: &Cache, settings: &HubSettings) -> Result<(), HubError> {
        let absent = (self.files.iter()).filter(|(_, file)| !is_there(cache, &self.commit, file));
        let needed_bytes = absent
            .map(|(_, file)| room_needed(&cache.incomplete(&file.etag), file.n_bytes))
            .fold(0, u64::saturating_add);
        check_room(&settings.cache, needed_bytes)
    }

    /// Downloads the missing blobs.
    fn fetch_files(
        &mut self,
        cache: &Cache,
        settings: &HubSettings,
        observer: &dyn PullObserver,
    ) -> Result<(), HubError> {
        let hub = Hub::new(settings, observer)?;
        let tally = Tally::new(self.total_bytes, observer);
        for (listed, file) in &mut self.files {
            let fetched = fetch_file(&hub, &self.name, cache, &self.commit, file, settings, &tally);
            let Err(error @ (HubError::Changed { .. } | HubError::Damaged { .. })) = fetched else {
                fetched?;
                continue;
            };
            // Try once more, with the server's current description of the file.
            observer.event(PullEvent::Restarting {
                file: &file.path,
                reason: &error.to_string(),
            });
            (file.etag, file.n_bytes) = hub.head(&file.url, &self.name, &self.commit, listed)?;
            fetch_file(&hub, &self.name, cache, &self.commit, file, settings, &tally)?;
        }
        Ok(())
    }
}

/// Downloads a file's blob, unless it exists.
fn fetch_file(
    hub: &Hub<'_>,
    name: &ModelName,
    cache: &Cache,
    commit: &str,
    file: &RemoteFile,
    settings: &HubSettings,
    tally: &Tally<'_>,
) -> Result<(), HubError> {
    if is_there(cache, commit, file) {
        tally.add(file.n_bytes);
        return Ok(());
    }
    let waiter = Waiter {
        observer: tally.observer,
        file: Some(&file.path),
    };
    let _locked = cache.lock(&file.etag, waiter)?;
    // Another program may have held the lock and downloaded the blob.
    if is_there(cache, commit, file) {
        tally.add(file.n_bytes);
        return Ok(());
    }
    let (incomplete, target) = (cache.incomplete(&file.etag), cache.blob(&file.etag));
    blob::download(hub, name, file, settings, tally, &incomplete, &target)
}

/// Finds a complete model in the cache without asking a server.
///
/// If the name has no revision, the branch `main` has priority, then older snapshots.
///
/// # Errors
/// [`HubError::NothingFits`] and [`HubError::SeveralOfType`], if that is the reason why no stored model was
/// chosen.
pub fn find_stored(
    name: &ModelName,
    wishes: &PullWishes,
    settings: &HubSettings,
) -> Result<Option<PulledModel>, HubError> {
    let cache = Cache::of(&settings.cache, name);
    let mut refused = None;
    for commit in commits_of(&cache, name) {
        let entries = cache.entries(&commit);
        let sizes: Vec<(String, u64)> = entries
            .iter()
            .map(|entry| (entry.path.clone(), entry.n_bytes))
            .collect();
        let snapshot = cache.snapshot(&commit);
        match choose(&variants(&sizes), name, wishes.memory_bytes) {
            Ok(choice) => {
                return Ok(Some(PulledModel {
                    path: snapshot.join(&choice.variant.files[0]),
                    label: choice.variant.label,
                    commit,
                    n_bytes: choice.variant.n_bytes,
                }));
            }
            Err(error @ (HubError::NothingFits { .. } | HubError::SeveralOfType { .. })) => {
                refused.get_or_insert(error);
            }
            Err(_) => {}
        }
        let is_wished = name
            .wanted()
            .is_none_or(|wanted| wanted.eq_ignore_ascii_case(SAFETENSORS));
        if let Some(n_bytes) = folder_bytes(&entries).filter(|_| is_wished) {
            return Ok(Some(PulledModel {
                path: snapshot,
                label: SAFETENSORS.to_owned(),
                commit,
                n_bytes,
            }));
        }
    }
    refused.map_or(Ok(None), Err)
}

/// Returns the commits that a name may mean, the likeliest first.
pub(crate) fn commits_of(cache: &Cache, name: &ModelName) -> Vec<String> {
    let revision = name.revision();
    let first = cache.read_ref(revision.unwrap_or("main"));
    let others = cache.commits().into_iter().filter(|commit| match revision {
        // A commit may be abbreviated, as in Git.
        Some(revision) => revision.len() >= 7 && commit.starts_with(revision),
        None => true,
    });
    let mut commits: Vec<String> = first.iter().cloned().collect();
    commits.extend(others.filter(|commit| Some(commit) != first.as_ref()));
    commits
}

/// Returns the bytes of a safetensors folder; `None` if a snapshot is not one, or is incomplete.
pub(crate) fn folder_bytes(entries: &[Entry]) -> Option<u64> {
    let find = |path: &str| entries.iter().find(|entry| entry.path == path);
    find("config.json")?;
    let weights: Vec<&Entry> = entries
        .iter()
        .filter(|entry| entry.path.ends_with(".safetensors"))
        .collect();
    if weights.is_empty() {
        return None;
    }
    if let Some(index) = find(INDEX) {
        let parts = parts_of_index(&fs::read(&index.pointer).ok()?).ok()?;
        if !parts.iter().all(|part| find(part).is_some()) {
            return None;
        }
    } else if find("model.safetensors").is_none() {
        let shards: Vec<&str> = weights.iter().map(|entry| entry.path.as_str()).collect();
        if missing_shard(&shards).is_some() {
            return None;
        }
    }
    // GGUF files may be in the same folder, and are separate models.
    let own = entries.iter().filter(|entry| !entry.is_gguf());
    Some(own.map(|entry| entry.n_bytes).sum())
}
