//! [`ApiError`]: every refusal and failure that a client can meet, with its status and error body.
//!
//! One type for both dialects, so that a cause has the same status whichever API met it. Invariant: a message names
//! what was wrong and never contains another request's text.

use std::borrow::Cow;

use axum::http::uri::Authority;
use serde_json::{Value, json};

use crate::{
    errors::{dialect::Dialect, field_path::names_of},
    model_names::{near_it, near_names},
};

/// Longest text of a client that stands in a log line or an error, bytes.
const MAX_SHOWN: usize = 256;

/// Longest message of an error, bytes.
const MAX_MESSAGE: usize = 2048;

/// The beginning of a client's text, as much of it as is shown.
pub(crate) fn shortened(text: &str) -> Cow<'_, str> {
    shortened_to(text, MAX_SHOWN)
}

fn shortened_to(text: &str, max_bytes: usize) -> Cow<'_, str> {
    if text.len() <= max_bytes {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}…", &text[..text.floor_char_boundary(max_bytes)]))
}

/// A number of bytes as people write it.
fn bytes(n: u64) -> String {
    match n as f64 / f64::from(1 << 20) {
        mib if mib >= 1024.0 => format!("{:.2} GiB", mib / 1024.0),
        mib if mib >= 10.0 => format!("{mib:.0} MiB"),
        mib => format!("{mib:.2} MiB"),
    }
}

/// Says how a server answers for a host, which may have a port; nothing for a text that is not a host.
fn allowing(host: &str) -> String {
    match host.parse::<Authority>() {
        Ok(authority) => format!("; start it with `--allow-host {}`", authority.host()),
        Err(_) => String::new(),
    }
}

/// A refusal or a failure, as a client sees it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ApiError {
    /// The body is not JSON, or not an object.
    #[error("the request body is not valid JSON: {reason}")]
    MalformedJson {
        /// Message of the parser, with line and column.
        reason: String,
    },
    /// A field has a wrong type or value.
    #[error("`{param}`: {reason}")]
    InvalidField {
        /// Path of the field, as in `messages[0].content`.
        param: String,
        /// Cause of the error, and the expected value.
        reason: String,
    },
    /// The field exists in no API that this endpoint speaks.
    #[error("unknown field `{param}`{}", near_it(near))]
    UnknownField {
        /// Name of the field.
        param: String,
        /// Fields that are near, separated by commas.
        near: String,
    },
    /// The field is part of the official API, but this server does not implement it.
    #[error("`{param}` is not supported: {reason}")]
    UnsupportedField {
        /// Name of the field.
        param: String,
        /// Missing feature, or its substitute.
        reason: &'static str,
    },
    /// The named model is not served here.
    #[error(
        "the model `{model}` is not served here{}; available: {available}; the server's `--served-model-name` gives it other \
         names",
        near_it(near)
    )]
    UnknownModel {
        /// The requested name.
        model: String,
        /// Names that are near, separated by commas.
        near: String,
        /// The names served, separated by commas.
        available: String,
    },
    /// A request changes an adapter that is not loaded.
    #[error("there is no adapter `{adapter}` here; {}", match &available[..] {
        "" => "none is loaded".to_owned(),
        names => format!("loaded are {names}"),
    })]
    UnknownAdapter {
        /// The requested name.
        adapter: String,
        /// The names of those that are loaded, separated by commas.
        available: String,
    },
    /// The server has no model now, and the request names none.
    #[error("no model is served{}", if *can_pull { "; `/api/pull` downloads one" } else { "" })]
    NoModel {
        /// Whether clients may download models.
        can_pull: bool,
    },
    /// The named model is not among those that this server can load.
    #[error("the model `{model}` is not served here{}; {}", near_it(near), match &available[..] {
        "" => "no model is".to_owned(),
        names => format!("available: {names}"),
    })]
    NoSuchModel {
        /// The requested name.
        model: String,
        /// Names that are near, separated by commas.
        near: String,
        /// The names served, separated by commas.
        available: String,
    },
    /// The model cannot be loaded.
    #[error("the model `{model}` cannot be loaded: {reason}")]
    ModelFailed {
        /// Its name.
        model: String,
        /// Why.
        reason: String,
    },
    /// The model takes more memory than there can be for it.
    #[error(
        "the model `{model}` needs {}, and the server's memory budget is {}{}; its option `--memory-budget` sets the \
         budget, and `-c` the context of each model",
        bytes(*needed_bytes),
        bytes(*budget_bytes),
        if *pinned_bytes > 0 { format!(", of which models that stay take {}", bytes(*pinned_bytes)) } else { String::new() }
    )]
    ModelTooLarge {
        /// Its name.
        model: String,
        /// Bytes that it takes.
        needed_bytes: u64,
        /// Bytes that all models together may take.
        budget_bytes: u64,
        /// Bytes that the models take that stay.
        pinned_bytes: u64,
    },
    /// Prompt and answer do not fit in the context.
    #[error(
        "the prompt of {provided} tokens is too large: it exceeds the available context size, and this model's maximum context length \
         is {maximum} tokens"
    )]
    ContextLengthExceeded {
        /// Tokens provided.
        provided: usize,
        /// Tokens there is room for.
        maximum: usize,
    },
    /// The chat template refused the conversation.
    #[error("the model's chat template refused the messages: {reason}")]
    Template {
        /// Message of the template.
        reason: String,
    },
    /// The answer could not be constrained as requested.
    #[error("the requested shape cannot be followed: {reason}")]
    ShapeFailed {
        /// Which limit was exceeded.
        reason: String,
    },
    /// No key, or a wrong one.
    #[error("a valid API key is required: send `Authorization: Bearer KEY` or `x-api-key: KEY`")]
    Unauthorized,
    /// A web page of another origin asks.
    #[error("pages of `{origin}` may not call this server; its `--cors-origin` names the origins that may")]
    ForeignOrigin {
        /// Where the page is from.
        origin: String,
    },
    /// The request is for a name that is not this server's.
    #[error("this server does not answer for `{host}`{}", allowing(host))]
    ForeignHost {
        /// The requested name.
        host: String,
    },
    /// No such path.
    #[error("no such endpoint: {method} {path}{}", near_it(near))]
    NotFound {
        /// The requested method.
        method: String,
        /// The requested path.
        path: String,
        /// Paths that are near, separated by commas.
        near: String,
    },
    /// The answer is not stored.
    #[error("the answer {}is not stored, or not any more", id.as_ref().map_or_else(String::new, |id| format!("`{id}` ")))]
    NotStored {
        /// The requested id; `None` if it is not a text.
        id: Option<String>,
    },
    /// The body is compressed in a way that is not read.
    #[error("the request body is compressed by `{encoding}`; send it as it is, or compressed by `zstd`")]
    CompressedBody {
        /// The value of `Content-Encoding`.
        encoding: String,
    },
    /// The path exists, the method does not.
    #[error("{path} takes {}", if answered.is_empty() { format!("no {method}") } else { format!("{answered}, not {method}") })]
    MethodNotAllowed {
        /// The requested method.
        method: String,
        /// The requested path.
        path: String,
        /// Methods that the path answers.
        answered: String,
    },
    /// The path belongs to an API of this server, but its action is not implemented.
    #[error("{path} is not implemented: {reason}")]
    NotImplemented {
        /// The requested path.
        path: String,
        /// Remedy.
        reason: &'static str,
    },
    /// The body is over the limit.
    #[error("the request body is over the limit of {limit_bytes} bytes")]
    BodyTooLarge {
        /// The limit.
        limit_bytes: usize,
    },
    /// The body is small enough, but its parsed form is not.
    #[error("the request body holds too many values: parsed they may take over {limit_bytes} bytes")]
    TooManyValues {
        /// Most memory that the parsed form may take.
        limit_bytes: usize,
    },
    /// The body did not arrive in time.
    #[error("the request did not arrive within {limit_s} seconds")]
    RequestTimeout {
        /// The limit.
        limit_s: u64,
    },
    /// The queue is full.
    #[error("the queue is full ({waiting} requests waiting); try again later")]
    QueueFull {
        /// Requests waiting.
        waiting: usize,
        /// When to try again, seconds.
        retry_after_s: u64,
    },
    /// Too many prompt tokens wait.
    #[error("{reason}")]
    QueueTokensFull {
        /// Number of waiting requests, and the limit.
        reason: String,
        /// When to try again, seconds.
        retry_after_s: u64,
    },
    /// The client read nothing of its stream for too long.
    #[error("the stream was ended because the client read nothing of it for the server's `--write-timeout`")]
    Stalled,
    /// The request waited or ran longer than its deadline.
    #[error("the request was not finished within its time limit")]
    DeadlineExceeded,
    /// Something runs that must end first, such as a download of the model to be removed.
    #[error("{reason}")]
    Busy {
        /// The running work, and the client's way out.
        reason: &'static str,
    },
    /// The server is shutting down or not loaded yet.
    #[error("the server is not ready: {reason}")]
    NotReady {
        /// Why.
        reason: &'static str,
    },
    /// The folder or the disk has no room for a session or a model.
    #[error("there is no room on the server: {reason}")]
    StorageFull {
        /// Name of the full resource.
        reason: String,
    },
    /// A model was not downloaded or removed: the network, the other server or the disk failed.
    #[error("{reason}")]
    FolderFailed {
        /// The failure.
        reason: String,
    },
    /// Something failed that the client has no part in.
    #[error("internal error: {reason}")]
    Internal {
        /// Cause of the error.
        reason: String,
    },
}

impl ApiError {
    /// Makes an [`ApiError::InvalidField`].
    pub fn invalid(param: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::InvalidField {
            param: param.into(),
            reason: reason.into(),
        }
    }

    /// Makes an [`ApiError::UnknownField`] of a field `name` at the path `param`, which stands among `known` fields.
    pub(crate) fn unknown_field<'a>(
        param: impl Into<String>,
        name: &str,
        known: impl Iterator<Item = &'a str>,
    ) -> Self {
        // A name of one or two letters stands in most words.
        let known = known.filter(|known| known.len() > 2);
        let near: Vec<String> = near_names(name, known)
            .into_iter()
            .map(|name| format!("`{name}`"))
            .collect();
        Self::UnknownField {
            param: param.into(),
            near: near.join(", "),
        }
    }

    /// Moves the error's field into `outer`.
    pub(crate) fn within(mut self, outer: &str) -> Self {
        if let Self::InvalidField { param, .. }
        | Self::UnknownField { param, .. }
        | Self::UnsupportedField { param, .. } = &mut self
        {
            *param = format!("{outer}.{param}");
        }
        self
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Self::MalformedJson { .. }
            | Self::InvalidField { .. }
            | Self::UnknownField { .. }
            | Self::UnsupportedField { .. }
            | Self::ContextLengthExceeded { .. }
            | Self::ShapeFailed { .. }
            | Self::Template { .. } => 400,
            Self::Unauthorized => 401,
            Self::ForeignOrigin { .. } | Self::ForeignHost { .. } => 403,
            Self::UnknownModel { .. }
            | Self::UnknownAdapter { .. }
            | Self::NoSuchModel { .. }
            | Self::NoModel { .. }
            | Self::NotFound { .. }
            | Self::NotStored { .. } => 404,
            Self::MethodNotAllowed { .. } => 405,
            Self::RequestTimeout { .. } | Self::Stalled => 408,
            Self::Busy { .. } => 409,
            Self::BodyTooLarge { .. } | Self::TooManyValues { .. } => 413,
            Self::CompressedBody { .. } => 415,
            Self::QueueFull { .. } | Self::QueueTokensFull { .. } => 429,
            Self::FolderFailed { .. } | Self::Internal { .. } => 500,
            Self::NotImplemented { .. } => 501,
            Self::NotReady { .. } | Self::ModelFailed { .. } | Self::ModelTooLarge { .. } => 503,
            Self::DeadlineExceeded => 504,
            Self::StorageFull { .. } => 507,
        }
    }

    /// The HTTP status in a dialect. The System One API has one of its own for requests that cannot be read.
    pub(crate) fn status_in(&self, dialect: Dialect) -> u16 {
        match (dialect, self) {
            (Dialect::SystemOne, error) if error.is_of_body() => 422,
            (_, error) => error.status(),
        }
    }

    /// Whether the fault is in the body's form or in a field.
    fn is_of_body(&self) -> bool {
        matches!(
            self,
            Self::MalformedJson { .. }
                | Self::InvalidField { .. }
                | Self::UnknownField { .. }
                | Self::UnsupportedField { .. }
        )
    }

    /// The machine-readable code, stable across versions.
    pub fn code(&self) -> &'static str {
        match self {
            Self::MalformedJson { .. } => "malformed_json",
            Self::InvalidField { .. } => "invalid_value",
            Self::UnknownField { .. } => "unknown_parameter",
            Self::UnsupportedField { .. } => "unsupported_parameter",
            Self::UnknownModel { .. } | Self::NoSuchModel { .. } | Self::NoModel { .. } => "model_not_found",
            Self::UnknownAdapter { .. } => "adapter_not_found",
            Self::ModelFailed { .. } => "model_failed",
            Self::ModelTooLarge { .. } => "model_too_large",
            Self::ContextLengthExceeded { .. } => "context_length_exceeded",
            Self::Template { .. } => "chat_template_error",
            Self::ShapeFailed { .. } => "shape_failed",
            Self::Unauthorized => "invalid_api_key",
            Self::ForeignOrigin { .. } => "forbidden_origin",
            Self::ForeignHost { .. } => "forbidden_host",
            Self::NotFound { .. } | Self::NotStored { .. } => "not_found",
            Self::MethodNotAllowed { .. } => "method_not_allowed",
            Self::NotImplemented { .. } => "not_implemented",
            Self::BodyTooLarge { .. } => "body_too_large",
            Self::CompressedBody { .. } => "compressed_body",
            Self::TooManyValues { .. } => "too_many_values",
            Self::RequestTimeout { .. } => "request_timeout",
            Self::Stalled => "stream_stalled",
            Self::QueueFull { .. } | Self::QueueTokensFull { .. } => "queue_full",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Busy { .. } => "busy",
            Self::NotReady { .. } => "not_ready",
            Self::StorageFull { .. } => "storage_full",
            Self::FolderFailed { .. } => "folder_failed",
            Self::Internal { .. } => "internal_error",
        }
    }

    /// The field at fault, where there is one.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::InvalidField { param, .. }
            | Self::UnknownField { param, .. }
            | Self::UnsupportedField { param, .. } => Some(param),
            Self::UnknownModel { .. }
            | Self::NoSuchModel { .. }
            | Self::NoModel { .. }
            | Self::ModelFailed { .. }
            | Self::ModelTooLarge { .. } => Some("model"),
            Self::UnknownAdapter { .. } => Some("lora_name"),
            _ => None,
        }
    }

    /// The `Retry-After` header in seconds, where a later try may succeed.
    pub fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::QueueFull { retry_after_s, .. } | Self::QueueTokensFull { retry_after_s, .. } => {
                Some(*retry_after_s)
            }
            Self::NotReady { .. } => Some(1),
            Self::ModelFailed { .. } | Self::Busy { .. } => Some(5),
            _ => None,
        }
    }

    /// The JSON body in the client's dialect.
    pub fn body(&self, dialect: Dialect, request_id: &str) -> Value {
        let message = shortened_to(&self.to_string(), MAX_MESSAGE).into_owned();
        match dialect {
            Dialect::OpenAi => {
                let mut body = json!({
                    "error": { "message": message, "type": self.openai_type(), "param": self.param().map(shortened), "code": self.code() }
                });
                // llama.cpp's clients read these fields.
                if let Self::ContextLengthExceeded { provided, maximum } = self {
                    body["error"]["n_prompt_tokens"] = (*provided).into();
                    body["error"]["n_ctx"] = (*maximum).into();
                }
                body
            }
            Dialect::Anthropic => json!({
                "type": "error",
                "error": { "type": self.anthropic_type(), "message": self.in_anthropics_words().unwrap_or(message) },
                "request_id": request_id,
            }),
            Dialect::Ollama => json!({ "error": message }),
            Dialect::SystemOne if self.is_of_body() => {
                let names = names_of(self.param().unwrap_or_default());
                let place = names.into_iter().map(|name| match name {
                    Value::String(name) => shortened(&name).into(),
                    index => index,
                });
                let loc: Vec<Value> = std::iter::once("body".into()).chain(place).collect();
                json!({ "detail": [{ "loc": loc, "msg": message, "type": self.code() }] })
            }
            Dialect::SystemOne => json!({ "detail": message }),
        }
    }

    /// Writes the words that clients of Anthropic's API look for to shorten the conversation.
    fn in_anthropics_words(&self) -> Option<String> {
        match self {
            Self::ContextLengthExceeded { provided, maximum } => Some(format!(
                "prompt is too long: {provided} tokens > {maximum} maximum"
            )),
            _ => None,
        }
    }

    fn openai_type(&self) -> &'static str {
        match self.status() {
            _ if matches!(self, Self::ContextLengthExceeded { .. }) => "exceed_context_size_error",
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.status() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            504 => "timeout_error",
            500 => "api_error",
            _ => "invalid_request_error",
        }
    }
}

#[cfg(test)]
mod tests;
