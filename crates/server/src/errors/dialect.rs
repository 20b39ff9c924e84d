//! [`Dialect`]: the API whose error form a client understands.
//!
//! Endpoints choose it before anything fails.

/// Which API's error body a client expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `{"error": {"message", "type", "code", "param"}}`
    OpenAi,
    /// `{"type": "error", "error": {"type", "message"}, "request_id"}`
    Anthropic,
    /// `{"error": "message"}`
    Ollama,
    /// `{"detail": [{"loc", "msg", "type"}]}` for a fault of a field, `{"detail": "message"}` for others
    SystemOne,
}

impl Dialect {
    /// The API that a path is part of.
    pub(crate) fn of_path(path: &str) -> Self {
        if path.starts_with("/v1/messages") {
            Self::Anthropic
        } else if path.starts_with("/api/") {
            Self::Ollama
        } else if path.ends_with("/systemone") {
            Self::SystemOne
        } else {
            Self::OpenAi
        }
    }
}
