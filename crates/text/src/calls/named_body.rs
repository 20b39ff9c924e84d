//! [`NamedBody`]: calls that are a name, a mark and a JSON object.
//!
//! DeepSeek, Kimi, newer Mistral and Functionary's older form use this form; they differ in marks and in the text next to
//! the name. Invariant: a call begins when its head is complete and names one of the tools.

use super::{
    Calls, Found, Step, begins_with, begins_with_any, find_first,
    json_scanner::{JsonScanner, Scan},
    space_len,
};

/// Describes how a family writes such calls.
#[derive(Debug)]
pub(super) struct NamedShape {
    /// The mark that begins a section of calls; empty if there is none.
    pub(super) section: &'static str,
    /// The mark that begins each call.
    pub(super) opener: &'static str,
    /// The mark between head and arguments.
    pub(super) arguments: &'static str,
    /// Finds name and id in the head.
    pub(super) head: fn(&str) -> Option<Head<'_>>,
    /// Heads in the family's form, with `{name}`, `{number}` and `{id}` as placeholders.
    pub(super) heads: &'static [&'static str],
    /// Text that ends the arguments before the mark of the call's end; empty if there is none.
    pub(super) fence: &'static str,
    /// Marks that may end a call.
    pub(super) closers: &'static [&'static str],
    /// Marks that may end the section.
    pub(super) section_closers: &'static [&'static str],
}

/// The head of a call, before its arguments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head<'t> {
    pub(super) name: &'t str,
    pub(super) id: Option<&'t str>,
}

/// Longest head.
const MAX_HEAD_BYTES: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the opening mark of a call.
    Section,
    Head,
    BeforeArguments,
    Arguments,
    AfterArguments,
    /// After the arguments and the text that ends them.
    AfterFence,
    /// After a call.
    Between,
}

/// Reads calls after their opening mark.
#[derive(Clone, Debug)]
pub(super) struct NamedBody {
    shape: &'static NamedShape,
    state: State,
    scanner: JsonScanner,
}

impl NamedBody {
    /// Begins after `mark`, which is the section's or a call's.
    pub(super) fn new(shape: &'static NamedShape, mark: &str) -> Self {
        let is_section = !shape.section.is_empty() && mark == shape.section;
        Self {
            shape,
            state: if is_section { State::Section } else { State::Head },
            scanner: JsonScanner::new(),
        }
    }

    pub(super) fn step(&mut self, text: &str, is_last: bool, calls: &mut Calls) -> Step {
        match self.state {
            State::Section => self.section(text, is_last),
            State::Head => self.head(text, calls),
            State::BeforeArguments => match text.trim_start().chars().next() {
                None => Step::Wait,
                Some('{') => {
                    self.state = State::Arguments;
                    Step::Took(space_len(text))
                }
                Some(_) => Step::Broken,
            },
            State::Arguments => {
                if text.is_empty() {
                    return Step::Wait;
                }
                let mut json = String::new();
                let (n, scan) = self.scanner.feed(text, is_last, &mut json);
                calls.arguments(json);
                match scan {
                    Scan::Invalid if n == 0 => return Step::Broken,
                    Scan::Done => {
                        calls.end();
                        self.state = State::AfterArguments;
                    }
                    Scan::Invalid | Scan::More => {}
                }
                Step::Took(n)
            }
            State::AfterArguments => self.pass(&[self.shape.fence], State::AfterFence, text, is_last),
            State::AfterFence => self.pass(self.shape.closers, State::Between, text, is_last),
            State::Between => self.between(text, is_last),
        }
    }

    /// Returns whether a call has ended and none has begun since.
    pub(super) fn is_after_call(&self) -> bool {
        matches!(
            self.state,
            State::AfterArguments | State::AfterFence | State::Between
        )
    }

    fn section(&mut self, text: &str, is_last: bool) -> Step {
        let space = space_len(text);
        match begins_with(&text[space..], self.shape.opener, is_last) {
            Found::Yes => {
                self.state = State::Head;
                Step::Took(space + self.shape.opener.len())
            }
            Found::Unknown => Step::Wait,
            Found::No => Step::Broken,
        }
    }

    fn head(&mut self, text: &str, calls: &mut Calls) -> Step {
        let Some((at, mark)) = find_first(text, [self.shape.arguments]) else {
            return if text.len() > MAX_HEAD_BYTES + self.shape.arguments.len() {
                Step::Broken
            } else {
                Step::Wait
            };
        };
        match (self.shape.head)(text[..at].trim()) {
            Some(head) if at <= MAX_HEAD_BYTES && calls.tools.contains(head.name) => {
                calls.start(head.name, head.id.map(str::to_owned));
                self.scanner = JsonScanner::new();
                self.state = State::BeforeArguments;
                Step::Took(at + mark.len())
            }
            _ => Step::Broken,
        }
    }

    /// Continues at `next`, past one of the marks if it follows. A call whose arguments are whole is a call without them, too.
    fn pass(&mut self, marks: &[&str], next: State, text: &str, is_last: bool) -> Step {
        let space = space_len(text);
        let (found, mark) = if marks.iter().all(|mark| mark.is_empty()) {
            (Found::No, "")
        } else {
            begins_with_any(&text[space..], marks, is_last)
        };
        if found == Found::Unknown {
            return Step::Wait;
        }
        self.state = next;
        Step::Took(if found == Found::Yes {
            space + mark.len()
        } else {
            0
        })
    }

    fn between(&mut self, text: &str, is_last: bool) -> Step {
        let space = space_len(text);
        let rest = &text[space..];
        if rest.is_empty() && !is_last {
            return Step::Wait;
        }
        match begins_with_any(rest, self.shape.section_closers, is_last) {
            (Found::Yes, mark) => return Step::Done(space + mark.len()),
            (Found::Unknown, _) => return Step::Wait,
            (Found::No, _) => {}
        }
        match begins_with(rest, self.shape.opener, is_last) {
            Found::Yes => {
                self.state = State::Head;
                Step::Took(space + self.shape.opener.len())
            }
            Found::Unknown => Step::Wait,
            Found::No => Step::Done(0),
        }
    }
}
