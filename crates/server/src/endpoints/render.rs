//! [`Rendered`]: the answer of the render endpoints: a request's prompt as token ids.
//!
//! Routers ask for it to find the replica that has a prompt's beginning in its cache. The form is vLLM's; as no prompt has
//! images, there are never features.

use serde::Serialize;

use crate::{App, telemetry::request_id::unique_id};

/// A prompt as token ids.
#[derive(Debug, Serialize)]
pub(crate) struct Rendered {
    request_id: String,
    model: String,
    token_ids: Vec<u32>,
    features: Option<()>,
}

impl Rendered {
    /// Names the request after `prefix`.
    pub(crate) fn new(app: &App, prefix: &str, token_ids: Vec<u32>) -> Self {
        Self {
            request_id: unique_id(prefix),
            model: app.model.name().to_owned(),
            token_ids,
            features: None,
        }
    }
}
