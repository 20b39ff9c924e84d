//! [`check_keep_alive`]: whether the model can go when a request asks for it.

use std::time::Duration;

use crate::{ApiError, KeepAlive, app::Retention, requests::fields::Body};

/// Refuses a request to unload a model that stays loaded as long as the server runs.
///
/// # Errors
/// A `keep_alive` of no time.
pub(crate) fn check_keep_alive(retention: Retention, body: &Body) -> Result<(), ApiError> {
    let time = body
        .get("keep_alive")
        .and_then(|value| KeepAlive::from_json(value).ok());
    match (retention, time.and_then(KeepAlive::time)) {
        (Retention::Fixed, Some(Duration::ZERO)) => Err(ApiError::UnsupportedField {
            param: "keep_alive".to_owned(),
            reason: "the model stays loaded as long as the server runs",
        }),
        _ => Ok(()),
    }
}
