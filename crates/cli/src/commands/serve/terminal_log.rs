//! [`TerminalLines`]: the log of `serve` on a terminal: the time of day, then a sentence or a request.
//!
//! Files and collectors get the structured log. Invariant: a request is one sentence without its text or its
//! keys, and lines break between words.

use std::fmt::{self, Write as _};

use console::Term;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

use crate::{
    hanging::{columns, hanging_at},
    numbers::{counted, size_of},
    visible::visible,
};

/// Target of the event that the server writes for each request.
const REQUEST_TARGET: &str = "tokenmill::request";

/// Columns of the time of day and the space after it.
const TIME_COLUMNS: usize = 9;

/// Writes log events as lines for people.
pub(super) struct TerminalLines;

impl<S, N> FormatEvent<S, N> for TerminalLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let text = if event.metadata().target() == REQUEST_TARGET {
            fields.request()
        } else {
            fields.sentence(*event.metadata().level())
        };
        let time = chrono::Local::now().format("%H:%M:%S");
        let line = format!("{time} {}", visible(&text));
        writeln!(
            writer,
            "{}",
            hanging_at(&line, columns(&Term::stderr()), TIME_COLUMNS)
        )
    }
}

/// Holds the fields of an event, in their order.
#[derive(Debug, Default)]
struct Fields(Vec<(&'static str, String)>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name(), value.to_owned()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push((field.name(), format!("{value:?}")));
    }
}

impl Fields {
    fn get(&self, name: &str) -> Option<&str> {
        let field = self.0.iter().find(|(known, _)| *known == name);
        field.map(|(_, value)| value.as_str())
    }

    /// Describes a request: `POST /v1/completions 200 18 ms, 15 + 8 tokens`.
    fn request(&self) -> String {
        let mut text = self.get("method").unwrap_or("?").to_owned();
        for name in ["path", "status"] {
            if let Some(value) = self.get(name) {
                text.push(' ');
                text.push_str(value);
            }
        }
        if let Some(ms) = self.get("duration_ms").and_then(|ms| ms.parse().ok()) {
            text.push(' ');
            text.push_str(&duration(ms));
        }
        if let Some(n_prompt) = self.get("prompt_tokens") {
            let n_generated = self.get("completion_tokens").unwrap_or("0");
            let _ = write!(text, ", {n_prompt} + {n_generated} tokens");
        }
        if let Some(n_cached) = self.get("cached_tokens").filter(|&n_cached| n_cached != "0") {
            let _ = write!(text, ", {n_cached} cached");
        }
        if let Some(error) = self.get("error") {
            let _ = write!(text, ", {error}");
            if error == "context_length_exceeded" {
                text.push_str("; `-c N` at the start gives more context, up to the model's own");
            }
        }
        if self.get("disconnected").is_some() {
            text.push_str(", the client left");
        }
        text
    }

    /// Describes another event: its model and its message, then its other fields.
    fn sentence(&self, level: Level) -> String {
        let mut text = match level {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            Level::INFO => "",
            _ => "debug: ",
        }
        .to_owned();
        if let Some(model) = self.get("model") {
            let _ = write!(text, "{model}: ");
        }
        text.push_str(self.get("message").unwrap_or_default());
        for (name, value) in &self.0 {
            match *name {
                "message" | "model" => {}
                "reason" | "error" => {
                    let _ = write!(text, ": {value}");
                }
                name => {
                    let _ = write!(text, ", {}", figure(name, value));
                }
            }
        }
        text
    }
}

/// A field in words, with the unit that its name tells.
fn figure(name: &str, value: &str) -> String {
    let number = value.parse::<f64>().ok();
    let whole = value.parse::<u64>().ok();
    let words = |name: &str| name.replace('_', " ");
    match (name, number, whole) {
        ("n_bytes", _, Some(n_bytes)) => size_of(n_bytes),
        ("seconds", Some(seconds), _) => duration(seconds * 1e3),
        ("models", _, Some(n)) => counted(n as usize, "model"),
        _ => match (name.strip_suffix("_s"), number) {
            (Some(name), Some(seconds)) => format!("{} {seconds} s", words(name)),
            _ => format!("{} {value}", words(name)),
        },
    }
}

/// A time of a request, in words.
fn duration(ms: f64) -> String {
    if ms < 9_950.0 {
        format!("{:.0} ms", ms.max(1.0))
    } else {
        format!("{:.1} s", ms / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(fields: &[(&'static str, &str)]) -> Fields {
        Fields(
            fields
                .iter()
                .map(|(name, value)| (*name, (*value).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn a_request_is_one_sentence() {
        let answered = [
            ("message", "request"),
            ("method", "POST"),
            ("path", "/v1/chat/completions"),
            ("status", "200"),
            ("duration_ms", "18.21"),
            ("request_id", "req-1"),
            ("prompt_tokens", "15"),
            ("cached_tokens", "0"),
            ("completion_tokens", "8"),
        ];
        assert_eq!(
            fields(&answered).request(),
            "POST /v1/chat/completions 200 18 ms, 15 + 8 tokens"
        );
        let left = [
            ("method", "POST"),
            ("path", "/api/chat"),
            ("duration_ms", "12345.6"),
            ("prompt_tokens", "40"),
            ("cached_tokens", "32"),
            ("disconnected", "true"),
        ];
        assert_eq!(
            fields(&left).request(),
            "POST /api/chat 12.3 s, 40 + 0 tokens, 32 cached, the client left"
        );
        let refused = [
            ("method", "GET"),
            ("path", "/x"),
            ("status", "404"),
            ("duration_ms", "0.02"),
            ("error", "not_found"),
        ];
        assert_eq!(fields(&refused).request(), "GET /x 404 1 ms, not_found");
    }

    #[test]
    fn other_events_say_what_they_are() {
        let event = fields(&[("message", "draining"), ("limit_s", "30.0")]);
        assert_eq!(event.sentence(Level::INFO), "draining, limit 30 s");
        assert_eq!(event.sentence(Level::WARN), "warning: draining, limit 30 s");
        let check = |event: &[(&'static str, &str)], expected: &str| {
            assert_eq!(fields(event).sentence(Level::INFO), expected);
        };
        check(
            &[
                ("model", "long"),
                ("n_bytes", "15652992"),
                ("seconds", "0.02771322"),
                ("message", "loaded"),
            ],
            "long: loaded, 14.9 MiB, 28 ms",
        );
        check(
            &[
                ("message", "models are loaded and unloaded on demand"),
                ("models", "1"),
                ("memory_budget", "20.0 MiB"),
            ],
            "models are loaded and unloaded on demand, 1 model, memory budget 20.0 MiB",
        );
        check(
            &[
                ("message", "not loaded"),
                ("model", "x"),
                ("reason", "it is damaged"),
            ],
            "x: not loaded: it is damaged",
        );
    }
}
