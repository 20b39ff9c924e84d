//! [`JsonBody`] reads calls that are JSON objects with a name and arguments, single or in a list.
//!
//! Most families use this form: Hermes and Qwen, Llama 3, older Mistral, Command-R, Granite and many more; they differ in marks
//! and in the names of two keys. Invariant: a call begins when its name is known to be one of the tools.

use super::{
    Calls, Found, Step, begins_with, begins_with_any,
    json_scanner::{JsonScanner, Lexeme, Scan, string_lexeme},
    space_len,
};

/// Describes how a family writes such calls.
#[derive(Debug)]
pub(super) struct JsonShape {
    /// Marks that begin calls.
    pub(super) openers: &'static [&'static str],
    /// Marks that may end them.
    pub(super) closers: &'static [&'static str],
    /// Whether an object at the start of an answer is a call, without a mark.
    pub(super) is_bare: bool,
    /// Whether each object has one member, which is named for the tool and holds the arguments.
    pub(super) is_keyed_by_name: bool,
    /// The keys of a call's name and arguments, as the family writes them.
    pub(super) keys: (&'static str, &'static str),
    /// Whether the family writes calls in a list, one or several.
    pub(super) is_list: bool,
}

const NAME_KEYS: &[&str] = &["name", "tool_name"];
const ARGUMENT_KEYS: &[&str] = &["arguments", "parameters", "args"];
const ID_KEYS: &[&str] = &["id", "tool_call_id", "call_id"];
const MAX_KEY_BYTES: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Item,
    Key,
    Colon,
    Value,
    Arguments,
    Skip,
    AfterValue,
    AfterObject,
}

/// Reads calls after their opening mark.
#[derive(Clone, Debug)]
pub(super) struct JsonBody {
    shape: &'static JsonShape,
    state: State,
    is_list: bool,
    /// Whether the member `function` is open, which holds name and arguments.
    is_nested: bool,
    key: String,
    name: Option<String>,
    id: Option<String>,
    /// Arguments that came before the name.
    held: Option<String>,
    scanner: JsonScanner,
}

impl JsonBody {
    pub(super) fn new(shape: &'static JsonShape) -> Self {
        Self {
            shape,
            state: State::Open,
            is_list: false,
            is_nested: false,
            key: String::new(),
            name: None,
            id: None,
            held: None,
            scanner: JsonScanner::new(),
        }
    }

    pub(super) fn step(&mut self, text: &str, is_last: bool, calls: &mut Calls) -> Step {
        match self.state {
            State::Arguments | State::Skip => return self.scan(text, is_last, calls),
            State::AfterObject => return self.after_object(text, is_last),
            _ => {}
        }
        let space = space_len(text);
        let Some(c) = text[space..].chars().next() else {
            return Step::Wait;
        };
        let after = space + c.len_utf8();
        match (self.state, c) {
            (State::Open, '[') => {
                self.is_list = true;
                self.state = State::Item;
            }
            (State::Open | State::Item, '{') => self.begin_object(),
            (State::Key, '"') => return self.key(text, space),
            (State::Colon, ':') => self.state = State::Value,
            (State::Value, _) => return self.value(text, space, calls),
            (State::AfterValue, ',') => self.state = State::Key,
            (State::AfterValue, '}') if self.is_nested => self.is_nested = false,
            (State::AfterValue, '}') => return self.end_object(after, calls),
            _ => return Step::Broken,
        }
        Step::Took(after)
    }

    /// Begins a call whose name is known and whose arguments have not come yet. Without a mark, a name alone does not make a
    /// call.
    pub(super) fn begin_named(&mut self, calls: &mut Calls) {
        let is_in_object = !matches!(self.state, State::Open | State::Item | State::AfterObject);
        if let Some(name) = &self.name
            && is_in_object
            && !calls.is_open
            && !self.shape.is_bare
        {
            calls.start(name, self.id.take());
        }
    }

    /// Returns whether a call has ended and none has begun since.
    pub(super) fn is_after_call(&self) -> bool {
        self.state == State::AfterObject || self.state == State::Item && self.name.is_some()
    }

    fn begin_object(&mut self) {
        self.state = State::Key;
        self.is_nested = false;
        self.name = None;
        self.id = None;
        self.held = None;
    }

    fn key(&mut self, text: &str, space: usize) -> Step {
        match string_lexeme(&text[space..], MAX_KEY_BYTES) {
            Lexeme::Wait => Step::Wait,
            Lexeme::Invalid => Step::Broken,
            Lexeme::Text(key, n) => {
                let is_known = NAME_KEYS.contains(&key.as_str())
                    || ARGUMENT_KEYS.contains(&key.as_str())
                    || matches!(key.as_str(), "type" | "function");
                // JSON text that is not a call is not held back to its end.
                if self.shape.is_bare && !is_known && self.name.is_none() {
                    return Step::Broken;
                }
                self.key = key;
                self.state = State::Colon;
                Step::Took(space + n)
            }
        }
    }

    fn value(&mut self, text: &str, space: usize, calls: &mut Calls) -> Step {
        let key = self.key.as_str();
        let rest = &text[space..];
        if self.shape.is_keyed_by_name && self.name.is_none() {
            if !calls.tools.contains(key) {
                return Step::Broken;
            }
            if !rest.starts_with('{') {
                return Step::Broken;
            }
            self.name = Some(self.key.clone());
            return self.begin_arguments(space, calls);
        }
        let is_name = NAME_KEYS.contains(&key) || key == "function";
        if key == "function" && rest.starts_with('{') && !self.is_nested {
            self.is_nested = true;
            self.state = State::Key;
            return Step::Took(space + 1);
        }
        if is_name && self.name.is_none() {
            return match string_lexeme(rest, MAX_KEY_BYTES) {
                Lexeme::Wait => Step::Wait,
                Lexeme::Text(name, n) if calls.tools.contains(&name) => {
                    if let Some(held) = &self.held {
                        calls.start(&name, self.id.take());
                        calls.arguments(held.as_str());
                    }
                    self.name = Some(name);
                    self.state = State::AfterValue;
                    Step::Took(space + n)
                }
                _ => Step::Broken,
            };
        }
        if ARGUMENT_KEYS.contains(&key) && self.held.is_none() && !calls.is_open {
            if rest.starts_with('"') {
                return self.arguments_in_text(text, space, calls);
            }
            if rest.starts_with('{') {
                return self.begin_arguments(space, calls);
            }
            if !rest.starts_with('n') {
                return Step::Broken;
            }
            // Models also write null for no arguments, which is skipped.
        }
        if ID_KEYS.contains(&key) && rest.starts_with('"') {
            return match string_lexeme(rest, MAX_KEY_BYTES) {
                Lexeme::Wait => Step::Wait,
                Lexeme::Invalid => Step::Broken,
                Lexeme::Text(id, n) => {
                    self.id = Some(id);
                    self.state = State::AfterValue;
                    Step::Took(space + n)
                }
            };
        }
        self.scanner = JsonScanner::new();
        self.state = State::Skip;
        Step::Took(space)
    }

    fn begin_arguments(&mut self, space: usize, calls: &mut Calls) -> Step {
        match &self.name {
            Some(name) => calls.start(name, self.id.take()),
            None => self.held = Some(String::new()),
        }
        self.scanner = JsonScanner::new();
        self.state = State::Arguments;
        Step::Took(space)
    }

    /// Handles arguments that are an object written into a string.
    fn arguments_in_text(&mut self, text: &str, space: usize, calls: &mut Calls) -> Step {
        match string_lexeme(&text[space..], usize::MAX) {
            Lexeme::Wait => Step::Wait,
            Lexeme::Text(json, n) if json.trim().is_empty() => {
                self.state = State::AfterValue;
                Step::Took(space + n)
            }
            Lexeme::Text(json, n) if is_object(&json) => {
                match &self.name {
                    Some(name) => {
                        calls.start(name, self.id.take());
                        calls.arguments(json);
                    }
                    None => self.held = Some(json),
                }
                self.state = State::AfterValue;
                Step::Took(space + n)
            }
            _ => Step::Broken,
        }
    }

    fn scan(&mut self, text: &str, is_last: bool, calls: &mut Calls) -> Step {
        if text.is_empty() {
            return Step::Wait;
        }
        let is_arguments = self.state == State::Arguments;
        let mut json = String::new();
        let (n, scan) = self.scanner.feed(text, is_last, &mut json);
        if is_arguments {
            match &mut self.held {
                Some(held) => held.push_str(&json),
                None => calls.arguments(json),
            }
        }
        match scan {
            Scan::Invalid if n == 0 => Step::Broken,
            Scan::Invalid | Scan::More => Step::Took(n),
            Scan::Done => {
                self.state = State::AfterValue;
                Step::Took(n)
            }
        }
    }

    fn end_object(&mut self, after: usize, calls: &mut Calls) -> Step {
        let Some(name) = &self.name else {
            return Step::Broken;
        };
        if !calls.is_open {
            // A tool without arguments; without a mark, that is not enough for a call.
            if self.shape.is_bare {
                return Step::Broken;
            }
            calls.start(name, self.id.take());
            calls.arguments("{}");
        }
        calls.end();
        self.state = State::AfterObject;
        Step::Took(after)
    }

    fn after_object(&mut self, text: &str, is_last: bool) -> Step {
        let space = space_len(text);
        let rest = &text[space..];
        let Some(c) = rest.chars().next() else {
            return if is_last { Step::Done(0) } else { Step::Wait };
        };
        if self.is_list && (c == ',' || c == ']') {
            self.is_list = c == ',';
            self.state = if c == ',' { State::Item } else { State::AfterObject };
            return Step::Took(space + 1);
        }
        match begins_with_any(rest, self.shape.closers, is_last) {
            (Found::Yes, mark) => return Step::Done(space + mark.len()),
            (Found::Unknown, _) => return Step::Wait,
            (Found::No, _) => {}
        }
        // Several objects, one after the other.
        let separator = usize::from(c == ';');
        let next = &rest[separator..];
        match begins_with(next.trim_start(), "{", is_last) {
            Found::Yes => {
                self.state = State::Item;
                Step::Took(space + separator)
            }
            Found::Unknown => Step::Wait,
            Found::No => Step::Done(0),
        }
    }
}

/// Returns whether a text is a JSON object.
fn is_object(json: &str) -> bool {
    serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(json).is_ok()
}
