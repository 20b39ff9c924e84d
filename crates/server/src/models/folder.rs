//! [`ModelFolder`]: a folder whose models come and go while it is served.
//!
//! Invariants: a folder is read at most once a second, by one thread apart from those of connections, even if
//! the requests that caused it are gone; a request for a known model that can be loaded waits for none of it.

use std::{
    fmt,
    sync::{Arc, PoisonError, Weak},
    time::{Duration, Instant},
};

use tokio::{
    spawn,
    sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};

use super::{FileStamp, Inner, Kind, Many, ModelSpec, Models, catalog::Looked, status::Doing};
use crate::requests::off_thread::off_thread;

/// How long the contents that were read count as current.
const PAUSE: Duration = Duration::from_secs(1);

/// Longest wait of a request for the contents: a file system may hang.
const PATIENCE: Duration = Duration::from_secs(5);

/// Downloads for clients at a time.
const MAX_PULLS: usize = 2;

/// How long files stay as they are before a model is loaded from them in the place of one that answers: they may be half written.
const SETTLED: Duration = Duration::from_secs(2);

/// Says which models are in a folder now.
pub trait ModelFolder: fmt::Debug + Send + Sync {
    /// The models, each under the name that it had before and with the stamps that its files have now.
    ///
    /// # Errors
    /// Why the folder cannot be read, for the operator; the served models then stay.
    fn models(&self) -> Result<Vec<ModelSpec>, String>;

    /// Returns the interface through which clients change the folder; `None` if the operator does not allow it.
    fn manager(self: Arc<Self>) -> Option<Arc<dyn FolderManager>> {
        None
    }
}

/// The reason, in words for clients, why a folder of models was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FolderError {
    /// The request asks for something that cannot be done: the name is wrong or taken, or the model must not be touched.
    #[error("{reason}")]
    Refused {
        /// The fault in the request.
        reason: String,
    },
    /// A download is running that has to end first.
    #[error("{reason}")]
    Busy {
        /// The running work.
        reason: &'static str,
    },
    /// The disk has no room for the model.
    #[error("{reason}")]
    Full {
        /// The room that is needed.
        reason: String,
    },
    /// The request is in order, but the network, the other server or the disk failed.
    #[error("{reason}")]
    Failed {
        /// The failure.
        reason: String,
    },
}

/// Downloads models into a folder and removes them, for clients. The calls come from threads of their own and may take long.
pub trait FolderManager: fmt::Debug + Send + Sync {
    /// Downloads a model, which is served after the next look through the folder.
    ///
    /// # Errors
    /// Fails if another model has its name, and if it cannot be downloaded.
    fn pull(&self, name: &str, watch: &dyn PullWatch) -> Result<(), FolderError>;

    /// Removes the files of the model that is served under this name.
    ///
    /// # Errors
    /// Fails if it cannot be removed.
    fn remove(&self, name: &str) -> Result<(), FolderError>;

    /// Returns whether the model that is served under this name was downloaded by [`Self::pull`].
    fn has_pulled(&self, name: &str) -> bool;

    /// Removes the files of interrupted downloads of a name. Returns whether there were any.
    ///
    /// # Errors
    /// Fails if they cannot be removed, for example because a download of that name runs.
    fn remove_partial(&self, name: &str) -> Result<bool, FolderError>;
}

/// Watches a download.
pub trait PullWatch: Sync {
    /// Receives the bytes that have arrived, and the bytes of all files.
    fn progress(&self, done_bytes: u64, total_bytes: u64);

    /// Receives other news, in words.
    fn status(&self, status: &str);

    /// Says whether the download is to end early.
    fn is_cancelled(&self) -> bool;
}

/// The files of a model that is loaded.
#[derive(Debug)]
pub(super) struct LoadedFiles {
    stamps: Vec<FileStamp>,
    /// Other files found in their place, and when they were first found.
    others: Option<(Vec<FileStamp>, Instant)>,
}

impl LoadedFiles {
    /// Whether files in their place have been the same for a while. Their own times do not say it: files that are moved keep theirs.
    fn have_settled(&mut self, others: &[FileStamp]) -> bool {
        match &self.others {
            Some((found, since)) if found == others => since.elapsed() >= SETTLED,
            _ => {
                self.others = Some((others.to_vec(), Instant::now()));
                false
            }
        }
    }
}

/// A folder, and when it was looked through last. The lock is held by whoever looks through it.
#[derive(Debug)]
pub(super) struct Folder {
    models: Arc<dyn ModelFolder>,
    /// Places of downloads for clients.
    pulls: Arc<Semaphore>,
    last_look: Arc<Mutex<Option<Look>>>,
}

/// One look through a folder.
#[derive(Clone, Copy, Debug)]
struct Look {
    began: Instant,
    ended: Instant,
}

impl Look {
    /// How long the next one has to wait.
    fn pause(self) -> Duration {
        PAUSE.saturating_sub(self.ended.elapsed())
    }
}

impl Folder {
    pub(super) fn new(models: Box<dyn ModelFolder>) -> Self {
        Self {
            models: models.into(),
            pulls: Arc::new(Semaphore::new(MAX_PULLS)),
            last_look: Arc::default(),
        }
    }
}

impl Models {
    /// Looks through the folder of models, if there is one and that was not done just now. Returns when that is done, or after a while: what is
    /// found later is served from then on.
    pub(crate) async fn look_through_folder(&self) {
        self.begin_look();
        let Some(folder) = self.folder() else { return };
        let patience = self.longest_wait().map_or(PATIENCE, |limit| limit.min(PATIENCE));
        drop(timeout(patience, folder.last_look.lock()).await);
    }

    /// Begins a look through the folder of models, if there is one, that was not done just now, and is not being done.
    pub(super) fn begin_look(&self) {
        let Some(folder) = self.folder() else { return };
        if let Ok(last) = Arc::clone(&folder.last_look).try_lock_owned()
            && last.is_none_or(|look| look.pause().is_zero())
        {
            self.begin_held_look(folder, last);
        }
    }

    /// The same, by whoever holds the lock.
    fn begin_held_look(&self, folder: &Folder, last: OwnedMutexGuard<Option<Look>>) {
        let inner = Arc::downgrade(&self.inner);
        spawn(look_through(Arc::clone(&folder.models), last, inner));
    }

    /// Waits, at most for `patience`, for a look through the folder of models that began after this was called: what it found holds
    /// whatever was found before.
    pub(crate) async fn look_anew(&self, patience: Duration) {
        let Some(folder) = self.folder() else { return };
        let asked = Instant::now();
        let look = async {
            loop {
                let last = Arc::clone(&folder.last_look).lock_owned().await;
                match *last {
                    Some(look) if look.began >= asked => return,
                    Some(look) if !look.pause().is_zero() => {
                        drop(last);
                        sleep(look.pause()).await;
                    }
                    // With the lock that is held: given back, it would go to another that waits for it.
                    _ => self.begin_held_look(folder, last),
                }
            }
        };
        let _too_late = timeout(patience.min(PATIENCE), look).await;
    }

    /// Returns the manager of the folder of models if clients may change it.
    pub(crate) fn folder_manager(&self) -> Option<Arc<dyn FolderManager>> {
        Arc::clone(&self.folder()?.models).manager()
    }

    /// Returns a place for a download; `None` while there is none.
    pub(crate) fn place_to_pull(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.folder()?.pulls).try_acquire_owned().ok()
    }

    fn folder(&self) -> Option<&Folder> {
        self.many()?.folder.as_ref()
    }
}

/// Reads a folder, and serves its models. Apart from the request that asks for it, which may go away before that is done.
async fn look_through(
    models: Arc<dyn ModelFolder>,
    mut last: OwnedMutexGuard<Option<Look>>,
    inner: Weak<Inner>,
) {
    let began = Instant::now();
    let found = off_thread(move || models.models()).await;
    *last = Some(Look {
        began,
        ended: Instant::now(),
    });
    let inner = inner.upgrade();
    let Some(Kind::Many(many)) = inner.as_deref().map(|inner| &inner.kind) else {
        return;
    };
    match found {
        Ok(Ok(found)) => {
            many.take_in(found);
            many.dismiss_replaced();
        }
        Ok(Err(reason)) => tracing::warn!("the folder of models cannot be searched: {reason}"),
        Err(error) => tracing::error!(%error, "searching the folder of models failed"),
    }
}

impl Many {
    /// Serves the present models of the folder.
    pub(super) fn take_in(&self, found: Vec<ModelSpec>) {
        let mut catalog = self.catalog.write().unwrap_or_else(PoisonError::into_inner);
        let Some(Looked {
            catalog: new,
            changed,
        }) = catalog.with_folder(found)
        else {
            return;
        };
        let now = Instant::now();
        let n_before = catalog.specs().len();
        for spec in &new.specs()[n_before..] {
            tracing::info!(model = spec.name(), "found in the folder of models");
            // Before its place is known to others.
            self.lock().add(spec.rules(self.keep_alive), now);
            self.add_reading();
        }
        for (idx, spec) in catalog.specs().iter().enumerate() {
            match (catalog.is_gone(idx), new.is_gone(idx)) {
                (false, true) => {
                    tracing::info!(model = spec.name(), "not in the folder of models any more");
                }
                (true, false) => tracing::info!(model = spec.name(), "in the folder of models again"),
                _ => {}
            }
        }
        for &idx in &changed {
            self.forget_reading(idx);
            self.lock().changed(idx);
        }
        let unseen = changed.into_iter().chain(n_before..new.specs().len());
        let unseen: Vec<usize> = unseen.collect();
        *catalog = Arc::new(new);
        drop(catalog);
        self.have_seen(unseen);
        self.bell.notify_all();
    }
}

impl Many {
    /// Notes that a model is loaded from its files as they are now.
    pub(super) fn note_files(&self, idx: usize) {
        let stamps = self.spec(idx).stamps.clone();
        let mut loaded = self.loaded_files.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.insert(idx, LoadedFiles { stamps, others: None });
    }

    /// Has models unloaded, once no request runs on them, whose files have been others for a while than those they were loaded from: the next
    /// requests wait for that, and have these.
    fn dismiss_replaced(&self) {
        let catalog = self.catalog();
        let mut loaded = self.loaded_files.lock().unwrap_or_else(PoisonError::into_inner);
        let mut registry = self.lock();
        for (&idx, files) in loaded.iter_mut() {
            let spec = &catalog.specs()[idx];
            let is_other = spec.is_of_folder && !catalog.is_gone(idx) && spec.stamps != files.stamps;
            if !is_other || !files.have_settled(&spec.stamps) {
                continue;
            }
            if registry.status(idx, Instant::now()).doing == Doing::Loaded {
                tracing::info!(
                    model = spec.name(),
                    "its files were replaced: unloaded when no request runs on it"
                );
                files.stamps.clone_from(&spec.stamps);
                registry.dismiss(idx);
                if spec.is_pinned {
                    registry.preload(idx, Instant::now());
                }
            }
        }
        drop(registry);
        self.bell.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use super::{
        super::{ModelLimits, Role, catalog::tests::specs},
        *,
    };
    use crate::ServerConfig;

    #[test]
    fn models_that_come_meanwhile_do_not_confuse_who_looks() {
        const N_MODELS: usize = 400;
        let models = Models::new(specs(&["first"]), ModelLimits::default(), ServerConfig::default());
        let models = models.expect("it has a name");
        let many = models.many().expect("it may have several");
        let names: Vec<String> = (0..N_MODELS).map(|idx| format!("m{idx}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for n_models in 1..=N_MODELS {
                    many.take_in(specs(&names[..n_models]));
                }
                is_over.store(true, Ordering::Release);
            });
            while !is_over.load(Ordering::Acquire) {
                many.in_order_for(Role::Embedding);
                many.default_of(Role::Rank);
                assert_eq!(many.find("first"), Some(0));
                assert_eq!(many.find("owner/none"), None);
            }
        });
        assert_eq!(models.names().len(), N_MODELS + 1);
    }
}
