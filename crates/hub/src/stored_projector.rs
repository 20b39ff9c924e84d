//! [`StoredProjector`]: what is known of a stored model's encoder of images, without a server.
//!
//! Separate from the search for models, which run without an encoder too. Invariant: what is not known is said to be so.

use crate::{HubSettings, ModelName, PulledModel, cache::Cache, choice::projector, pull::SAFETENSORS};

/// What is known of the encoder of images of a model in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredProjector {
    /// It is there, or is part of the model's own files.
    There,
    /// The repository has none.
    None,
    /// The repository has this file, and the cache lacks it.
    Missing(String),
    /// Another program has downloaded the model, and no encoder.
    Unknown,
}

/// What is known of the encoder of images of a model that [`find_stored`](crate::find_stored) has found.
pub fn stored_projector(name: &ModelName, model: &PulledModel, settings: &HubSettings) -> StoredProjector {
    if model.label == SAFETENSORS {
        return StoredProjector::There;
    }
    let cache = Cache::of(&settings.cache, name);
    let sizes: Vec<(String, u64)> = (cache.entries(&model.commit).into_iter())
        .map(|entry| (entry.path, entry.n_bytes))
        .collect();
    if projector(&sizes).is_some() {
        return StoredProjector::There;
    }
    match cache.noted_projector(&model.commit) {
        Some(path) if path.is_empty() => StoredProjector::None,
        Some(path) => StoredProjector::Missing(path),
        None => StoredProjector::Unknown,
    }
}
