//! Calls in reasoning, and control tokens in what is read.
//!
//! Separate from the parser because both observe an answer. Some models call a tool while they think, and end; others write a
//! draft of a call and think on. Invariant: what stands in reasoning is a call only where the answer ends without the end of the reasoning.

use super::{Part, Piece, ReplyParser, find_first, partial_len};

/// Bytes that are read before it is asked whether they are a call.
const CHUNK_BYTES: usize = 256;

/// What may be calls in reasoning, read apart until it is known whether the reasoning continues.
#[derive(Clone, Debug)]
pub(super) struct Thought {
    parser: Box<ReplyParser>,
    pieces: Vec<Piece>,
    /// Bytes of the text that it has read.
    n_read: usize,
    /// Bytes up to the end of the mark that it begins with.
    n_mark: usize,
    is_called: bool,
    has_text_behind: bool,
    /// Whether it turned out to be no call.
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

    /// Whether all of it are calls that are complete.
    pub(super) fn is_whole(&self) -> bool {
        let (is_open, rest) = (self.parser.calls.is_open, self.parser.held.trim());
        self.is_called && !self.has_text_behind && !is_open && rest.is_empty()
    }
}

impl ReplyParser {
    /// Looks for calls in reasoning that has not ended, in the text that is held. Returns whether there is more
    /// to read, and nothing where no call begins.
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

/// A text in its parts, without the texts of control tokens.
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

/// A text without the texts of control tokens in it.
pub(super) fn without_controls(mut text: String, controls: &[String]) -> String {
    for control in controls {
        if text.contains(control.as_str()) {
            text = text.replace(control.as_str(), "");
        }
    }
    text
}
