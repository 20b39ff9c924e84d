//! `GET /metrics`: Prometheus text, or OpenMetrics for clients that ask for it.

use axum::{
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::{IntoResponse, Response},
};

use crate::{Models, telemetry::prometheus_text::prometheus_text};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Writes all figures.
pub(crate) async fn metrics(State(models): State<Models>, headers: HeaderMap) -> Response {
    let text = models.figures();
    let accepted = headers.get_all(header::ACCEPT).iter();
    let (kind, text) = if prefers_open_metrics(accepted.filter_map(|value| value.to_str().ok())) {
        (OPENMETRICS, text)
    } else {
        (PROMETHEUS, prometheus_text(&text))
    };
    let started = HeaderValue::from(models.created_s());
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (HeaderName::from_static("process-start-time-unix"), started),
    ];
    (headers, text).into_response()
}

/// Whether `Accept` gives OpenMetrics a weight that no other form of this endpoint exceeds. Wildcards mean the plain text.
fn prefers_open_metrics<'h>(accepted: impl Iterator<Item = &'h str>) -> bool {
    let (mut open, mut plain) = (0.0, 0.0);
    for range in accepted.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let weight = parts.find_map(|part| {
            let (name, value) = part.split_once('=')?;
            name.trim()
                .eq_ignore_ascii_case("q")
                .then(|| value.trim().parse().unwrap_or(0.0))
        });
        let weight: f32 = weight.unwrap_or(1.0);
        match kind.as_str() {
            "application/openmetrics-text" => open = weight.max(open),
            "text/plain" | "text/*" | "*/*" => plain = weight.max(plain),
            _ => {}
        }
    }
    open > 0.0 && open >= plain
}

#[cfg(test)]
mod tests {
    use super::prefers_open_metrics;

    #[test]
    fn the_form_with_the_larger_weight_is_given() {
        let open = "application/openmetrics-text";
        for (accept, expected) in [
            (String::new(), false),
            ("*/*".to_owned(), false),
            (open.to_owned(), true),
            (format!("{open}; version=1.0.0; charset=utf-8"), true),
            (
                format!("{open};version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"),
                true,
            ),
            (format!("{open};q=0.5,text/plain;version=0.0.4;q=0.9"), false),
            (
                format!(
                    "{open};q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;q=0.4,*/*;q=0.1"
                ),
                true,
            ),
            (format!("{open};q=0"), false),
            (format!("{open}, text/plain"), true),
            (format!("{open};q=much"), false),
        ] {
            assert_eq!(
                prefers_open_metrics([accept.as_str()].into_iter()),
                expected,
                "{accept}"
            );
        }
        assert!(prefers_open_metrics(["text/plain;q=0.3", open].into_iter()));
    }
}
