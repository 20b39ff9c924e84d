//! [`PulledModels`]: the models that clients have downloaded into a models folder.
//!
//! Their names are those of the Hub and of Ollama's registry. They are in hidden folders of the folder, in
//! the forms of those programs, so that a removal never touches the caches of this machine's users.
//! Invariant: clients learn no paths.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use tokenmill::hub::{
    self, HubError, HubSettings, PullEvent, PullObserver, SourceName, SourceRemoval, ollama, stored_models,
};
use tokenmill_server::models::{FolderError, PullWatch};

use super::found_model::without_folders;
use crate::model_name::wishes;

/// Where downloads of the Hub and of Ollama's registry lie in a folder of models.
const HUB_FOLDER: &str = ".hub";
const OLLAMA_FOLDER: &str = ".ollama";

/// Holds where the models lie.
#[derive(Debug)]
pub(super) struct PulledModels {
    settings: HubSettings,
    is_managed: bool,
}

impl PulledModels {
    pub(super) fn below(folder: &Path, settings: HubSettings, is_managed: bool) -> Self {
        Self {
            settings: HubSettings {
                cache: folder.join(HUB_FOLDER),
                ollama_models: folder.join(OLLAMA_FOLDER),
                ..settings
            },
            is_managed,
        }
    }

    /// Says whether clients may download and remove models.
    pub(super) fn is_managed(&self) -> bool {
        self.is_managed
    }

    /// Lists the models, each with its path. If several commits of one are there, the one that was used last counts.
    pub(super) fn found(&self) -> Vec<(SourceName, PathBuf)> {
        let of_hub = stored_models(&self.settings).unwrap_or_else(|error| {
            tracing::warn!("downloaded models cannot be listed: {error}");
            Vec::new()
        });
        let of_hub =
            (of_hub.into_iter()).map(|stored| (SourceName::Hub(stored.name), stored.last_used, stored.path));
        let of_ollama = (ollama::stored_models(&self.settings).into_iter()).map(|stored| {
            (
                SourceName::Ollama(stored.name),
                stored.last_used,
                stored.model.path,
            )
        });
        let mut newest = BTreeMap::new();
        for (name, last_used, path) in of_hub.chain(of_ollama) {
            let entry = newest.entry(name.shown());
            let (_, used_before, found) = entry.or_insert_with(|| (name, last_used, path.clone()));
            if *used_before < last_used {
                (*used_before, *found) = (last_used, path);
            }
        }
        (newest.into_values())
            .map(|(name, _, path)| (name, path))
            .collect()
    }

    /// Downloads a model, unless another one `is_taken` by the name that it would be served under.
    ///
    /// # Errors
    /// Fails if the name is taken, and if the model cannot be downloaded.
    pub(super) fn pull(
        &self,
        name: &str,
        watch: &dyn PullWatch,
        is_taken: impl Fn(&str) -> bool,
    ) -> Result<(), FolderError> {
        let source = self.source_of(name)?;
        let observer = Observer(watch);
        let plan = source.plan(&wishes(), &self.settings, &observer);
        let plan = plan.map_err(|error| self.error(&error))?;
        let served = plan.full_name().shown();
        if is_taken(&served) {
            return Err(FolderError::Refused {
                reason: format!("another model of this server is called `{served}`; it was not downloaded"),
            });
        }
        let pulled = plan.fetch(&self.settings, &observer);
        pulled.map(drop).map_err(|error| self.error(&error))
    }

    /// Parses the name of a model to download.
    fn source_of(&self, name: &str) -> Result<SourceName, FolderError> {
        // Clients of Ollama leave the tag `latest` out.
        let marked = if name.contains([':', '/']) {
            name.to_owned()
        } else {
            format!("ollama:{name}")
        };
        marked.parse::<SourceName>().map_err(|error| self.error(&error))
    }

    /// Removes the remains of interrupted downloads of a name. Returns whether there were any; a text that is not a name has none.
    ///
    /// # Errors
    /// Fails if they cannot be removed, also because a download runs.
    pub(super) fn remove_partial(&self, name: &str) -> Result<bool, FolderError> {
        let Ok(source) = self.source_of(name) else {
            return Ok(false);
        };
        let removed = source.remove_interrupted(&self.settings, &Impatient);
        removed.map_err(|error| self.removal_error(&error))
    }

    /// Removes a model.
    ///
    /// # Errors
    /// Fails if it cannot be removed.
    pub(super) fn remove(&self, name: &SourceName) -> Result<(), FolderError> {
        let name = match name {
            // Without a type a name means all of a repository, and the models of other types have names of their own.
            SourceName::Hub(name) if name.wanted().is_none() => {
                SourceName::Hub(name.with_wanted(hub::SAFETENSORS))
            }
            name => name.clone(),
        };
        let removal = SourceRemoval::of(&name, &self.settings).map_err(|error| self.error(&error))?;
        removal
            .apply(&Impatient)
            .map_err(|error| self.removal_error(&error))
    }

    fn removal_error(&self, error: &HubError) -> FolderError {
        match error {
            HubError::Cancelled => FolderError::Busy {
                reason: "a download of this model or its repository runs; remove it afterwards",
            },
            error => self.error(error),
        }
    }

    /// Says for clients why a model was not downloaded or removed.
    fn error(&self, error: &HubError) -> FolderError {
        let HubSettings {
            cache, ollama_models, ..
        } = &self.settings;
        let reason = without_folders(error.to_string(), &[cache.clone(), ollama_models.clone()]);
        match error {
            HubError::BadName { .. }
            | HubError::Offline { .. }
            | HubError::NotFound { .. }
            | HubError::NoRevision { .. }
            | HubError::NoSuchType { .. }
            | HubError::SeveralOfType { .. }
            | HubError::NothingToOpen { .. }
            | HubError::NothingFits { .. }
            | HubError::MissingPart { .. }
            | HubError::Gated { .. }
            | HubError::NotStored { .. }
            // The name leads to a file that is not there.
            | HubError::Refused { status: 404, .. } => FolderError::Refused { reason },
            error if error.is_of_full_disk() => FolderError::Full { reason },
            _ => FolderError::Failed { reason },
        }
    }
}

/// Ends a removal that would wait for a download.
struct Impatient;

impl PullObserver for Impatient {
    fn event(&self, _event: PullEvent<'_>) {}

    fn is_cancelled(&self) -> bool {
        true
    }
}

/// Passes the events of a download to a watcher.
struct Observer<'a>(&'a dyn PullWatch);

impl PullObserver for Observer<'_> {
    fn event(&self, event: PullEvent<'_>) {
        match event {
            PullEvent::Progress {
                done_bytes,
                total_bytes,
            } => self.0.progress(done_bytes, total_bytes),
            PullEvent::Waiting { file } => {
                let status = format!("waiting: another program downloads {file}");
                self.0.status(&status);
            }
            PullEvent::Retrying { reason, pause } => {
                let status = format!("{reason}; trying again in {:.0} s", pause.as_secs_f64());
                self.0.status(&status);
            }
            PullEvent::Restarting { file, reason } => {
                self.0.status(&format!("{reason}; {file} is downloaded again"));
            }
            _ => {}
        }
    }

    fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}
