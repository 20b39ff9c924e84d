//! [`SourceName`] and [`Plan`]: a model by name from either source, the Hugging Face Hub or Ollama's registry.
//!
//! Separate because commands do the same with both. Invariant: what could be a repository of the Hub is one.

use std::{fmt, path::Path, str::FromStr};

use tokenmill::hub::{
    self, HubError, HubSettings, ModelName, PullObserver, PullPlan, PullWishes, PulledModel, Removal,
    StoredProjector,
    ollama::{self, OllamaName, OllamaPlan, OllamaRemoval},
};

use crate::{failure::Failure, missing_model};

/// A model by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SourceName {
    Hub(ModelName),
    Ollama(OllamaName),
}

impl FromStr for SourceName {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        if OllamaName::is_marked(text) {
            return text.parse().map(Self::Ollama);
        }
        match OllamaName::of_short(text) {
            Some(name) if !ModelName::is_marked(text) => Ok(Self::Ollama(name)),
            _ => text.parse().map(Self::Hub),
        }
    }
}

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hub(name) => name.fmt(f),
            Self::Ollama(name) => name.fmt(f),
        }
    }
}

impl SourceName {
    /// Reads a name that is an argument of its own.
    ///
    /// # Errors
    /// What is no name, with the name that may be meant.
    pub(crate) fn of_argument(text: &str, settings: &HubSettings) -> Result<Self, Failure> {
        let path = Path::new(text);
        if text == "demo" {
            return Err(
                Failure::usage("`demo` is built in, and no model that is downloaded")
                    .hint("`tokenmill run demo TEXT` runs it"),
            );
        }
        let parsed: Result<Self, HubError> = text.parse();
        // A folder may be called like its owner and repository; what is pulled is the repository then.
        if path.is_file() || parsed.is_err() && path.exists() {
            return Err(
                Failure::usage(format!("`{text}` is on this machine, and no name of a model"))
                    .hint(format!("`tokenmill run {text} TEXT` runs it")),
            );
        }
        let error = match parsed {
            Ok(name) => return Ok(name),
            Err(error) => error,
        };
        let latest = OllamaName::of_short(&format!("{text}:latest"));
        let is_stored = |name: &OllamaName| matches!(ollama::find_stored(name, settings), Ok(Some(_)));
        match latest {
            Some(name) if is_stored(&name) => {
                Err(Failure::usage(error.to_string()).hint(format!("`{name}` is on this machine")))
            }
            Some(_) => Err(Failure::usage(error.to_string()).hint(missing_model::hint(path))),
            None => Err(error.into()),
        }
    }

    /// What the name is served under and shown as.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Hub(name) => name.to_string(),
            Self::Ollama(name) => name.short(),
        }
    }

    /// What went wrong with a model of this name, with what to do in the words of its source.
    pub(crate) fn failure(&self, error: HubError) -> Failure {
        match self {
            Self::Hub(_) => error.into(),
            Self::Ollama(_) => Failure::of_ollama(error),
        }
    }

    /// The model, if it is on this machine.
    ///
    /// # Errors
    /// As [`hub::find_stored`].
    pub(crate) fn find_stored(
        &self,
        wishes: &PullWishes,
        settings: &HubSettings,
    ) -> Result<Option<PulledModel>, HubError> {
        match self {
            Self::Hub(name) => hub::find_stored(name, wishes, settings),
            Self::Ollama(name) => ollama::find_stored(name, settings),
        }
    }

    /// What is known of the encoder of images of a model that [`Self::find_stored`] has found. Those of Ollama have what their manifests name.
    pub(crate) fn stored_projector(&self, model: &PulledModel, settings: &HubSettings) -> StoredProjector {
        match self {
            Self::Hub(name) => hub::stored_projector(name, model, settings),
            Self::Ollama(_) => StoredProjector::There,
        }
    }

    /// Asks the source, and says what a download would take.
    ///
    /// # Errors
    /// As [`hub::plan`].
    pub(crate) fn plan(
        &self,
        wishes: &PullWishes,
        settings: &HubSettings,
        observer: &dyn PullObserver,
    ) -> Result<Plan, HubError> {
        match self {
            Self::Hub(name) => hub::plan(name, wishes, settings, observer).map(Plan::Hub),
            Self::Ollama(name) => ollama::plan(name, settings, observer).map(Plan::Ollama),
        }
    }
}

/// What a download takes.
#[derive(Debug)]
pub(crate) enum Plan {
    Hub(PullPlan),
    Ollama(OllamaPlan),
}

impl Plan {
    /// What is downloaded, with its type.
    pub(crate) fn full_name(&self) -> SourceName {
        match self {
            Self::Hub(plan) => SourceName::Hub(plan.full_name()),
            Self::Ollama(plan) => SourceName::Ollama(plan.name().clone()),
        }
    }

    /// Why this file is taken, where the name does not say it.
    pub(crate) fn why(&self) -> Option<&str> {
        match self {
            Self::Hub(plan) => plan.why.as_deref(),
            Self::Ollama(_) => None,
        }
    }

    /// The file of layers for further tokens that comes with the model, and its bytes.
    pub(crate) fn nextn(&self) -> Option<&(String, u64)> {
        match self {
            Self::Hub(plan) => plan.nextn.as_ref(),
            Self::Ollama(_) => None,
        }
    }

    pub(crate) fn n_files(&self) -> usize {
        match self {
            Self::Hub(plan) => plan.n_files(),
            Self::Ollama(plan) => plan.n_files(),
        }
    }

    /// Bytes of all files.
    pub(crate) fn total_bytes(&self) -> u64 {
        match self {
            Self::Hub(plan) => plan.total_bytes,
            Self::Ollama(plan) => plan.total_bytes,
        }
    }

    /// Bytes that are to be downloaded.
    pub(crate) fn missing_bytes(&self) -> u64 {
        match self {
            Self::Hub(plan) => plan.missing_bytes,
            Self::Ollama(plan) => plan.missing_bytes,
        }
    }

    /// Those of them that are the encoder of images. Manifests of Ollama do not tell it from the weights.
    pub(crate) fn missing_projector_bytes(&self) -> u64 {
        match self {
            Self::Hub(plan) => plan.missing_projector_bytes,
            Self::Ollama(_) => 0,
        }
    }

    /// Hashes the files that are there, and removes damaged ones, which are missing then.
    ///
    /// # Errors
    /// As [`PullPlan::remove_damaged`].
    pub(crate) fn remove_damaged(
        &mut self,
        settings: &HubSettings,
        observer: &dyn PullObserver,
    ) -> Result<(), HubError> {
        match self {
            Self::Hub(plan) => plan.remove_damaged(settings, observer),
            Self::Ollama(plan) => plan.remove_damaged(settings, observer),
        }
    }

    /// Downloads what is missing.
    ///
    /// # Errors
    /// As [`PullPlan::fetch`].
    pub(crate) fn fetch(
        self,
        settings: &HubSettings,
        observer: &dyn PullObserver,
    ) -> Result<PulledModel, HubError> {
        match self {
            Self::Hub(plan) => plan.fetch(settings, observer),
            Self::Ollama(plan) => plan.fetch(settings, observer),
        }
    }
}

/// What the removal of a model takes away.
#[derive(Debug)]
pub(crate) enum AnyRemoval {
    Hub(Removal),
    Ollama(OllamaRemoval),
}

impl AnyRemoval {
    /// Finds what goes with a model.
    ///
    /// # Errors
    /// A model that is not there.
    pub(crate) fn of(name: &SourceName, settings: &HubSettings) -> Result<Self, HubError> {
        match name {
            SourceName::Hub(name) => Removal::of(name, settings).map(Self::Hub),
            SourceName::Ollama(name) => OllamaRemoval::of(name, settings).map(Self::Ollama),
        }
    }

    /// The types that go, where a name means several.
    pub(crate) fn labels(&self) -> &[String] {
        match self {
            Self::Hub(removal) => &removal.labels,
            Self::Ollama(_) => &[],
        }
    }

    /// Bytes that are free then.
    pub(crate) fn freed_bytes(&self) -> u64 {
        match self {
            Self::Hub(removal) => removal.freed_bytes,
            Self::Ollama(removal) => removal.freed_bytes,
        }
    }

    /// Takes it away.
    ///
    /// # Errors
    /// A file that cannot be removed.
    pub(crate) fn apply(self) -> Result<(), HubError> {
        match self {
            Self::Hub(removal) => removal.apply(),
            Self::Ollama(removal) => removal.apply(),
        }
    }
}
