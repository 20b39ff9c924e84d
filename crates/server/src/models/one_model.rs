//! [`OneModel`]: the model that a `GET` is about.
//!
//! Most such requests do not name a model. Invariant: a query does not count as use: it loads a model only if
//! it names it.

use std::sync::Arc;

use axum::{extract::FromRequestParts, http::request::Parts, response::Response};

use super::{Choice, Lease, Models, Purpose, choice::name_of_query};
use crate::{App, Dialect, app::error_response, telemetry::request_id::RequestId};

/// The model that `?model=` names, else the default one; where that one is not loaded, one that is; none where none is.
pub(crate) struct OneModel(Lease);

impl OneModel {
    /// The model.
    pub(crate) fn app(&self) -> &Arc<App> {
        self.0.app()
    }
}

impl FromRequestParts<Models> for OneModel {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, models: &Models) -> Result<Self, Response> {
        let held = match name_of_query(&parts.uri) {
            None => models.look(),
            model => {
                let choice = Choice {
                    model,
                    ..Choice::default()
                };
                models.acquire(&choice, Purpose::Look).await
            }
        };
        held.map(Self).map_err(|error| {
            models.count_refusal(&error);
            let id: RequestId = parts.extensions.get().cloned().unwrap_or_default();
            error_response(&error, Dialect::of_path(parts.uri.path()), &id)
        })
    }
}
