//! Finds calls in reasoning, and removes control tokens from texts.
//!
//! Some models call a tool while they reason, and end; others draft a call and continue to reason. Invariant: a text in reasoning is a
//! call only if the answer ends before the reasoning does.

use super::{Part, Piece, ReplyParser, find_first, partial_len};

/// Bytes that are read between checks for a call.
const CHUNK_BYTES: usize = 256;

/// Parses possible calls in reasoning, separately from the answer, until it is known whether the reasoning continues.
#[derive(Clone, Debug)]
pub(super) struct Thought {
    parser: Box<ReplyParser>,
    pieces: Vec<Piece>,
    /// Bytes of the text that were read.
    n_read: usize,
    /// Bytes up to the end of the mark at the start.
    n_mark: usize,
    is_called: bool,
    has_text_behind: bool,
    /// Whether the text turned out not to be a call.
    is_none: bool,
}

impl Thought {
    fn new(parser: ReplyParser, n_mark: usize) -> Self {
        Self {
            parser: Box::new(parser),
            pieces: Vec::new(),
            n_read: 0,
            n_mark,
            is_called: false,
            has_text_behind: false,
            is_none: false,
        }
    }

    fn read(&mut self, text: &str, is_last: bool) {
        while self.n_read < text.len() && !self.is_none {
            let mut end = (self.n_read + CHUNK_BYTES).min(text.len());
            while !text.is_char_boundary(end) {
                end += 1;
            }
            let pieces = self.parser.push(&text[self.n_read..end]);
            self.take(pieces);
            self.n_read = end;
        }
        if is_last && !self.is_none {
            let rest = self.parser.finish();
            self.take(rest);
            self.is_none |= !self.is_called;
        }
    }

    fn take(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece.part {
                Part::CallEnd { .. } => self.is_called = true,
                Part::Text(_) if self.is_called => self.has_text_behind = true,
                Part::CallBroken { .. } | Part::Text(_) => self.is_none = true,
                _ => {}
            }
            self.pieces.push(piece);
        }
    }

    /// Returns whether the text consists of complete calls.
    pub(super) fn is_whole(&self) -> bool {
        let (is_open, rest) = (self.parser.calls.is_open, self.parser.held.trim());
        self.is_called && !self.has_text_behind && !is_open && rest.is_empty()
    }
}

impl ReplyParser {
    /// Looks for calls in unfinished reasoning, in the held text. Returns whether there is more to read, and `None` if no call begins.
    pub(super) fn think_of_call(&mut self, is_last: bool, out: &mut Vec<Piece>) -> Option<bool> {
        if self.thought.is_none() {
            let (at, mark) = find_first(&self.held, self.openers.iter().copied())?;
            // A longer mark may still come.
            let n_partial = partial_len(&self.held, self.openers.iter().copied());
            if !is_last && n_partial == self.held.len() - at {
                return None;
            }
            let n_mark = mark.len();
            let n_text = self.held[..at].trim_end().len();
            self.emit(Part::Reasoning(self.held[..n_text].to_owned()), n_text, out);
            self.thought = Some(Thought::new(self.of_calls(), at - n_text + n_mark));
        }
        let mut thought = self.thought.take()?;
        thought.read(&self.held, is_last);
        if thought.is_none {
            // The mark is a word of the reasoning.
            let n_mark = thought.n_mark;
            self.emit(Part::Reasoning(self.held[..n_mark].to_owned()), n_mark, out);
            return Some(true);
        }
        if !is_last {
            self.thought = Some(thought);
            return Some(false);
        }
        self.end_reasoning(thought.parser.calls.call_idx);
        out.extend(thought.pieces.into_iter().map(|mut piece| {
            if let Part::Text(text) = piece.part {
                piece.part = Part::Reasoning(text);
            }
            piece
        }));
        Some(false)
    }
}

/// Splits a text into parts, with control tokens as markup.
pub(super) fn split_at_controls(
    text: &str,
    controls: &[String],
    as_part: fn(String) -> Part,
    out: &mut Vec<Piece>,
) {
    let mut rest = text;
    while !rest.is_empty() {
        let found = find_first(rest, controls.iter().map(String::as_str));
        let (n_text, n_mark) = found.map_or((rest.len(), 0), |(at, mark)| (at, mark.len()));
        for (part, source_bytes) in [
            (as_part(rest[..n_text].to_owned()), n_text),
            (Part::Markup, n_mark),
        ] {
            if source_bytes > 0 {
                out.push(Piece { part, source_bytes });
            }
        }
        rest = &rest[n_text + n_mark..];
    }
}

/// Removes the texts of control tokens from a text.
pub(super) fn without_controls(mut text: String, controls: &[String]) -> String {
    for control in controls {
        if text.contains(control.as_str()) {
            text = text.replace(control.as_str(), "");
        }
    }
    text
}
