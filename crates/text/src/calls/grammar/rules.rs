//! [`Rules`]: the rules of a grammar in Lark's notation.
//!
//! Invariant: text from a request is always quoted.

use std::fmt::Write as _;

use serde_json::Value;

use crate::constraint::{ControlTokens, Segment};

/// Largest size of all tools' rules, in bytes.
const MAX_BYTES: usize = 4 << 20;

/// Largest size of one tool's arguments with the definitions that they refer to, in bytes.
const MAX_ARGUMENT_BYTES: usize = 1 << 20;

/// White space between the parts of calls.
const SPACE: &str = "/[ \\t\\r\\n]{1,8}/";

/// Matches text that may share a token with the end of a call, including the beginning of the next call. A closing bracket or quote
/// directly after a call is more likely a slip than text.
const BEHIND: &str = "/[^}\\])\"'\\\\](?s:.*)/";

pub(super) struct Rules<'c> {
    controls: &'c ControlTokens,
    text: String,
    n_written: usize,
    /// Bytes of the current tool's arguments.
    n_argument_bytes: usize,
    /// Name of the rule for any value, once it exists.
    pub(super) any: Option<String>,
    /// Name of the rule for any text in Python's quotes, once it exists.
    pub(super) python_text: Option<String>,
    /// How many more values of the current argument may get separate rules.
    pub(super) literals_left: usize,
}

impl<'c> Rules<'c> {
    pub(super) fn new(controls: &'c ControlTokens) -> Self {
        Self {
            controls,
            text: String::new(),
            n_written: 0,
            n_argument_bytes: 0,
            any: None,
            python_text: None,
            literals_left: 0,
        }
    }

    /// Begins the arguments of a tool.
    pub(super) fn begin_arguments(&mut self) -> Result<(), String> {
        self.n_argument_bytes = 0;
        if self.text.len() > MAX_BYTES {
            return Err(format!(
                "the rules of all tools take more than {} MiB",
                MAX_BYTES >> 20
            ));
        }
        Ok(())
    }

    /// Counts the size of an argument before it is copied.
    pub(super) fn take(&mut self, n_bytes: usize) -> Result<(), String> {
        self.n_argument_bytes = self.n_argument_bytes.saturating_add(n_bytes);
        if self.n_argument_bytes > MAX_ARGUMENT_BYTES {
            return Err(format!(
                "its arguments with the definitions they refer to take more than {} MiB",
                MAX_ARGUMENT_BYTES >> 20
            ));
        }
        Ok(())
    }

    /// Ends the grammar of calls in free text, whose first rule is `start`. The last token of a call may also hold text after it.
    pub(super) fn finish_in_free_text(self, start: &str) -> String {
        format!(
            "start: calls BEHIND?\ncalls: {start}\nBEHIND: {BEHIND}\nS: {SPACE}\n{}",
            self.text
        )
    }

    /// Ends the grammar of calls without free text, whose first rule is `start`. White space may follow them, because models often write a
    /// line break there.
    pub(super) fn finish(self, start: &str, takes_space: bool) -> String {
        let space = if takes_space { "S? " } else { "" };
        format!(
            "start: {space}calls S?\ncalls: {start}\nS: {SPACE}\n{}",
            self.text
        )
    }

    /// Adds a rule; returns its name.
    pub(super) fn rule(&mut self, body: &str) -> String {
        self.n_written += 1;
        let name = format!("r{}", self.n_written);
        let _ = writeln!(self.text, "{name}: {body}");
        name
    }

    /// Adds a rule for text that is matched as one terminal; returns its name.
    pub(super) fn terminal(&mut self, body: &str) -> String {
        self.n_written += 1;
        let name = format!("T{}", self.n_written);
        let _ = writeln!(self.text, "{name}: {body}");
        name
    }

    /// Returns this text as part of a rule; nothing for an empty one.
    #[expect(
        clippy::unused_self,
        reason = "a text is written next to marks, which need the tokens"
    )]
    pub(super) fn text(&self, text: &str) -> String {
        quoted(text)
    }

    /// Returns this text, with control tokens where it names them.
    pub(super) fn mark(&self, text: &str) -> String {
        let parts = self
            .controls
            .split(text)
            .into_iter()
            .map(|segment| match segment {
                Segment::Text(text) => quoted(text),
                Segment::Control(id) => format!("<[{id}]>"),
            });
        parts.collect::<Vec<_>>().join(" ")
    }

    /// Returns a head of a call, with patterns in place of `{name}`, `{number}` and `{id}`.
    pub(super) fn head(&self, head: &str, name: &str) -> String {
        let mut parts = Vec::new();
        let mut rest = head;
        while !rest.is_empty() {
            let at = rest.find('{').unwrap_or(rest.len());
            if at > 0 {
                parts.push(self.mark(&rest[..at]));
                rest = &rest[at..];
                continue;
            }
            let end = rest.find('}').map_or(rest.len(), |end| end + 1);
            parts.push(match &rest[..end] {
                "{name}" => quoted(name),
                "{number}" => "/[0-9]{1,3}/".to_owned(),
                _ => "/[0-9a-zA-Z]{9}/".to_owned(),
            });
            rest = &rest[end..];
        }
        parts.join(" ")
    }

    /// Returns `before`, the text of `body`, and `after`, which may begin with a control token.
    pub(super) fn bounded(&mut self, before: &str, body: &str, after: &str) -> String {
        let segments = self.controls.split(after);
        let (first, rest) = match segments.split_first() {
            Some((Segment::Text(text), rest)) => (*text, rest),
            _ => ("", &segments[..]),
        };
        let rest: Vec<String> = rest
            .iter()
            .map(|segment| match segment {
                Segment::Text(text) => quoted(text),
                Segment::Control(id) => format!("<[{id}]>"),
            })
            .collect();
        let terminal = self.terminal(&format!("{} ({body}) {}", quoted(before), quoted(first)));
        format!("{terminal} {}", rest.join(" "))
    }
}

/// Quotes a text; nothing for an empty one.
pub(super) fn quoted(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        Value::from(text).to_string()
    }
}
