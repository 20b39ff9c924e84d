//! [`TemplateError`]: why a chat template could not be read or rendered.
//!
//! Templates come from model authors. Invariant: every error names the template line it happened on, so a model
//! author can act on it.

use std::fmt;

/// Why a chat template could not be read or rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The source is not a template.
    #[error("chat template, line {line}: {problem}")]
    Syntax {
        /// Line of the source, from 1.
        line: u32,
        /// The text that was found and the text that was expected.
        problem: String,
    },
    /// The template itself refused the conversation by calling `raise_exception`.
    #[error("the chat template refused the conversation: {message}")]
    Raised {
        /// Line of the source, from 1.
        line: u32,
        /// The template's own words.
        message: String,
    },
    /// The template used a value that does not exist.
    #[error("chat template, line {line}: {what}")]
    Undefined {
        /// Line of the source, from 1.
        line: u32,
        /// The undefined name.
        what: String,
    },
    /// An operation does not fit its operands.
    #[error("chat template, line {line}: {problem}")]
    Type {
        /// Line of the source, from 1.
        line: u32,
        /// The operation and the types it met.
        problem: String,
    },
    /// Rendering would have gone beyond a limit.
    #[error("chat template, line {line}: rendering stopped at its limit of {limit}")]
    LimitExceeded {
        /// Line of the source, from 1.
        line: u32,
        /// The limit.
        limit: TemplateLimit,
    },
}

/// A limit that keeps an untrusted template from taking time or memory without end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TemplateLimit {
    /// Steps of evaluation.
    Fuel(u64),
    /// Bytes of values alive at one time.
    MemoryBytes(usize),
    /// Bytes of rendered text.
    OutputBytes(usize),
    /// Macro calls and blocks inside one another.
    Recursion(usize),
    /// Containers inside one another.
    Nesting(usize),
    /// Bytes of template source.
    SourceBytes(usize),
}

impl fmt::Display for TemplateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fuel(n) => write!(f, "{n} steps"),
            Self::MemoryBytes(n) => write!(f, "{n} bytes of memory"),
            Self::OutputBytes(n) => write!(f, "{n} bytes of output"),
            Self::Recursion(n) => write!(f, "{n} nested calls and blocks"),
            Self::Nesting(n) => write!(f, "{n} nested containers"),
            Self::SourceBytes(n) => write!(f, "{n} bytes of source"),
        }
    }
}

/// A failure during evaluation, before the line is known.
#[derive(Debug)]
pub(super) enum Fault {
    Raised(String),
    Undefined(String),
    Type(String),
    Limit(TemplateLimit),
}

impl Fault {
    pub(super) fn at(self, line: u32) -> TemplateError {
        match self {
            Self::Raised(message) => TemplateError::Raised { line, message },
            Self::Undefined(what) => TemplateError::Undefined { line, what },
            Self::Type(problem) => TemplateError::Type { line, problem },
            Self::Limit(limit) => TemplateError::LimitExceeded { line, limit },
        }
    }

    /// Returns a [`Fault::Type`] with a ready message.
    pub(super) fn type_error(problem: impl Into<String>) -> Self {
        Self::Type(problem.into())
    }
}
