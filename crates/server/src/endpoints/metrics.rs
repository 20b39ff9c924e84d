//! `GET /metrics`: Prometheus and OpenMetrics text.

use std::sync::Arc;

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};

use crate::App;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Writes all figures.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    (
        [(header::CONTENT_TYPE, OPENMETRICS)],
        app.metrics.encode(app.model.engine()),
    )
        .into_response()
}
