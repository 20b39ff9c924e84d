//! [`Cache`]: the folders of `huggingface_hub`'s cache.
//!
//! Other programs read and write the same folders. Invariant: names, links, references and locks follow
//! `huggingface_hub`.
//!
//! ```text
//! models--OWNER--REPOSITORY/blobs/ETAG                  a file's bytes
//! models--OWNER--REPOSITORY/refs/REVISION               the commit of a branch or a tag
//! models--OWNER--REPOSITORY/snapshots/COMMIT/PATH       -> ../../blobs/ETAG
//! models--OWNER--REPOSITORY/.tokenmill/COMMIT.mmproj    the path of the image encoder, or nothing; by this crate only
//! .locks/models--OWNER--REPOSITORY/ETAG.lock            locked while the blob is written
//! .locks/models--OWNER--REPOSITORY/COMMIT.lock          locked while a snapshot's links are made; by this crate only
//! .locks/models--OWNER--REPOSITORY/pull.lock            shared by running pulls, exclusive to a removal; by this crate only
//! ```
//!
//! Source: <https://huggingface.co/docs/hub/local-cache>.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use tokenmill_gguf::free_bytes;

use crate::{
    HubError, ModelName, PullEvent, PullObserver, api::is_commit, incomplete::INCOMPLETE,
    model_type::GgufName, replace::replace,
};

/// Suffix after the etag in the name of a blob that this program has not completed yet.
const OWN_INCOMPLETE: &str = ".tokenmill.incomplete";

/// Contents of the tag that marks the folder as a cache for backup programs.
const TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n# This folder is a cache of models.\n";

/// The folders of one repository in the cache.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    root: PathBuf,
    folder_name: String,
}

/// A file of a snapshot.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Its path in the snapshot, with slashes.
    pub(crate) path: String,
    pub(crate) n_bytes: u64,
    /// Path of the link, or of the file itself on systems without links.
    pub(crate) pointer: PathBuf,
}

impl Entry {
    /// Returns whether it has the name of a GGUF file.
    pub(crate) fn is_gguf(&self) -> bool {
        GgufName::of(&self.path).is_some()
    }
}

impl Cache {
    pub(crate) fn of(root: &Path, name: &ModelName) -> Self {
        Self {
            root: root.to_owned(),
            folder_name: name.folder_name(),
        }
    }

    /// Returns the repository's folder.
    pub(crate) fn folder(&self) -> PathBuf {
        self.root.join(&self.folder_name)
    }

    /// Returns the folder of the files' bytes.
    pub(crate) fn blobs(&self) -> PathBuf {
        self.folder().join("blobs")
    }

    pub(crate) fn blob(&self, etag: &str) -> PathBuf {
        self.blobs().join(etag)
    }

    /// Returns the path of a blob until it is complete. Other programs use other names, and do not continue
    /// this program's downloads.
    pub(crate) fn incomplete(&self, etag: &str) -> PathBuf {
        self.blobs().join(format!("{etag}{OWN_INCOMPLETE}"))
    }

    /// Returns whether a file is an incomplete blob of this program.
    pub(crate) fn is_own_incomplete(path: &Path) -> bool {
        path.to_string_lossy().ends_with(OWN_INCOMPLETE)
    }

    /// Returns the etag of a blob, from the name of its complete or incomplete file. `huggingface_hub` names an incomplete blob
    /// `ETAG.incomplete` or `ETAG.HEX.incomplete`.
    pub(crate) fn etag_of(path: &Path) -> Option<&str> {
        let name = path.file_name()?.to_str()?;
        if let Some(etag) = name.strip_suffix(OWN_INCOMPLETE) {
            return Some(etag);
        }
        let Some(begin) = name.strip_suffix(INCOMPLETE) else {
            return Some(name);
        };
        let is_hex = |end: &str| end.bytes().all(|byte| byte.is_ascii_hexdigit());
        match begin.rsplit_once('.') {
            Some((etag, end)) if is_hex(end) => Some(etag),
            _ => Some(begin),
        }
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder().join("snapshots").join(commit)
    }

    /// Returns the folder of the repository's locks.
    pub(crate) fn locks(&self) -> PathBuf {
        self.root.join(".locks").join(&self.folder_name)
    }

    /// Creates the folders that a download writes to.
    pub(crate) fn prepare(&self) -> Result<(), HubError> {
        for folder in [self.blobs(), self.locks()] {
            fs::create_dir_all(&folder).map_err(HubError::file("write", folder))?;
        }
        let tag = self.root.join("CACHEDIR.TAG");
        if !tag.exists() {
            // The cache also works without it.
            let _unwritten = fs::write(&tag, TAG);
        }
        Ok(())
    }

    fn projector_note(&self, commit: &str) -> PathBuf {
        (self.folder().join(".tokenmill")).join(format!("{commit}.mmproj"))
    }

    /// Records the path of the repository's image encoder at a commit, so that it is known without a server.
    pub(crate) fn note_projector(&self, commit: &str, path: Option<&str>) -> Result<(), HubError> {
        let aside = format!("{commit}.tmp");
        replace(
            &self.projector_note(commit),
            &aside,
            path.unwrap_or_default().as_bytes(),
        )
    }

    /// Returns the recorded path of the repository's image encoder at a commit, empty if it has none; `None`
    /// if nothing was recorded.
    pub(crate) fn noted_projector(&self, commit: &str) -> Option<String> {
        fs::read_to_string(self.projector_note(commit)).ok()
    }

    /// Removes the record for a deleted commit.
    pub(crate) fn forget_projector(&self, commit: &str) -> Result<(), HubError> {
        let note = self.projector_note(commit);
        match fs::remove_file(&note) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(HubError::file("remove", &note)(error))
            }
            _ => Ok(()),
        }
    }

    /// Locks a blob by its etag, or the links of a snapshot by its commit; see [`lock_file`].
    pub(crate) fn lock(&self, what: &str, waiter: Waiter<'_>) -> Result<Option<File>, HubError> {
        lock_file(&self.locks().join(format!("{what}.lock")), Hold::Alone, waiter)
    }

    /// Locks the repository for a pull ([`Hold::Shared`]) or for a removal ([`Hold::Alone`]). A pull holds no blob's lock between two
    /// files, and its complete blobs are not linked yet.
    pub(crate) fn lock_repository(&self, hold: Hold, waiter: Waiter<'_>) -> Result<Option<File>, HubError> {
        let locks = self.locks();
        fs::create_dir_all(&locks).map_err(HubError::file("write", &locks))?;
        lock_file(&locks.join("pull.lock"), hold, waiter)
    }

    /// Links a file of a snapshot to its blob.
    pub(crate) fn link(&self, commit: &str, path: &str, etag: &str) -> Result<(), HubError> {
        let pointer = self.snapshot(commit).join(path);
        // On systems without links, the file itself is in the snapshot, and there is no blob.
        if !self.blob(etag).exists() && !pointer.is_symlink() && pointer.is_file() {
            return Ok(());
        }
        let folder = pointer.parent().expect("a file of a snapshot lies in a folder");
        fs::create_dir_all(folder).map_err(HubError::file("write", folder))?;
        let up = "../".repeat(path.split('/').count() + 1);
        let target = format!("{up}blobs/{etag}");
        if fs::read_link(&pointer).is_ok_and(|found| found == Path::new(&target)) {
            return Ok(());
        }
        // Renamed into place, so that other programs see either the old or the new link.
        let aside = folder.join(format!(".{etag}.link"));
        let _left_over = fs::remove_file(&aside);
        place(Path::new(&target), &self.blob(etag), &aside)
            .and_then(|()| fs::rename(&aside, &pointer))
            .map_err(HubError::file("write", &pointer))
    }

    /// Writes the commit of a branch or a tag.
    pub(crate) fn write_ref(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if revision == commit || self.read_ref(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.folder().join("refs").join(revision);
        replace(&path, &format!(".{commit}.tmp"), commit.as_bytes())
    }

    /// Returns the commit of a branch or a tag.
    pub(crate) fn read_ref(&self, revision: &str) -> Option<String> {
        let commit = fs::read_to_string(self.folder().join("refs").join(revision)).ok()?;
        let commit = commit.trim();
        is_commit(commit).then(|| commit.to_owned())
    }

    /// Returns all references with their commits.
    pub(crate) fn refs(&self) -> Vec<(String, String)> {
        let folder = self.folder().join("refs");
        let names = files_below(&folder).into_iter().map(|(path, _)| path);
        names
            .filter_map(|name| Some((name.clone(), self.read_ref(&name)?)))
            .collect()
    }

    /// Returns the commits of the snapshots, the newest folder first.
    pub(crate) fn commits(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder().join("snapshots"))
            .into_iter()
            .flatten();
        let mut commits: Vec<_> = entries
            .filter_map(Result::ok)
            .filter_map(|entry| {
                let changed = entry.metadata().ok()?.modified().ok()?;
                Some((
                    changed,
                    entry
                        .file_name()
                        .into_string()
                        .ok()
                        .filter(|name| is_commit(name))?,
                ))
            })
            .collect();
        commits.sort();
        commits.into_iter().rev().map(|(_, commit)| commit).collect()
    }

    /// Returns the files of a snapshot whose blobs exist.
    pub(crate) fn entries(&self, commit: &str) -> Vec<Entry> {
        let mut entries: Vec<Entry> = files_below(&self.snapshot(commit))
            .into_iter()
            .filter_map(|(path, pointer)| {
                let metadata = fs::metadata(&pointer).ok().filter(fs::Metadata::is_file)?;
                let n_bytes = metadata.len();
                Some(Entry {
                    path,
                    n_bytes,
                    pointer,
                })
            })
            .collect();
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        entries
    }

    /// Returns the blob to which a file of a snapshot links; `None` if it is not a link, or links elsewhere.
    pub(crate) fn blob_of(&self, pointer: &Path) -> Option<PathBuf> {
        let target = fs::read_link(pointer).ok()?;
        let is_blob = target.parent()?.file_name()? == "blobs";
        is_blob.then(|| target.file_name().map(|name| self.blobs().join(name)))?
    }
}

/// Returns the files and links below a folder, with their relative paths.
fn files_below(folder: &Path) -> Vec<(String, PathBuf)> {
    // Models rarely have nested folders, and a hostile one has no end.
    const MAX_DEPTH: usize = 8;
    let mut files = Vec::new();
    let mut folders = vec![(String::new(), folder.to_owned(), 0)];
    while let Some((prefix, folder, depth)) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok) {
            let (Ok(kind), Ok(name)) = (entry.file_type(), entry.file_name().into_string()) else {
                continue;
            };
            let path = format!("{prefix}{name}");
            if kind.is_dir() && depth < MAX_DEPTH {
                folders.push((format!("{path}/"), entry.path(), depth + 1));
            } else if !kind.is_dir() {
                files.push((path, entry.path()));
            }
        }
    }
    files
}

#[cfg(unix)]
fn place(target: &Path, _blob: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

/// The waiter for a lock, and the model's file that it waits for, if any.
#[derive(Clone, Copy)]
pub(crate) struct Waiter<'a> {
    pub(crate) observer: &'a dyn PullObserver,
    pub(crate) file: Option<&'a str>,
}

/// The other holders that a lock allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// None.
    Alone,
    /// Other shared ones.
    Shared,
}

/// Creates and locks a file. If another program holds it, the waiter is notified once and may give up. The
/// lock ends with the returned file. On a file system without locks there is none.
pub(crate) fn lock_file(path: &Path, hold: Hold, waiter: Waiter<'_>) -> Result<Option<File>, HubError> {
    const PAUSE: Duration = Duration::from_millis(100);
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path);
    let file = file.map_err(HubError::file("write", path))?;
    let mut untold = waiter.file;
    loop {
        let locked = match hold {
            Hold::Alone => file.try_lock(),
            Hold::Shared => file.try_lock_shared(),
        };
        match locked {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                return Ok(None);
            }
            Err(TryLockError::Error(error)) => return Err(HubError::file("lock", path)(error)),
        }
        if let Some(file) = untold.take() {
            waiter.observer.event(PullEvent::Waiting { file });
        }
        if waiter.observer.is_cancelled() {
            return Err(HubError::Cancelled);
        }
        thread::sleep(PAUSE);
    }
}

/// Many accounts on Windows cannot create links; then the file itself is placed in the snapshot, as
/// `huggingface_hub` does.
#[cfg(windows)]
fn place(target: &Path, blob: &Path, link: &Path) -> io::Result<()> {
    let target = target.to_string_lossy().replace('/', "\\");
    std::os::windows::fs::symlink_file(target, link).or_else(|_| fs::rename(blob, link))
}

/// Checks that a folder's disk has room for this many more bytes. If the system does not report it, the check
/// passes.
///
/// # Errors
/// [`HubError::NoSpace`].
pub(crate) fn check_room(folder: &Path, needed_bytes: u64) -> Result<(), HubError> {
    match free_bytes(folder) {
        Some(free_bytes) if free_bytes < needed_bytes => Err(HubError::NoSpace {
            folder: folder.to_owned(),
            needed_bytes,
            free_bytes,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const COMMIT: &str = "0123456789012345678901234567890123456789";

    /// Gives up as soon as it would have to wait.
    #[derive(Default)]
    struct Impatient {
        is_told: AtomicBool,
    }

    impl PullObserver for Impatient {
        fn event(&self, event: PullEvent<'_>) {
            assert!(matches!(event, PullEvent::Waiting { file: "m" }), "{event:?}");
            self.is_told.store(true, Ordering::Relaxed);
        }

        fn is_cancelled(&self) -> bool {
            self.is_told.load(Ordering::Relaxed)
        }
    }

    fn cache(folder: &tempfile::TempDir) -> Cache {
        let cache = Cache::of(folder.path(), &"a/b".parse().unwrap());
        cache.prepare().unwrap();
        cache
    }

    #[test]
    #[cfg(unix)]
    fn links_are_relative_at_every_depth() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(&folder);
        fs::write(cache.blob("e"), "x").unwrap();
        for (path, target) in [("m", "../../blobs/e"), ("sub/m", "../../../blobs/e")] {
            cache.link(COMMIT, path, "e").unwrap();
            cache.link(COMMIT, path, "e").unwrap();
            let pointer = cache.snapshot(COMMIT).join(path);
            assert_eq!(fs::read_link(&pointer).unwrap(), Path::new(target));
            assert_eq!(fs::read_to_string(&pointer).unwrap(), "x");
            assert_eq!(cache.blob_of(&pointer), Some(cache.blob("e")));
        }
        let paths: Vec<String> = cache
            .entries(COMMIT)
            .into_iter()
            .map(|entry| entry.path)
            .collect();
        assert_eq!(paths, ["m", "sub/m"]);
        fs::remove_file(cache.blob("e")).unwrap();
        assert!(cache.entries(COMMIT).is_empty(), "a link to nothing is no file");
    }

    #[test]
    fn a_file_that_lies_in_a_snapshot_itself_is_left_there() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(&folder);
        let pointer = cache.snapshot(COMMIT).join("m");
        fs::create_dir_all(cache.snapshot(COMMIT)).unwrap();
        fs::write(&pointer, "x").unwrap();
        cache.link(COMMIT, "m", "e").unwrap();
        assert_eq!(fs::read_to_string(&pointer).unwrap(), "x");
    }

    #[test]
    fn references_name_commits() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(&folder);
        cache.write_ref("refs/pr/1", COMMIT).unwrap();
        assert_eq!(cache.refs(), [("refs/pr/1".to_owned(), COMMIT.to_owned())]);
        cache.write_ref(COMMIT, COMMIT).unwrap();
        assert_eq!(cache.refs().len(), 1);
        fs::write(cache.folder().join("refs/x"), "../../etc").unwrap();
        assert_eq!(cache.read_ref("x"), None);
    }

    #[test]
    fn a_lock_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(&folder);
        let waiter = |observer| Waiter {
            observer,
            file: Some("m"),
        };
        let impatient = Impatient::default();
        let first = cache.lock("e", waiter(&impatient)).unwrap();
        assert!(!impatient.is_told.load(Ordering::Relaxed), "it is free");
        let given_up = cache.lock("e", waiter(&impatient));
        assert!(matches!(given_up, Err(HubError::Cancelled)), "{given_up:?}");
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(300));
                drop(first);
            });
            cache.lock("e", waiter(&())).unwrap();
        });
    }
}
