//! Splits answers into reasoning, tool calls and text while they are generated.
//!
//! A model that calls a tool writes the call into its text, each family in its own format. [`ReplyFormat`] finds the format in the source of the
//! chat template, and [`ReplyParser`] reads an answer piece by piece and returns [`Part`]s.
//!
//! Two rules hold for every format. First, no text is lost: text that breaks a format is delivered as text, and so is text that only looks like a
//! call, such as a call of a tool that was not offered. But a call that a limit cut never becomes text once its name is known. Second, the parts do
//! not depend on how the text was cut into pieces; a name or an argument is delivered as soon as no later text can change it.
//!
//! | module | holds |
//! |---|---|
//! | `format` | finds the format in a template's source |
//! | `families` | the table of formats |
//! | `thinking` | the table of tags around reasoning |
//! | `parser` | text, reasoning and marks; hands over to the bodies |
//! | `marks` | marks of a format |
//! | `thought` | calls in reasoning, and control tokens in text |
//! | `json_body`, `named_body`, `tagged_body`, `literal_body` | the four shapes that calls have |
//! | `channels` | formats in which the whole answer is a row of addressed messages |
//! | `json_scanner`, `literal` | JSON and Python-like values that arrive in pieces |
//! | `grammar` | the same formats as grammars, for calls that must obey their schemas |
//! | `tool_set` | the tools that were offered |
//! | `see_through`, `value_kinds` | kinds and names that schemas of arguments allow |

mod channels;
mod families;
mod format;
mod grammar;
mod json_body;
mod json_scanner;
mod literal;
mod literal_body;
mod marks;
mod named_body;
mod parser;
mod see_through;
mod tagged_body;
mod thinking;
mod thought;
mod tool_set;
mod value_kinds;

#[cfg(test)]
mod tests;

pub use format::ReplyFormat;
pub use grammar::{CallFormError, ToolChoice};
pub use parser::{Opening, ReplyParser};
pub use tool_set::{ToolSet, takes_objects};

/// Classifies a stretch of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text for the reader.
    Text(String),
    /// Reasoning before the answer.
    Reasoning(String),
    /// A call begins: its name is known.
    CallStart {
        /// Its index among the answer's calls.
        call_idx: usize,
        /// The id that the model wrote, in formats that have one.
        id: Option<String>,
        /// The tool's name, one of the offered tools.
        name: String,
    },
    /// More of a call's arguments. All of them together are a JSON object once the call has ended.
    Arguments {
        /// The call.
        call_idx: usize,
        /// The next piece of the JSON.
        delta: String,
    },
    /// A call is complete.
    CallEnd {
        /// The call.
        call_idx: usize,
    },
    /// A limit, or its reader, cut the answer within a call: the delivered arguments are the beginning of a JSON object, or nothing.
    CallCut {
        /// The call.
        call_idx: usize,
    },
    /// A call turns out not to be one, because it breaks the format or the answer ends.
    CallBroken {
        /// The call.
        call_idx: usize,
        /// All text of the call so far, its marks included. Text after it follows as [`Part::Text`].
        source: String,
    },
    /// Marks of the format, which belong to none of the above.
    Markup,
}

/// A part, with the length of the text that it was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Kind of the piece.
    pub part: Part,
    /// Length in the answer, in bytes. The lengths of all pieces add up to the answer.
    pub source_bytes: usize,
}

/// The result of a step of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// This many bytes were read.
    Took(usize),
    /// More text is needed to continue.
    Wait,
    /// This many bytes were read, and the calls are over.
    Done(usize),
    /// This is not a call, or the call does not continue like one.
    Broken,
}

/// Collects the bodies' reports, and their knowledge of the answer.
#[derive(Clone, Debug)]
struct Calls {
    tools: std::sync::Arc<ToolSet>,
    news: Vec<Part>,
    /// Index of the open call, or of the next one.
    call_idx: usize,
    /// Whether a call has begun and has not ended.
    is_open: bool,
}

impl Calls {
    fn start(&mut self, name: &str, id: Option<String>) {
        debug_assert!(!self.is_open, "one call at a time");
        self.is_open = true;
        self.news.push(Part::CallStart {
            call_idx: self.call_idx,
            id,
            name: name.to_owned(),
        });
    }

    fn arguments(&mut self, delta: impl Into<String>) {
        let delta = delta.into();
        if !delta.is_empty() {
            let call_idx = self.call_idx;
            self.news.push(Part::Arguments { call_idx, delta });
        }
    }

    fn end(&mut self) {
        self.news.push(Part::CallEnd {
            call_idx: self.call_idx,
        });
        self.call_idx += 1;
        self.is_open = false;
    }

    fn cut_off(&mut self) {
        self.news.push(Part::CallCut {
            call_idx: self.call_idx,
        });
        self.call_idx += 1;
        self.is_open = false;
    }

    fn break_off(&mut self, source: String) {
        self.news.push(Part::CallBroken {
            call_idx: self.call_idx,
            source,
        });
        self.call_idx += 1;
        self.is_open = false;
    }
}

/// Result of looking for something at the start of a possibly incomplete text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// It was found.
    Yes,
    /// It was not found.
    No,
    /// The text ends before that is known.
    Unknown,
}

/// Returns whether `text` begins with `mark`.
fn begins_with(text: &str, mark: &str, is_last: bool) -> Found {
    if text.starts_with(mark) {
        Found::Yes
    } else if !is_last && mark.starts_with(text) {
        Found::Unknown
    } else {
        Found::No
    }
}

/// Finds the mark that `text` begins with; longer marks come before shorter ones.
fn begins_with_any<'m>(text: &str, marks: &[&'m str], is_last: bool) -> (Found, &'m str) {
    let mut found = (Found::No, "");
    for mark in marks {
        match begins_with(text, mark, is_last) {
            Found::Yes if found.0 == Found::No => found = (Found::Yes, mark),
            // It may be the longer one.
            Found::Unknown => return (Found::Unknown, ""),
            Found::Yes | Found::No => {}
        }
    }
    found
}

/// Counts the bytes of white space at the beginning.
fn space_len(text: &str) -> usize {
    text.len() - text.trim_start().len()
}

/// Counts the bytes at the end of `text` that may be the beginning of one of `marks`.
fn partial_len<'m>(text: &str, marks: impl IntoIterator<Item = &'m str>) -> usize {
    let mut longest = 0;
    for mark in marks {
        let most = mark.len().saturating_sub(1).min(text.len());
        for n in (longest + 1..=most).rev() {
            if mark.is_char_boundary(n) && text.as_bytes().ends_with(&mark.as_bytes()[..n]) {
                longest = n;
                break;
            }
        }
    }
    longest
}

/// Finds the first of `marks`; at one place, the longest.
fn find_first<'m>(text: &str, marks: impl IntoIterator<Item = &'m str>) -> Option<(usize, &'m str)> {
    let mut first: Option<(usize, &str)> = None;
    for mark in marks {
        if let Some(at) = text.find(mark)
            && first.is_none_or(|(place, found)| at < place || at == place && mark.len() > found.len())
        {
            first = Some((at, mark));
        }
    }
    first
}
