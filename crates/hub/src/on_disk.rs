//! [`DiskUse`]: the disk space of the models in both caches, and of interrupted downloads.
//!
//! A file counts once here, even if several models or snapshots share it. Invariant: links are not followed,
//! so that nothing outside the caches counts.

use std::{
    fs::{self, DirEntry},
    path::{Path, PathBuf},
    time::SystemTime,
};

use crate::{
    HubSettings, ModelName,
    cache::Cache,
    incomplete::{INCOMPLETE, disk_bytes},
};

/// The contents of the caches of the Hub and of Ollama.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskUse {
    /// Bytes of all models and of interrupted downloads, each file once.
    pub n_bytes: u64,
    /// Repositories of the Hub with incomplete files, by name.
    pub interrupted: Vec<InterruptedPull>,
    /// Bytes of incomplete layers in Ollama's folder. Their models are unknown.
    pub ollama_interrupted_bytes: u64,
}

/// The remains of interrupted or running downloads of one repository.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InterruptedPull {
    /// The repository. The type and the revision are unknown.
    pub name: ModelName,
    /// Bytes on the disk of its incomplete files.
    pub n_bytes: u64,
    /// The time at which bytes last arrived, if the system reports it.
    pub last_used: Option<SystemTime>,
    /// The folder of the incomplete files.
    pub path: PathBuf,
}

impl DiskUse {
    /// Scans both caches; unreadable folders count as empty.
    pub fn of(settings: &HubSettings) -> Self {
        let mut found = Self::default();
        let folders = entries(&settings.cache).filter_map(|entry| entry.file_name().into_string().ok());
        for name in folders.filter_map(|folder| ModelName::of_folder(&folder)) {
            let cache = Cache::of(&settings.cache, &name);
            found.n_bytes += bytes_below(&cache.folder());
            let path = cache.blobs();
            let left = incomplete_files(&path);
            if !left.is_empty() {
                found.interrupted.push(InterruptedPull {
                    name,
                    n_bytes: left.iter().map(|(file, _)| file_bytes(file)).sum(),
                    last_used: left.iter().filter_map(|(_, changed)| *changed).max(),
                    path,
                });
            }
        }
        (found.interrupted).sort_by_key(|pull| pull.name.to_string().to_lowercase());
        let layers = settings.ollama_models.join("blobs");
        found.n_bytes += bytes_below(&layers);
        let left = incomplete_files(&layers);
        found.ollama_interrupted_bytes = left.iter().map(|(file, _)| file_bytes(file)).sum();
        found
    }
}

/// Returns the incomplete files of a folder, each with the time of the last write.
pub(crate) fn incomplete_files(folder: &Path) -> Vec<(PathBuf, Option<SystemTime>)> {
    let files = entries(folder).filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
    let left = files.filter(|entry| is_incomplete(&entry.path()));
    left.map(|entry| {
        let changed = entry.metadata().and_then(|metadata| metadata.modified());
        (entry.path(), changed.ok())
    })
    .collect()
}

/// Returns whether a file name marks an incomplete file: of this program and `huggingface_hub`, or of Ollama.
fn is_incomplete(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_ollamas = name.starts_with("sha256-") && name.contains("-partial");
    name.ends_with(INCOMPLETE) || is_ollamas
}

/// Returns the bytes of a file. For an incomplete one, only bytes on the disk count, since its length is the
/// final one.
pub(crate) fn file_bytes(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else {
        return 0;
    };
    if is_incomplete(path) {
        disk_bytes(&metadata)
    } else {
        metadata.len()
    }
}

/// Returns the bytes of the files below a folder; links are not followed.
pub(crate) fn bytes_below(folder: &Path) -> u64 {
    let sizes = entries(folder).map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => bytes_below(&entry.path()),
        Ok(kind) if kind.is_file() => file_bytes(&entry.path()),
        _ => 0,
    });
    sizes.sum()
}

/// Lists a folder; one that cannot be read is empty.
pub(crate) fn entries(folder: &Path) -> impl Iterator<Item = DirEntry> {
    (fs::read_dir(folder).into_iter().flatten()).filter_map(Result::ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn a_file_with_holes_counts_what_is_on_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let whole = folder.path().join("whole");
        fs::write(&whole, vec![1; 5_000]).unwrap();
        assert_eq!(file_bytes(&whole), 5_000);
        for name in ["e.tokenmill.incomplete", "e.1f.incomplete", "sha256-00-partial"] {
            let path = folder.path().join(name);
            let file = fs::File::create(&path).unwrap();
            file.set_len(1 << 30).unwrap();
            assert!(file_bytes(&path) < 1 << 20, "{name}");
        }
        assert!(bytes_below(folder.path()) < 4 << 20);
        assert_eq!(incomplete_files(folder.path()).len(), 3);
    }
}
