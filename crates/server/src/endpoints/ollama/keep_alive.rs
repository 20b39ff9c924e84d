//! [`check_keep_alive`]: whether the model can go when a request asks for it.

use std::time::Duration;

use crate::{ApiError, KeepAlive, app::Stay, requests::fields::Body};

/// Refuses a request to unload a model that stays loaded as long as the server runs.
///
/// # Errors
/// A `keep_alive` of no time.
pub(crate) fn check_keep_alive(stay: Stay, body: &Body) -> Result<(), ApiError> {
    let time = body
        .get("keep_alive")
        .and_then(|value| KeepAlive::from_json(value).ok());
    match (stay, time.and_then(KeepAlive::time)) {
        (Stay::Fixed, Some(Duration::ZERO)) => Err(ApiError::UnsupportedField {
            param: "keep_alive".to_owned(),
            reason: "the model stays loaded as long as the server runs",
        }),
        _ => Ok(()),
    }
}
