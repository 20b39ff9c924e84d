//! [`TaggedBody`]: calls with a tag for each argument, which holds a bare text.
//!
//! Qwen3-Coder, GLM, MiniMax, newer DeepSeek and others write calls in this form. The tool's schema decides
//! the meaning of an argument's text: a string is taken as it is, anything else is JSON. Invariant: strings
//! are passed on as they arrive, other arguments when they end.

use super::{Calls, Found, Step, begins_with, begins_with_any, find_first, partial_len, space_len};

/// How a family writes such calls.
#[derive(Debug)]
pub(super) struct TaggedShape {
    /// The mark that begins a section of calls; empty if there is none.
    pub(super) section: &'static str,
    /// The beginning of each call, before its name.
    pub(super) opener: &'static str,
    /// The end of the name. If empty, the name ends at white space, or at the mark of an argument or of the
    /// end.
    pub(super) name_end: &'static str,
    /// The end of the rest of the call's opening tag, after `name_end`; empty if nothing follows.
    pub(super) opener_end: &'static str,
    /// The beginning of an argument, before its name.
    pub(super) argument: &'static str,
    /// The end of the argument's name.
    pub(super) key_end: &'static str,
    /// The beginning of its value. Attributes may precede it if `has_attributes`, else white space.
    pub(super) value: &'static str,
    /// Whether the argument's tag may have attributes.
    pub(super) has_attributes: bool,
    /// Attributes in the family's own form: for a text, and for other values.
    pub(super) attributes: (&'static str, &'static str),
    /// The end of its value.
    pub(super) value_end: &'static str,
    /// Whether the value excludes a line break at its beginning and one at its end.
    pub(super) is_on_own_lines: bool,
    /// Whether a value may be wrapped in `<![CDATA[...]]>`.
    pub(super) has_cdata: bool,
    /// The end of the call.
    pub(super) closer: &'static str,
    /// Marks that may end the section.
    pub(super) section_closers: &'static [&'static str],
}

/// Longest name of a tool or an argument, and longest attributes.
pub(super) const MAX_NAME_BYTES: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Section,
    Name,
    OpenerEnd,
    /// Before an argument or the end of the call.
    Arguments,
    Key,
    BeforeValue,
    /// A value that is read when it is complete.
    Value,
    /// At the beginning of a text that is passed on as it arrives.
    TextStart,
    Text,
    /// After a call.
    Between,
}

/// Reads calls after their opening mark.
#[derive(Clone, Debug)]
pub(super) struct TaggedBody {
    shape: &'static TaggedShape,
    state: State,
    name: String,
    key: String,
    n_arguments: usize,
}

impl TaggedBody {
    /// Begins after `mark`, which is the section's or a call's.
    pub(super) fn new(shape: &'static TaggedShape, mark: &str) -> Self {
        let is_section = !shape.section.is_empty() && mark == shape.section;
        Self {
            shape,
            state: if is_section { State::Section } else { State::Name },
            name: String::new(),
            key: String::new(),
            n_arguments: 0,
        }
    }

    pub(super) fn step(&mut self, text: &str, is_last: bool, calls: &mut Calls) -> Step {
        let shape = self.shape;
        match self.state {
            State::Section => {
                let space = space_len(text);
                match begins_with(&text[space..], shape.opener, is_last) {
                    Found::Yes => self.go(State::Name, space + shape.opener.len()),
                    Found::Unknown => Step::Wait,
                    Found::No => Step::Broken,
                }
            }
            State::Name => self.name(text, calls),
            State::OpenerEnd => match text.find(shape.opener_end) {
                Some(at) if at <= MAX_NAME_BYTES => self.go(State::Arguments, at + shape.opener_end.len()),
                None if text.len() <= MAX_NAME_BYTES + shape.opener_end.len() => Step::Wait,
                _ => Step::Broken,
            },
            State::Arguments => self.arguments(text, is_last, calls),
            State::Key => match text.find(shape.key_end) {
                Some(at) if at <= MAX_NAME_BYTES && at > 0 => {
                    text[..at].trim().clone_into(&mut self.key);
                    self.go(State::BeforeValue, at + shape.key_end.len())
                }
                None if text.len() <= MAX_NAME_BYTES + shape.key_end.len() => Step::Wait,
                _ => Step::Broken,
            },
            State::BeforeValue => self.before_value(text, calls),
            State::Value => match text.find(shape.value_end) {
                None => Step::Wait,
                Some(at) => {
                    let value = self.without_line_breaks(&text[..at]);
                    let wrapped = value
                        .strip_prefix("<![CDATA[")
                        .and_then(|rest| rest.strip_suffix("]]>"));
                    calls.arguments(match wrapped.filter(|_| shape.has_cdata) {
                        Some(text) => serde_json::Value::from(text).to_string(),
                        None => calls.tools.argument_json(&self.name, &self.key, value),
                    });
                    self.go(State::Arguments, at + shape.value_end.len())
                }
            },
            State::TextStart => {
                if shape.is_on_own_lines && text.is_empty() {
                    return Step::Wait;
                }
                let n = usize::from(shape.is_on_own_lines && text.starts_with('\n'));
                self.go(State::Text, n)
            }
            State::Text => self.text(text, calls),
            State::Between => self.between(text, is_last),
        }
    }

    /// Returns whether a call has ended and none has begun since.
    pub(super) fn is_after_call(&self) -> bool {
        self.state == State::Between
    }

    fn go(&mut self, state: State, n: usize) -> Step {
        self.state = state;
        Step::Took(n)
    }

    fn name(&mut self, text: &str, calls: &mut Calls) -> Step {
        let shape = self.shape;
        let space = space_len(text);
        let rest = &text[space..];
        let (end, n_mark) = if shape.name_end.is_empty() {
            // A mark after the name ends it and is read again.
            let marked = find_first(rest, [shape.argument, shape.closer]).map(|(at, _)| at);
            let spaced = rest.find(char::is_whitespace);
            (marked.into_iter().chain(spaced).min(), 0)
        } else {
            (rest.find(shape.name_end), shape.name_end.len())
        };
        let Some(end) = end else {
            return if text.len() > 2 * MAX_NAME_BYTES {
                Step::Broken
            } else {
                Step::Wait
            };
        };
        let name = rest[..end].trim();
        if !calls.tools.contains(name) {
            return Step::Broken;
        }
        name.clone_into(&mut self.name);
        self.n_arguments = 0;
        calls.start(name, None);
        let has_more = !shape.opener_end.is_empty();
        let next = if has_more {
            State::OpenerEnd
        } else {
            State::Arguments
        };
        self.go(next, space + end + n_mark)
    }

    fn arguments(&mut self, text: &str, is_last: bool, calls: &mut Calls) -> Step {
        let shape = self.shape;
        let space = space_len(text);
        let rest = &text[space..];
        let (found, mark) = begins_with_any(rest, &[shape.argument, shape.closer], is_last);
        match found {
            Found::Unknown => Step::Wait,
            Found::Yes if mark == shape.argument => self.go(State::Key, space + mark.len()),
            Found::Yes => {
                self.end_call(calls);
                self.go(State::Between, space + mark.len())
            }
            Found::No => match begins_with_any(rest, shape.section_closers, is_last) {
                // The call's own end was omitted.
                (Found::Yes, mark) => {
                    self.end_call(calls);
                    Step::Done(space + mark.len())
                }
                (Found::Unknown, _) => Step::Wait,
                (Found::No, _) if rest.is_empty() && !is_last => Step::Wait,
                (Found::No, _) => Step::Broken,
            },
        }
    }

    fn end_call(&self, calls: &mut Calls) {
        calls.arguments(if self.n_arguments == 0 { "{}" } else { "}" });
        calls.end();
    }

    fn before_value(&mut self, text: &str, calls: &mut Calls) -> Step {
        let shape = self.shape;
        let mut attributes = "";
        let mut n_mark = 0;
        if !shape.value.is_empty() {
            let Some(at) = text.find(shape.value) else {
                return if text.len() > MAX_NAME_BYTES + shape.value.len() {
                    Step::Broken
                } else {
                    Step::Wait
                };
            };
            attributes = &text[..at];
            if at > MAX_NAME_BYTES || !shape.has_attributes && !attributes.trim().is_empty() {
                return Step::Broken;
            }
            n_mark = at + shape.value.len();
        }
        let is_text = if attributes.contains("string=\"true\"") || attributes.contains("type=\"string\"") {
            Some(true)
        } else if attributes.contains("string=\"false\"") || attributes.contains("type=\"") {
            Some(false)
        } else {
            calls.tools.takes_text(&self.name, &self.key)
        };
        let separator = if self.n_arguments == 0 { "{" } else { ", " };
        self.n_arguments += 1;
        calls.arguments(format!(
            "{separator}{}: ",
            serde_json::Value::from(self.key.as_str())
        ));
        if is_text == Some(true) && !shape.has_cdata {
            calls.arguments("\"");
            self.go(State::TextStart, n_mark)
        } else {
            self.go(State::Value, n_mark)
        }
    }

    fn text(&mut self, text: &str, calls: &mut Calls) -> Step {
        let shape = self.shape;
        if let Some(at) = text.find(shape.value_end) {
            let end = if shape.is_on_own_lines && text[..at].ends_with('\n') {
                at - 1
            } else {
                at
            };
            calls.arguments(escaped(&text[..end]));
            calls.arguments("\"");
            return self.go(State::Arguments, at + shape.value_end.len());
        }
        let mut n_sure = text.len() - partial_len(text, [shape.value_end]);
        if shape.is_on_own_lines && text[..n_sure].ends_with('\n') {
            n_sure -= 1;
        }
        if n_sure == 0 {
            return Step::Wait;
        }
        calls.arguments(escaped(&text[..n_sure]));
        Step::Took(n_sure)
    }

    fn without_line_breaks<'t>(&self, value: &'t str) -> &'t str {
        if !self.shape.is_on_own_lines {
            return value;
        }
        let value = value.strip_prefix('\n').unwrap_or(value);
        value.strip_suffix('\n').unwrap_or(value)
    }

    fn between(&mut self, text: &str, is_last: bool) -> Step {
        let shape = self.shape;
        let space = space_len(text);
        let rest = &text[space..];
        if rest.is_empty() && !is_last {
            return Step::Wait;
        }
        match begins_with_any(rest, shape.section_closers, is_last) {
            (Found::Yes, mark) => return Step::Done(space + mark.len()),
            (Found::Unknown, _) => return Step::Wait,
            (Found::No, _) => {}
        }
        match begins_with(rest, shape.opener, is_last) {
            Found::Yes => self.go(State::Name, space + shape.opener.len()),
            Found::Unknown => Step::Wait,
            Found::No => Step::Done(0),
        }
    }
}

/// Returns a text in the form inside a JSON string.
fn escaped(text: &str) -> String {
    let mut json = serde_json::Value::from(text).to_string();
    json.pop();
    json.remove(0);
    json
}
