//! [`BatchRequest`]: one line of a batch, in the form of OpenAI's batch API.
//!
//! Invariant: a line that is not a request is a [`BadLine`] that names the fault, and every field of a line
//! is obeyed or refused.

use std::collections::HashSet;

use serde_json::{Map, Value};
use tokenmill::text::readable_json;

/// Where requests may go.
const URLS: [&str; 4] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
];

/// A request of a batch.
#[derive(Debug, PartialEq)]
pub(super) struct BatchRequest {
    pub(super) custom_id: String,
    pub(super) url: &'static str,
    /// The body, as JSON.
    pub(super) body: String,
}

/// A line that is not a request.
#[derive(Debug, PartialEq)]
pub(super) struct BadLine {
    /// Its id, if that much could be read.
    pub(super) custom_id: Option<String>,
    pub(super) code: &'static str,
    pub(super) message: String,
}

impl BatchRequest {
    /// Reads a line, and adds its id to `ids`, the ids of the lines before it.
    ///
    /// # Errors
    /// Returns the fault of the line.
    pub(super) fn parse(line: &[u8], ids: &mut HashSet<String>) -> Result<Self, BadLine> {
        let mut custom_id = None;
        Self::read(line, &mut custom_id, ids).map_err(|(code, message)| BadLine {
            custom_id,
            code,
            message,
        })
    }

    fn read(
        line: &[u8],
        custom_id: &mut Option<String>,
        ids: &mut HashSet<String>,
    ) -> Result<Self, (&'static str, String)> {
        let mut fields: Map<String, Value> =
            serde_json::from_slice(&readable_json(line)).map_err(|error| {
                let message = if error.is_data() {
                    "the line is not a JSON object".to_owned()
                } else {
                    // The line of the file is known; that of the parser is always the first.
                    error.to_string().replace(" at line 1 column ", " at column ")
                };
                ("invalid_json_line", message)
            })?;
        let missing = |name: &str, what: &str| ("invalid_request", format!("`{name}` {what}"));
        let Some(Value::String(id)) = fields.remove("custom_id") else {
            return Err(missing("custom_id", "is missing or not a string"));
        };
        *custom_id = Some(id.clone());
        if !ids.insert(id.clone()) {
            return Err((
                "duplicate_custom_id",
                format!("an earlier line has the id `{id}` too"),
            ));
        }
        if fields.remove("method").as_ref().and_then(Value::as_str) != Some("POST") {
            return Err(missing("method", "is not \"POST\""));
        }
        let url = fields.remove("url");
        let url = url.as_ref().and_then(Value::as_str).unwrap_or_default();
        let Some(url) = URLS.into_iter().find(|known| *known == url) else {
            return Err(("invalid_url", format!("`url` is not one of {}", URLS.join(", "))));
        };
        let Some(Value::Object(body)) = fields.remove("body") else {
            return Err(missing("body", "is missing or not an object"));
        };
        if body.get("stream") == Some(&Value::Bool(true)) {
            return Err((
                "invalid_request",
                "`stream`: a batch has whole answers only".to_owned(),
            ));
        }
        if let Some(unknown) = fields.keys().next() {
            return Err((
                "invalid_request",
                format!("`{unknown}` is not a field of a batch line"),
            ));
        }
        Ok(Self {
            custom_id: id,
            url,
            body: Value::from(body).to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(line: &str, custom_id: Option<&str>) -> String {
        let bad = BatchRequest::parse(line.as_bytes(), &mut HashSet::from(["old".to_owned()])).unwrap_err();
        assert_eq!(bad.custom_id.as_deref(), custom_id, "{line}");
        format!("{}: {}", bad.code, bad.message)
    }

    #[test]
    fn a_line_is_a_request() {
        let line = r#"{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"Hi","max_tokens":3}}"#;
        let expected = BatchRequest {
            custom_id: "a".to_owned(),
            url: "/v1/completions",
            body: r#"{"max_tokens":3,"prompt":"Hi"}"#.to_owned(),
        };
        let parsed = BatchRequest::parse(line.as_bytes(), &mut HashSet::new()).unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(&parsed.body).unwrap(),
            serde_json::from_str::<Value>(&expected.body).unwrap()
        );
        assert_eq!((parsed.custom_id, parsed.url), (expected.custom_id, expected.url));
    }

    #[test]
    fn a_line_that_is_no_request_says_why() {
        let lines = [
            error("{", None),
            error("[]", None),
            error(r#"{"custom_id":7}"#, None),
            error(r#"{"custom_id":"old"}"#, Some("old")),
            error(r#"{"custom_id":"a","method":"GET"}"#, Some("a")),
            error(r#"{"custom_id":"a","method":"POST","url":"/v2"}"#, Some("a")),
            error(
                r#"{"custom_id":"a","method":"POST","url":"/v1/completions"}"#,
                Some("a"),
            ),
            error(
                r#"{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"stream":true}}"#,
                Some("a"),
            ),
            error(
                r#"{"custom_id":"a","method":"POST","url":"/v1/completions","body":{},"priority":1}"#,
                Some("a"),
            ),
        ];
        insta::assert_snapshot!(lines.join("\n"));
    }
}
