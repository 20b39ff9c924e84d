//! [`SourceName`] and [`SourcePlan`]: a model by name from either source, the Hugging Face Hub or Ollama's registry.
//!
//! Separate because programs do the same with both. Invariants: what could be a repository of the Hub is one; what exists as a file or a
//! folder is never taken for a name.

use std::{fmt, path::Path, str::FromStr};

use crate::{
    HubError, HubSettings, ModelName, PullObserver, PullPlan, PullWishes, PulledModel, Removal,
    StoredProjector, find_stored,
    ollama::{self, OllamaName, OllamaPlan, OllamaRemoval},
    plan, stored_projector,
};

/// A model by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceName {
    /// Of the Hub.
    Hub(ModelName),
    /// Of Ollama's registry.
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
    /// The name that stands where a model is expected; `None` where that is a path.
    ///
    /// # Errors
    /// What says by itself that it is a name, and is none.
    pub fn of_path(model: &Path) -> Result<Option<Self>, HubError> {
        let Some(text) = model.to_str() else {
            return Ok(None);
        };
        if ModelName::is_marked(text) || OllamaName::is_marked(text) {
            return text.parse().map(Some);
        }
        let is_file_name = !text.contains(':')
            && (model.extension())
                .and_then(|extension| extension.to_str())
                .is_some_and(|extension| matches!(extension, "gguf" | "safetensors" | "json" | "bin"));
        let owner = text.split('/').next().unwrap_or_default();
        if model.exists() || is_file_name || Path::new(owner).exists() {
            return Ok(None);
        }
        Ok(text.parse().ok())
    }

    /// What the name is served under and shown as.
    pub fn shown(&self) -> String {
        match self {
            Self::Hub(name) => name.to_string(),
            Self::Ollama(name) => name.short(),
        }
    }

    /// The model, if it is on this machine.
    ///
    /// # Errors
    /// As [`find_stored`].
    pub fn find_stored(
        &self,
        wishes: &PullWishes,
        settings: &HubSettings,
    ) -> Result<Option<PulledModel>, HubError> {
        match self {
            Self::Hub(name) => find_stored(name, wishes, settings),
            Self::Ollama(name) => ollama::find_stored(name, settings),
        }
    }

    /// What is known of the encoder of images of a model that [`Self::find_stored`] has found. Those of Ollama have what their manifests name.
    pub fn stored_projector(&self, model: &PulledModel, settings: &HubSettings) -> StoredProjector {
        match self {
            Self::Hub(name) => stored_projector(name, model, settings),
            Self::Ollama(_) => StoredProjector::There,
        }
    }

    /// Asks the source, and says what a download would take.
    ///
    /// # Errors
    /// As [`plan`].
    pub fn plan(
        &self,
        wishes: &PullWishes,
        settings: &HubSettings,
        observer: &dyn PullObserver,
    ) -> Result<SourcePlan, HubError> {
        match self {
            Self::Hub(name) => plan(name, wishes, settings, observer).map(SourcePlan::Hub),
            Self::Ollama(name) => ollama::plan(name, settings, observer).map(SourcePlan::Ollama),
        }
    }
}

/// What a download takes.
#[derive(Debug)]
pub enum SourcePlan {
    /// Of the Hub.
    Hub(PullPlan),
    /// Of Ollama's registry.
    Ollama(OllamaPlan),
}

impl SourcePlan {
    /// What is downloaded, with its type.
    pub fn full_name(&self) -> SourceName {
        match self {
            Self::Hub(plan) => SourceName::Hub(plan.full_name()),
            Self::Ollama(plan) => SourceName::Ollama(plan.name().clone()),
        }
    }

    /// Why this file is taken, where the name does not say it.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Hub(plan) => plan.why.as_deref(),
            Self::Ollama(_) => None,
        }
    }

    /// The file of layers for further tokens that comes with the model, and its bytes.
    pub fn nextn(&self) -> Option<&(String, u64)> {
        match self {
            Self::Hub(plan) => plan.nextn.as_ref(),
            Self::Ollama(_) => None,
        }
    }

    /// How many files it has.
    pub fn n_files(&self) -> usize {
        match self {
            Self::Hub(plan) => plan.n_files(),
            Self::Ollama(plan) => plan.n_files(),
        }
    }

    /// Bytes of all files.
    pub fn total_bytes(&self) -> u64 {
        match self {
            Self::Hub(plan) => plan.total_bytes,
            Self::Ollama(plan) => plan.total_bytes,
        }
    }

    /// Bytes that are to be downloaded.
    pub fn missing_bytes(&self) -> u64 {
        match self {
            Self::Hub(plan) => plan.missing_bytes,
            Self::Ollama(plan) => plan.missing_bytes,
        }
    }

    /// Those of them that are the encoder of images. Manifests of Ollama do not tell it from the weights.
    pub fn missing_projector_bytes(&self) -> u64 {
        match self {
            Self::Hub(plan) => plan.missing_projector_bytes,
            Self::Ollama(_) => 0,
        }
    }

    /// Those of them that are layers for further tokens.
    pub fn missing_nextn_bytes(&self) -> u64 {
        match self {
            Self::Hub(plan) => plan.missing_nextn_bytes,
            Self::Ollama(_) => 0,
        }
    }

    /// Hashes the files that are there, and removes damaged ones, which are missing then.
    ///
    /// # Errors
    /// As [`PullPlan::remove_damaged`].
    pub fn remove_damaged(
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
    pub fn fetch(self, settings: &HubSettings, observer: &dyn PullObserver) -> Result<PulledModel, HubError> {
        match self {
            Self::Hub(plan) => plan.fetch(settings, observer),
            Self::Ollama(plan) => plan.fetch(settings, observer),
        }
    }
}

/// What the removal of a model takes away.
#[derive(Debug)]
pub enum SourceRemoval {
    /// Of the Hub.
    Hub(Removal),
    /// Of Ollama's registry.
    Ollama(OllamaRemoval),
}

impl SourceRemoval {
    /// Finds what goes with a model.
    ///
    /// # Errors
    /// A model that is not there.
    pub fn of(name: &SourceName, settings: &HubSettings) -> Result<Self, HubError> {
        match name {
            SourceName::Hub(name) => Removal::of(name, settings).map(Self::Hub),
            SourceName::Ollama(name) => OllamaRemoval::of(name, settings).map(Self::Ollama),
        }
    }

    /// The types that go, where a name means several.
    pub fn labels(&self) -> &[String] {
        match self {
            Self::Hub(removal) => &removal.labels,
            Self::Ollama(_) => &[],
        }
    }

    /// Bytes that are free then.
    pub fn freed_bytes(&self) -> u64 {
        match self {
            Self::Hub(removal) => removal.freed_bytes,
            Self::Ollama(removal) => removal.freed_bytes,
        }
    }

    /// Takes it away.
    ///
    /// # Errors
    /// A file that cannot be removed.
    pub fn apply(self) -> Result<(), HubError> {
        match self {
            Self::Hub(removal) => removal.apply(),
            Self::Ollama(removal) => removal.apply(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_folders_are_never_names() {
        let check = |text: &str, is_name: bool| {
            let found = SourceName::of_path(Path::new(text));
            assert_eq!(found.map_or(true, |name| name.is_some()), is_name, "{text}");
        };
        for name in [
            "no-owner/repo-GGUF",
            "no-owner/repo:Q4_K_M",
            "no-owner/repo:x.gguf",
            "hf://src/x",
            "hf:x",
            "llama3.2:1b",
            "ollama:llama3.2",
        ] {
            check(name, true);
        }
        // Tests run in the crate's folder.
        for path in [
            "demo",
            "src",
            "src/lib.rs",
            "src/none",
            "a.gguf",
            "no-owner/a.gguf",
            "./a/b",
            "/a/b",
            "a/b/c",
            "",
        ] {
            check(path, false);
        }
    }
}
