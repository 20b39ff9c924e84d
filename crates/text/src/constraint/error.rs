//! [`ConstraintError`]: why a constraint was refused, or could not be followed.
//!
//! Constraints come from clients, and the answer must name the limit. Invariant: a message has one or two lines, even for a
//! library's error.

use std::{fmt, time::Duration};

/// The languages of constraints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConstraintKind {
    /// A JSON schema.
    JsonSchema,
    /// A regular expression.
    Regex,
    /// A list of texts.
    Choice,
    /// A grammar in Lark's notation.
    Lark,
    /// A grammar in llama.cpp's notation.
    Gbnf,
    /// Calls of tools with schemas.
    Calls,
    /// Any text.
    Any,
}

impl fmt::Display for ConstraintKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::JsonSchema => "JSON schema",
            Self::Regex => "regular expression",
            Self::Choice => "list of choices",
            Self::Lark => "Lark grammar",
            Self::Gbnf => "GBNF grammar",
            Self::Calls => "form of the tool calls",
            Self::Any => "text",
        })
    }
}

/// Why a constraint was refused, or could not be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// It is larger than the limit.
    #[error("the {kind} has {found} bytes, the limit is {maximum}")]
    TooLarge {
        /// Language of the constraint.
        kind: ConstraintKind,
        /// Its size.
        found: usize,
        /// The limit.
        maximum: usize,
    },
    /// It is nested deeper than the limit.
    #[error("the {kind} is nested deeper than {maximum} levels")]
    TooDeep {
        /// Language of the constraint.
        kind: ConstraintKind,
        /// The limit.
        maximum: usize,
    },
    /// A chain of references between rules or definitions is too long for any compiler.
    #[error("the {kind} has {found} rules or definitions in a chain of references, the limit is {maximum}")]
    TooLong {
        /// Language of the constraint.
        kind: ConstraintKind,
        /// Length of the chain.
        found: usize,
        /// Longest allowed chain.
        maximum: usize,
    },
    /// Compiling it takes more CPU time than the limit.
    #[error("compiling the {kind} takes longer than the limit of {limit:?}; make it smaller")]
    TooSlow {
        /// Language of the constraint.
        kind: ConstraintKind,
        /// The limit.
        limit: Duration,
    },
    /// The machine is so busy, or so many constraints are being compiled, that this one was not compiled in time.
    #[error("the machine is busy, {n_running} constraints are being compiled; try again later")]
    Busy {
        /// Number of running compilations.
        n_running: usize,
    },
    /// It is malformed, or says something that cannot be enforced.
    #[error("the {kind} cannot be enforced: {reason}")]
    Refused {
        /// Language of the constraint.
        kind: ConstraintKind,
        /// Cause of the error.
        reason: String,
    },
    /// A line of a GBNF grammar is malformed.
    #[error("the GBNF grammar, line {line}: {problem}")]
    Gbnf {
        /// The line, from 1.
        line: usize,
        /// Cause of the error.
        problem: String,
    },
    /// No finite text satisfies it.
    #[error("no finite text satisfies the {kind}")]
    Nothing {
        /// Language of the constraint.
        kind: ConstraintKind,
    },
    /// Calls of a tool cannot be constrained to its schema.
    #[error("calls of the tool `{tool}` cannot be held to its schema: {reason}")]
    Tool {
        /// The tool.
        tool: String,
        /// Fault in its schema.
        reason: String,
    },
    /// A vocabulary of this kind cannot be constrained.
    #[error("the vocabulary cannot be constrained: {reason}")]
    Vocabulary {
        /// Why.
        reason: String,
    },
    /// A text exceeded the limits of a step.
    #[error("the constraint cannot be followed further: {reason}")]
    Step {
        /// Limit that was exceeded.
        reason: String,
    },
}

impl ConstraintError {
    /// Returns the language of the refused constraint, if the error is about one.
    pub fn kind(&self) -> Option<ConstraintKind> {
        match self {
            Self::TooLarge { kind, .. }
            | Self::TooDeep { kind, .. }
            | Self::TooLong { kind, .. }
            | Self::TooSlow { kind, .. }
            | Self::Refused { kind, .. }
            | Self::Nothing { kind } => Some(*kind),
            Self::Gbnf { .. } => Some(ConstraintKind::Gbnf),
            Self::Tool { .. } => Some(ConstraintKind::Calls),
            Self::Busy { .. } | Self::Vocabulary { .. } | Self::Step { .. } => None,
        }
    }
}

/// Converts a library's error in a step.
pub(super) fn step_error(error: &impl fmt::Display) -> ConstraintError {
    ConstraintError::Step {
        reason: first_line(&error.to_string()),
    }
}

/// Shortens a library's error to one line of bounded length, without the backtrace of a caught panic. In an error about a regular
/// expression, whose lines show the expression and a mark below it, the last line has the cause.
pub(super) fn first_line(message: &str) -> String {
    let message = message.trim();
    let mut line = message.lines().next().unwrap_or_default().to_owned();
    if line.starts_with("panic:") {
        return "it is too large or too complex for the compiler's tables".to_owned();
    }
    if line.ends_with("regex parse error:")
        && let Some(cause) = message
            .lines()
            .find_map(|line| line.trim().strip_prefix("error: "))
    {
        line.push(' ');
        line.push_str(cause);
    }
    let mut line: String = line.chars().take(300).collect();
    if line.is_empty() {
        "the compiler gives no reason".clone_into(&mut line);
    }
    line
}
