//! [`StoredProjector`]: what is known about a stored model's image encoder, without a server.
//!
//! Models also run without an encoder. Invariant: an unknown state is reported as unknown.

use crate::{HubSettings, ModelName, PulledModel, cache::Cache, choice::projector, pull::SAFETENSORS};

/// The state of the image encoder of a model in the cache, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredProjector {
    /// It is stored, or is part of the model's own files.
    There,
    /// The repository has none.
    None,
    /// The repository has this file, but it is not in the cache.
    Missing(String),
    /// Another program has downloaded the model without an encoder.
    Unknown,
}

/// Returns the state of the image encoder of a model found by [`find_stored`](crate::find_stored).
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
