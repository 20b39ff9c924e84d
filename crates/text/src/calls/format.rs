//! [`ReplyFormat`]: how a model writes calls and reasoning, found in the source of its chat template.
//!
//! Several formats share a parser. Invariant: for a template that matches no family, calls have Hermes's
//! form, and the prompt tells the model so.

use super::{
    channels::{ChannelFamily, ChannelShape},
    families::{FORMATS, GENERIC},
    json_body::JsonShape,
    literal_body::LiteralShape,
    named_body::NamedShape,
    tagged_body::TaggedShape,
    thinking::{Thinking, thinking_of},
};

/// Describes how a model writes calls and reasoning.
#[derive(Clone, Copy, Debug)]
pub struct ReplyFormat {
    pub(super) calls: &'static CallFormat,
    pub(super) thinking: Option<&'static Thinking>,
}

/// One row of the table of families.
#[derive(Debug)]
pub(super) struct CallFormat {
    pub(super) name: &'static str,
    /// The signs of the family: a template's source matches if it contains every string of one of these
    /// lists.
    pub(super) signs: &'static [&'static [&'static str]],
    pub(super) shape: Shape,
    /// Marks that may surround text without a meaning.
    pub(super) wrappers: &'static [&'static str],
}

/// The shape of a family's calls.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    Json(&'static JsonShape),
    Named(&'static NamedShape),
    Tagged(&'static TaggedShape),
    Literal(&'static LiteralShape),
    /// Llama 3 without a mark: JSON, or a list of calls as in Python.
    JsonOrLiteral(&'static JsonShape, &'static LiteralShape),
    Channels(&'static ChannelShape),
}

impl ReplyFormat {
    /// Finds the format in the source of a chat template.
    pub fn of_template(source: &str) -> Self {
        let is_in = |signs: &&[&str]| signs.iter().all(|sign| source.contains(sign));
        let row = FORMATS.iter().find(|row| row.signs.iter().any(is_in));
        let channels = row.is_some_and(|row| matches!(row.shape, Shape::Channels(_)));
        Self {
            calls: row.unwrap_or(&GENERIC),
            thinking: thinking_of(source).filter(|_| !channels),
        }
    }

    /// Returns the name of the family with these calls.
    pub fn name(&self) -> &'static str {
        self.calls.name
    }

    /// Returns whether the model's reasoning can be distinguished from its answer.
    pub fn has_reasoning(&self) -> bool {
        self.thinking.is_some()
            || matches!(self.calls.shape, Shape::Channels(shape) if shape.family == ChannelFamily::Harmony)
    }

    /// Returns whether answers are messages with heads.
    pub fn has_heads(&self) -> bool {
        matches!(self.calls.shape, Shape::Channels(_))
    }

    /// Returns the mark that ends reasoning, if reasoning is between tags.
    pub fn reasoning_close(&self) -> Option<&'static str> {
        self.thinking.map(|tags| tags.close)
    }

    /// Returns the end of a prompt after which the model answers inside its reasoning.
    pub fn reasoning_open(&self) -> Option<&'static str> {
        self.thinking.map(|tags| tags.open)
    }

    /// Returns whether an answer to a prompt that ends in `tail` begins in its reasoning.
    pub fn opens_reasoning(&self, tail: &str) -> bool {
        let open = self.thinking.map(|tags| tags.open.trim_end());
        open.is_some_and(|open| tail.trim_end().ends_with(open))
    }

    /// Returns whether an answer to a prompt that ends like `tail` begins in the head of a message.
    pub fn opens_head(&self, tail: &str) -> bool {
        match self.calls.shape {
            Shape::Channels(shape) => {
                let at = tail.rfind(shape.opener);
                at.is_some_and(|at| !tail[at..].contains(shape.head_end))
            }
            _ => false,
        }
    }
}
