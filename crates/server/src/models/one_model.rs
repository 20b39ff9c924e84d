//! [`OneModel`]: the model that a `GET` is about.
//!
//! Separate from the requests with bodies because most who ask do not say which model they mean. Invariant: to be asked is no use:
//! a model is loaded for it only where none is.

use std::sync::Arc;

use axum::{extract::FromRequestParts, http::request::Parts, response::Response};

use super::{Choice, Lease, Models, Purpose, choice::name_of_query};
use crate::{App, Dialect, app::error_response, request_id::RequestId};

/// The model that `?model=` names, else the default one; where that one is not loaded, one that is.
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
        let model = name_of_query(&parts.uri);
        let choice = Choice {
            model: model.or_else(|| models.name_of_loaded()),
            ..Choice::default()
        };
        models
            .acquire(&choice, Purpose::Look)
            .await
            .map(Self)
            .map_err(|error| {
                models.count_refusal(&error);
                let id: RequestId = parts.extensions.get().cloned().unwrap_or_default();
                error_response(&error, Dialect::of_path(parts.uri.path()), &id)
            })
    }
}
