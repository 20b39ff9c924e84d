//! [`Fetch`]: from what stands for a model to its path, with a download in between where it is a name.
//!
//! Separate from the model because a draft model is named alike. Invariant: the interpreter is free while a server is asked; Ctrl-C and an
//! exception of `progress` end the wait within a tenth of a second and the download soon after it.

use std::{
    env,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
};

use pyo3::prelude::*;
use tokenmill::{
    hub::{HubSettings, PullEvent, PullObserver, PullWishes, SourceName},
    machine::machine_bytes,
};

use crate::{error, wait::BETWEEN_SIGNALS};

/// Permissions and progress of a download.
pub(crate) struct Fetch<'a, 'py> {
    /// Whether anything may.
    pub(crate) download: bool,
    /// Whether no server is asked.
    pub(crate) offline: bool,
    /// Called with the bytes that are there and those of all files.
    pub(crate) progress: Option<&'a Bound<'py, PyAny>>,
}

impl Fetch<'_, '_> {
    /// The path of a model that is a path or a name, and whether its image encoder and its MTP layers are to come.
    pub(crate) fn path(
        &self,
        py: Python<'_>,
        model: PathBuf,
        with_projector: bool,
        with_nextn: bool,
    ) -> PyResult<PathBuf> {
        let Some(name) = SourceName::of_path(&model).map_err(error::load)? else {
            return Ok(model);
        };
        let mut settings = HubSettings::from_variables(|variable| env::var(variable).ok());
        settings.is_offline |= self.offline;
        let mut wishes = PullWishes::default();
        wishes.memory_bytes = machine_bytes();
        wishes.with_projector = with_projector;
        wishes.with_nextn = with_nextn;
        match py.detach(|| name.find_stored(&wishes, &settings)) {
            Ok(Some(found)) => return Ok(found.path),
            Err(error) if settings.is_offline || !self.download => return Err(error::load(error)),
            // Another type may fit.
            Ok(None) | Err(_) => {}
        }
        if !self.download && !settings.is_offline {
            return Err(error::LoadError::new_err(format!(
                "`{name}` is not on this machine; download=True downloads it"
            )));
        }
        self.pull(py, name, wishes, settings)
    }

    /// Downloads on a thread of its own, so that signals are looked at meanwhile.
    fn pull(
        &self,
        py: Python<'_>,
        name: SourceName,
        wishes: PullWishes,
        settings: HubSettings,
    ) -> PyResult<PathBuf> {
        let watcher = Arc::new(Watcher::default());
        let (sender, mut receiver) = mpsc::channel();
        let observer = Arc::clone(&watcher);
        let downloading = thread::Builder::new().spawn(move || {
            let plan = name.plan(&wishes, &settings, &*observer);
            let pulled = plan.and_then(|plan| plan.fetch(&settings, &*observer));
            // No caller waits after Ctrl-C.
            let _unheard = sender.send(pulled);
        });
        downloading.map_err(|error| error::LoadError::new_err(format!("cannot start a thread: {error}")))?;
        let mut told = None;
        loop {
            let receiver = &mut receiver;
            let result = py.detach(move || receiver.recv_timeout(BETWEEN_SIGNALS));
            let goes_on = py.check_signals().and_then(|()| self.tell(&watcher, &mut told));
            if let Err(raised) = goes_on {
                watcher.is_cancelled.store(true, Ordering::Relaxed);
                return Err(raised);
            }
            match result {
                Ok(pulled) => return pulled.map(|model| model.path).map_err(error::load),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(error::LoadError::new_err("the download failed without a reason"));
                }
            }
        }
    }

    /// Calls `progress` where there is something new.
    fn tell(&self, watcher: &Watcher, told: &mut Option<(u64, u64)>) -> PyResult<()> {
        let total_bytes = watcher.total_bytes.load(Ordering::Relaxed);
        let now = (watcher.done_bytes.load(Ordering::Relaxed), total_bytes);
        let Some(progress) = self.progress.filter(|_| total_bytes > 0 && *told != Some(now)) else {
            return Ok(());
        };
        *told = Some(now);
        progress.call1(now).map(|_| ())
    }
}

/// Keeps what a download tells, and ends it.
#[derive(Default)]
struct Watcher {
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
    is_cancelled: AtomicBool,
}

impl PullObserver for Watcher {
    fn event(&self, event: PullEvent<'_>) {
        if let PullEvent::Progress {
            done_bytes,
            total_bytes,
        } = event
        {
            self.done_bytes.store(done_bytes, Ordering::Relaxed);
            self.total_bytes.store(total_bytes, Ordering::Relaxed);
        }
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }
}
