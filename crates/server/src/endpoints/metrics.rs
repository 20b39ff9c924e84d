//! `GET /metrics`: Prometheus text, or OpenMetrics for those who ask for it.

use axum::{
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};

use crate::{Models, prometheus_text::prometheus_text};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes all figures.
pub(crate) async fn metrics(State(models): State<Models>, headers: HeaderMap) -> Response {
    let text = models.figures();
    let wants_open_metrics = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.contains("application/openmetrics-text"));
    if wants_open_metrics {
        ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response()
    } else {
        ([(header::CONTENT_TYPE, PROMETHEUS)], prometheus_text(&text)).into_response()
    }
}
