//! Lists the marks of a format: the marks that begin calls, and all marks of an answer.
//!
//! They depend only on the format, not on an answer. Invariant: the parser looks only for listed marks.

use super::{ReplyParser, format::Shape, literal::Dialect, thinking::Thinking};

impl ReplyParser {
    /// Lists the marks in answers of this format; tokens that are parts of them belong to the text.
    pub fn marks(&self) -> Vec<&'static str> {
        let mut marks = self.openers.clone();
        marks.extend(self.format.calls.wrappers);
        if let Some(Thinking { open, close, .. }) = self.format.thinking {
            marks.extend([open, close]);
        }
        if let Some(channels) = &self.channels {
            marks.extend(channels.marks());
            marks.extend(channels.controls());
        }
        if !self.calls.tools.is_empty() {
            match self.format.calls.shape {
                Shape::Json(shape) | Shape::JsonOrLiteral(shape, _) => marks.extend(shape.closers),
                Shape::Named(shape) => {
                    marks.extend([
                        shape.section,
                        shape.opener,
                        shape.arguments,
                        shape.fence,
                        "<｜tool▁sep｜>",
                        "[CALL_ID]",
                        "<|tool_call:name|>",
                    ]);
                    marks.extend(shape.closers);
                    marks.extend(shape.section_closers);
                }
                Shape::Tagged(shape) => {
                    marks.extend([
                        shape.section,
                        shape.opener,
                        shape.name_end,
                        shape.opener_end,
                        shape.argument,
                        shape.key_end,
                        shape.value,
                        shape.value_end,
                        shape.closer,
                    ]);
                    marks.extend(shape.section_closers);
                }
                Shape::Literal(shape) => {
                    marks.extend(shape.closers);
                    if let Dialect::Marked(mark) = shape.dialect {
                        marks.push(mark);
                    }
                }
                Shape::Channels(_) => {}
            }
        }
        marks.retain(|mark| !mark.is_empty());
        marks
    }
}

/// Lists the marks that begin calls of a shape.
pub(super) fn openers_of(shape: Shape) -> Vec<&'static str> {
    let mut openers = match shape {
        Shape::Json(shape) | Shape::JsonOrLiteral(shape, _) => shape.openers.to_vec(),
        Shape::Literal(shape) => shape.openers.to_vec(),
        Shape::Named(shape) => vec![shape.section, shape.opener],
        Shape::Tagged(shape) => vec![shape.section, shape.opener],
        Shape::Channels(_) => Vec::new(),
    };
    openers.retain(|mark| !mark.is_empty());
    openers
}
