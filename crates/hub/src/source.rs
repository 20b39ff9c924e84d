//! [`SourceName`] and [`SourcePlan`]: a model by name from either source, the Hugging Face Hub or Ollama's
//! registry.
//!
//! Programs treat both alike. Invariants: a text that could be a repository of the Hub is one; an existing
//! file or folder is never taken for a name.

use std::{fmt, path::Path, str::FromStr};

use crate::{
    HubError, HubSettings, ModelName, PullObserver, PullPlan, PullWishes, PulledModel, Removal,
    StoredProjector, find_stored,
    ollama::{self, OllamaName, OllamaPlan, OllamaRemoval},
    plan, remove_interrupted, stored_projector,
};

/// A model by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceName {
    /// A model of the Hub.
    Hub(ModelName),
    /// A model of Ollama's registry.
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
    /// Parses a name in the place of a model; `None` if it is a path.
    ///
    /// # Errors
    /// An error for a text that is explicitly a name but invalid.
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

    /// Returns the name for display and for serving.
    pub fn shown(&self) -> String {
        match self {
            Self::Hub(name) => name.to_string(),
            Self::Ollama(name) => name.short(),
        }
    }

    /// Returns the model if it is on this machine.
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

    /// Returns the state of the image encoder of a model found by [`Self::find_stored`]. Models of
    /// Ollama have exactly what their manifests name.
    pub fn stored_projector(&self, model: &PulledModel, settings: &HubSettings) -> StoredProjector {
        match self {
            Self::Hub(name) => stored_projector(name, model, settings),
            Self::Ollama(_) => StoredProjector::There,
        }
    }

    /// Removes the remains of interrupted downloads of the model; on the Hub, those of all models of its repository. Returns whether there was
    /// anything.
    ///
    /// # Errors
    /// As [`remove_interrupted`].
    pub fn remove_interrupted(
        &self,
        settings: &HubSettings,
        observer: &dyn PullObserver,
    ) -> Result<bool, HubError> {
        match self {
            Self::Hub(name) => remove_interrupted(name, settings, observer),
            Self::Ollama(name) => ollama::remove_interrupted(name, settings, observer),
        }
    }

    /// Requests the source's description of the model, and plans the download.
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

/// A plan of a download.
#[derive(Debug)]
pub enum SourcePlan {
    /// From the Hub.
    Hub(PullPlan),
    /// From Ollama's registry.
    Ollama(OllamaPlan),
}

impl SourcePlan {
    /// Returns the name to be downloaded, with its type.
    pub fn full_name(&self) -> SourceName {
        match self {
            Self::Hub(plan) => SourceName::Hub(plan.full_name()),
            Self::Ollama(plan) => SourceName::Ollama(plan.name().clone()),
        }
    }

    /// Returns the reason for the selection of this file, if the name does not determine it.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Hub(plan) => plan.why.as_deref(),
            Self::Ollama(_) => None,
        }
    }

    /// Returns the separate MTP file for the model, and its bytes.
    pub fn nextn(&self) -> Option<&(String, u64)> {
        match self {
            Self::Hub(plan) => plan.nextn.as_ref(),
            Self::Ollama(_) => None,
        }
    }

    /// Returns the number of files.
    pub fn n_files(&self) -> usize {
        match self {
            Self::Hub(plan) => plan.n_files(),
            Self::Ollama(plan) => plan.n_files(),
        }
    }

    /// Returns the total bytes of all files.
    pub fn total_bytes(&self) -> u64 {
        match self {
            Self::Hub(plan) => plan.total_bytes,
            Self::Ollama(plan) => plan.total_bytes,
        }
    }

    /// Returns the bytes to download.
    pub fn missing_bytes(&self) -> u64 {
        match self {
            Self::Hub(plan) => plan.missing_bytes,
            Self::Ollama(plan) => plan.missing_bytes,
        }
    }

    /// Returns the bytes to download for the image encoder. Manifests of Ollama do not distinguish it from
    /// the weights.
    pub fn missing_projector_bytes(&self) -> u64 {
        match self {
            Self::Hub(plan) => plan.missing_projector_bytes,
            Self::Ollama(_) => 0,
        }
    }

    /// Returns the bytes to download for MTP layers.
    pub fn missing_nextn_bytes(&self) -> u64 {
        match self {
            Self::Hub(plan) => plan.missing_nextn_bytes,
            Self::Ollama(_) => 0,
        }
    }

    /// Hashes the stored files, and removes damaged ones, which are then missing.
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

    /// Downloads the missing files.
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

/// The files to delete when a model is removed.
#[derive(Debug)]
pub enum SourceRemoval {
    /// From the Hub's cache.
    Hub(Removal),
    /// From Ollama's folder.
    Ollama(OllamaRemoval),
}

impl SourceRemoval {
    /// Finds the files to delete with a model.
    ///
    /// # Errors
    /// An error if the model is not stored.
    pub fn of(name: &SourceName, settings: &HubSettings) -> Result<Self, HubError> {
        match name {
            SourceName::Hub(name) => Removal::of(name, settings).map(Self::Hub),
            SourceName::Ollama(name) => OllamaRemoval::of(name, settings).map(Self::Ollama),
        }
    }

    /// Returns the types to be removed, if a name means several.
    pub fn labels(&self) -> &[String] {
        match self {
            Self::Hub(removal) => &removal.labels,
            Self::Ollama(_) => &[],
        }
    }

    /// Returns the bytes freed by the removal.
    pub fn freed_bytes(&self) -> u64 {
        match self {
            Self::Hub(removal) => removal.freed_bytes,
            Self::Ollama(removal) => removal.freed_bytes,
        }
    }

    /// Deletes the files.
    ///
    /// # Errors
    /// As [`Removal::apply`].
    pub fn apply(self, observer: &dyn PullObserver) -> Result<(), HubError> {
        match self {
            Self::Hub(removal) => removal.apply(observer),
            Self::Ollama(removal) => removal.apply(observer),
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
