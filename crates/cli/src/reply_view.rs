//! [`ReplyView`]: shows the parts of an answer as they arrive.
//!
//! `run` and `chat` share it. Invariant: standard output has only the answer and its calls; reasoning goes to
//! standard error, or nowhere.

use std::io::{self, IsTerminal as _, Write as _};

use console::{Term, style};
use tokenmill::{Answer, Delta, ToolCall, tools::Part};

use crate::{failure::Failure, hanging::columns, output, visible::visible_lines, wrap::Wrap};

/// Shows one answer.
pub(crate) struct ReplyView {
    shows_reasoning: bool,
    /// Breaks lines of reasoning; there is one while reasoning is shown.
    reasoning: Option<Wrap>,
    text: Wrap,
    /// Whether the line of text on standard output is empty.
    is_line_start: bool,
    /// The call that is not complete.
    open: ToolCall,
}

impl ReplyView {
    pub(crate) fn new(shows_reasoning: bool) -> Self {
        Self {
            shows_reasoning,
            reasoning: None,
            text: Wrap::new(columns(&Term::stdout())),
            is_line_start: true,
            open: ToolCall::default(),
        }
    }

    /// Shows the new parts.
    ///
    /// # Errors
    /// Standard output that cannot be written.
    pub(crate) fn show(&mut self, delta: &Delta) -> Result<(), Failure> {
        for part in &delta.parts {
            match part {
                Part::Text(text) => self.show_text(text)?,
                Part::Reasoning(text) => self.show_reasoning(text)?,
                Part::CallStart { name, .. } => self.open.name.clone_from(name),
                Part::Arguments { delta, .. } => self.open.arguments.push_str(delta),
                Part::CallEnd { .. } | Part::CallCut { .. } => {
                    let call = std::mem::take(&mut self.open);
                    self.show_call(&call)?;
                }
                // It is not a call, so its text is text.
                Part::CallBroken { source, .. } => {
                    self.open = ToolCall::default();
                    self.show_text(source)?;
                }
                Part::Markup => {}
            }
        }
        Ok(())
    }

    /// Shows an answer that is complete.
    ///
    /// # Errors
    /// As [`Self::show`].
    pub(crate) fn show_whole(&mut self, answer: &Answer) -> Result<(), Failure> {
        if !answer.reasoning.is_empty() {
            self.show_reasoning(&answer.reasoning)?;
        }
        self.show_text(&answer.text)?;
        let mut calls = answer.calls.iter().chain(&answer.cut_call);
        calls.try_for_each(|call| self.show_call(call))
    }

    /// Ends the last line, also where the rest failed.
    ///
    /// # Errors
    /// As [`Self::show`].
    pub(crate) fn finish(&mut self) -> Result<(), Failure> {
        self.end_reasoning();
        let rest = self.text.finish();
        self.is_line_start = true;
        output::print_generated(&format!("{rest}\n"))
    }

    fn show_text(&mut self, text: &str) -> Result<(), Failure> {
        if text.is_empty() {
            return Ok(());
        }
        self.end_reasoning();
        self.is_line_start = text.ends_with('\n');
        output::print_generated(&self.text.push(text))
    }

    /// Shows a call on a line of its own.
    fn show_call(&mut self, call: &ToolCall) -> Result<(), Failure> {
        self.end_reasoning();
        let rest = self.text.finish();
        let before = if self.is_line_start { "" } else { "\n" };
        // The end of the line comes with the next part.
        self.is_line_start = false;
        output::print_generated(&format!("{rest}{before}{}", call_line(call)))
    }

    fn show_reasoning(&mut self, text: &str) -> Result<(), Failure> {
        if !self.shows_reasoning {
            return Ok(());
        }
        let is_terminal = io::stderr().is_terminal();
        // On a terminal that shows both, text that came before gets its last word and the end of its line.
        if is_terminal && output::is_terminal() && self.reasoning.is_none() && !self.is_line_start {
            let rest = self.text.finish();
            self.is_line_start = true;
            output::print_generated(&format!("{rest}\n"))?;
        }
        let is_first = self.reasoning.is_none();
        let wrap = (self.reasoning).get_or_insert_with(|| Wrap::new(columns(&Term::stderr())));
        let mark = if is_first { "[reasoning] " } else { "" };
        write_reasoning(&wrap.push(&format!("{mark}{text}")), is_terminal);
        Ok(())
    }

    fn end_reasoning(&mut self) {
        if let Some(mut wrap) = self.reasoning.take() {
            write_reasoning(&format!("{}\n", wrap.finish()), io::stderr().is_terminal());
        }
    }
}

/// Writes a piece of reasoning to standard error, dimmed on a terminal. A failed write is ignored, as for
/// notes.
fn write_reasoning(text: &str, is_terminal: bool) {
    let text = if is_terminal {
        style(visible_lines(text)).for_stderr().dim().to_string()
    } else {
        text.to_owned()
    };
    let _unwritten = io::stderr().lock().write_all(text.as_bytes());
}

/// A call, for people: an arrow, the tool's name, its arguments as JSON.
fn call_line(call: &ToolCall) -> String {
    format!("-> {} {}", call.name, call.arguments)
}
