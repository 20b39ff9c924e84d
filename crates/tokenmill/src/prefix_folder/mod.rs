//! [`PrefixFolder`]: the KV cache of prompts in files, which prompts find again after a restart.
//!
//! The prefix cache of an engine is in memory and ends with it. With a folder, pages that no sequence uses
//! are written in the background, and read when a prompt begins with them. Sessions, in contrast, are
//! conversations that someone names; here pages are found by their tokens. Invariants: a truncated, damaged
//! or foreign file changes nothing, and the prompt is computed; one process uses a folder at a time.

mod index;
mod model_store;
#[cfg(test)]
mod tests;

use std::{
    fmt, fs,
    hash::{BuildHasher as _, RandomState},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use tokenmill_backend::MemoryFormat;
use tokenmill_sched::{KeptKind, KeptName, PageKey};

use self::index::{EntryName, Index};
use crate::{
    Error,
    atomic_write::remove_unfinished,
    checksum::checksum,
    folder_lock::{FolderLock, private_file},
    format_text::format_text,
};

pub(crate) use self::model_store::ModelStore;
pub use self::model_store::PrefixFolderFigures;

/// The file that a process holds a lock of.
const LOCK: &str = "lock";
/// The numbers that names are made with.
const SECRET: &str = "secret";
/// Suffixes of files, in the order of [`KeptKind::ALL`].
const KINDS: [&str; 3] = ["page", "window", "state"];

/// Receives a warning that a folder cannot be written to.
type Warn = dyn Fn(&str) + Send + Sync;

/// A folder for pages of prompts, of any number of models. Clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct PrefixFolder {
    folder: Arc<Folder>,
}

struct Folder {
    path: PathBuf,
    max_bytes: u64,
    secret: [u64; 4],
    index: Mutex<Index>,
    warn: Box<Warn>,
    has_warned: AtomicBool,
    /// Held while room is made and taken, by the writers of all models.
    writing: Mutex<()>,
    /// Held as long as the folder is used.
    _lock: FolderLock,
}

impl PrefixFolder {
    /// Opens a folder for files of a bounded total size, and creates it if it is missing. Files that were used longest ago are removed
    /// beyond that size. Calls `warn` once if the folder cannot be written to.
    ///
    /// # Errors
    /// [`Error::FolderInUse`], [`Error::MakeFolder`] if the folder cannot be created, [`Error::Write`] if it cannot be written to, and
    /// [`Error::Read`] where it cannot be read.
    pub fn open(
        path: impl AsRef<Path>,
        max_bytes: u64,
        warn: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let path = path.as_ref();
        let failed = |source| Error::Read {
            path: path.to_owned(),
            source,
        };
        create_folder(path).map_err(|source| Error::MakeFolder {
            path: path.to_owned(),
            source,
        })?;
        let lock = FolderLock::take(path, LOCK, &warn)?;
        let folder = Folder {
            path: path.to_owned(),
            max_bytes,
            secret: secret(path).map_err(failed)?,
            index: Mutex::new(list(path, max_bytes).map_err(failed)?),
            warn: Box::new(warn),
            has_warned: AtomicBool::new(false),
            writing: Mutex::default(),
            _lock: lock,
        };
        Ok(Self {
            folder: Arc::new(folder),
        })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.folder.path
    }

    /// Does the same as [`Self::store_of`]; if the memory cannot be read or no thread can be started, it warns that nothing is
    /// stored.
    pub(crate) fn store_where(&self, identity: u128, format: Option<MemoryFormat>) -> Option<ModelStore> {
        if format.is_none() {
            (self.folder.warn)(&format!(
                "nothing of this model is kept in {}: the memory of several devices, or of a GPU and the CPU together, cannot be read",
                self.folder.path.display()
            ));
        }
        let store = self.store_of(identity, &format?);
        store
            .inspect_err(|error| {
                (self.folder.warn)(&format!(
                    "nothing of this model is kept in {}: cannot start a thread: {error}",
                    self.folder.path.display()
                ));
            })
            .ok()
    }

    /// Returns the pages of a model with this memory format.
    ///
    /// # Errors
    /// Fails if the system starts no thread.
    pub(crate) fn store_of(&self, identity: u128, format: &MemoryFormat) -> io::Result<ModelStore> {
        ModelStore::new(Arc::clone(&self.folder), identity, format.clone())
    }
}

impl Folder {
    fn index(&self) -> MutexGuard<'_, Index> {
        // It is whole between two calls, which do not panic.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a model with this memory format.
    fn model_of(identity: u128, format: &MemoryFormat) -> u128 {
        let text = format!("{identity:032x} {}", format_text(format));
        let [high, low] = [0, 1].map(|seed| u128::from(checksum(text.as_bytes(), seed)));
        high << 64 | low
    }

    /// The folder of a model.
    fn path_of(&self, model: u128) -> PathBuf {
        self.path.join(format!("{model:032x}"))
    }

    fn warn_once(&self, path: &Path, error: &io::Error) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            (self.warn)(&format!(
                "cannot write to {}: {error}; prompts are computed as if they were not kept",
                path.display()
            ));
        }
    }
}

impl fmt::Debug for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Folder")
            .field("path", &self.path)
            .field("max_bytes", &self.max_bytes)
            .finish_non_exhaustive()
    }
}

/// Creates a folder that only its owner can read, because it holds users' prompts.
fn create_folder(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Returns the numbers that file names are made with: those of the last process, or new ones. Files with names from others are not found
/// again, and make room in time.
fn secret(folder: &Path) -> io::Result<[u64; 4]> {
    let path = folder.join(SECRET);
    let numbers = |bytes: &[u8]| {
        let (words, rest) = bytes.as_chunks::<8>();
        let words: Option<[[u8; 8]; 4]> = words.try_into().ok().filter(|_| rest.is_empty());
        words.map(|words| words.map(u64::from_le_bytes))
    };
    if let Some(secret) = fs::read(&path).ok().and_then(|bytes| numbers(&bytes)) {
        return Ok(secret);
    }
    let random = RandomState::new();
    let secret: [u64; 4] = std::array::from_fn(|n| random.hash_one(n));
    let file = private_file(&path)?;
    file.set_len(0)?;
    let bytes: Vec<u8> = secret.iter().flat_map(|word| word.to_le_bytes()).collect();
    io::Write::write_all(&mut &file, &bytes)?;
    file.sync_all()?;
    Ok(secret)
}

/// The name of a file in the folder of its model.
fn file_name(name: KeptName) -> String {
    let kind = KINDS[name.kind.index()];
    format!("{:032x}.{kind}", name.key.number())
}

/// Parses one of our file names.
fn name_of(file_name: &str) -> Option<KeptName> {
    let (key, kind) = file_name.split_once('.')?;
    let kind = KINDS.iter().position(|of| *of == kind)?;
    Some(KeptName {
        key: PageKey::from_number(hex(key)?),
        kind: KeptKind::ALL[kind],
    })
}

/// A number of 32 digits.
fn hex(text: &str) -> Option<u128> {
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

/// Lists the files of a folder in the order of their last use, removes those that a killed process left half written, and the oldest
/// beyond `max_bytes`. Files with other names, and unreadable ones, are ignored: it is a cache.
fn list(folder: &Path, max_bytes: u64) -> io::Result<Index> {
    let mut found = Vec::new();
    for of_model in fs::read_dir(folder)?.flatten() {
        let Some(model) = of_model.file_name().to_str().and_then(hex) else {
            continue;
        };
        let Ok(files) = fs::read_dir(of_model.path()) else {
            continue;
        };
        if !of_model.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        // Another time, where they cannot be removed.
        let _ = remove_unfinished(&of_model.path());
        for file in files.flatten() {
            let file_name = file.file_name();
            let metadata = file.metadata();
            let (Some(file_name), Ok(metadata)) = (file_name.to_str(), metadata) else {
                continue;
            };
            if !metadata.is_file() {
                continue;
            }
            if let Some(name) = name_of(file_name) {
                let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                found.push((used, EntryName { model, name }, metadata.len()));
            }
        }
    }
    found.sort_by_key(|&(used, ..)| used);
    let mut index = Index::default();
    for (used, name, n_bytes) in found {
        index.insert(name, n_bytes, used);
    }
    while let Some(oldest) = index.oldest_beyond(max_bytes) {
        let path = (folder.join(format!("{:032x}", oldest.model))).join(file_name(oldest.name));
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => index.remove(&oldest),
        }
    }
    Ok(index)
}
