//! [`ChatTemplate`]: renders a conversation into the text a model was trained on.
//!
//! Models carry a Jinja template for it (`tokenizer.chat_template`), written for the environment of Hugging Face
//! transformers: Jinja's immutable sandbox with `trim_blocks`, `lstrip_blocks` and loop controls, the tag
//! `generation`, the functions `raise_exception` and `strftime_now`, and a `tojson` that is `json.dumps`. This module
//! is that environment and nothing more.
//!
//! A template comes from an untrusted file: every string, list and mapping that it makes is counted while it lives, every step burns fuel,
//! and nesting is bounded. That is why the interpreter is our own; a general template engine counts instructions, and a dozen instructions
//! can double a string until memory ends.
//!
//! | module | holds |
//! |---|---|
//! | `lexer`, `parser`, `expressions`, `ast` | source to syntax tree |
//! | `interpreter`, `evaluate`, `lookup`, `calls`, `operators` | statements and scopes; expressions |
//! | `value`, `printer`, `meter` | Python's values; how they print; their limits |
//! | `trust` | which bytes of a text the template itself wrote |
//! | `filters`, `predicates`, `methods`, `arguments`, `format`, `markup`, `json`, `civil_time` | the callables of a template |
//!
//! ```
//! use tokenmill_text::template::{ChatTemplate, RenderOptions};
//!
//! let template = ChatTemplate::new("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}")?;
//! let context = serde_json::json!({"messages": [{"role": "user", "content": " Hello "}]});
//! assert_eq!(template.render(&context, &RenderOptions::default())?, "<user>Hello");
//! # Ok::<(), tokenmill_text::template::TemplateError>(())
//! ```

mod arguments;
mod ast;
mod calls;
mod chat;
mod civil_time;
mod counters;
mod error;
mod evaluate;
mod expressions;
mod filters;
mod format;
mod interpreter;
mod json;
mod lexer;
mod lookup;
mod markup;
mod meter;
mod methods;
mod operators;
mod parser;
mod predicates;
mod printer;
mod trust;
mod value;

#[cfg(test)]
mod tests;

use std::ops::Range;

pub use chat::{ChatContext, ChatMessage};
pub use civil_time::{CivilTime, ParseCivilTimeError};
pub use error::{TemplateError, TemplateLimit};

use ast::Program;
use interpreter::Interpreter;
use meter::Meter;

/// Largest length of a template's source; the longest real ones have 40 KB.
const MAX_SOURCE_BYTES: usize = 1 << 20;

/// Bounds the cost of one rendering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderLimits {
    /// Steps of evaluation, a step being an operation or 128 bytes copied. A long conversation takes a few hundred
    /// thousand; the default ends a runaway template within a few seconds.
    pub fuel: u64,
    /// Bytes of values alive at one time, the context included.
    pub memory_bytes: usize,
    /// Bytes of rendered text.
    pub output_bytes: usize,
}

impl Default for RenderLimits {
    fn default() -> Self {
        Self {
            fuel: 20_000_000,
            memory_bytes: 256 << 20,
            output_bytes: 64 << 20,
        }
    }
}

/// Holds the inputs of a rendering besides the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderOptions {
    /// The time that `strftime_now` sees, which the caller sets. The default is the beginning of 1970.
    pub now: CivilTime,
    /// Limits of the rendering.
    pub limits: RenderLimits,
    /// Whether an error about the order of roles is ignored; most templates that raise it can write other orders too.
    pub takes_any_turns: bool,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self {
            now: CivilTime::from_unix_seconds(0),
            limits: RenderLimits::default(),
            takes_any_turns: false,
        }
    }
}

/// A rendered text, with the ranges that the template itself wrote.
#[derive(Debug)]
pub(crate) struct Rendered {
    pub(crate) text: String,
    /// Ranges of bytes, ascending; the text between them comes from messages, tools and the like.
    pub(crate) trusted: Vec<Range<usize>>,
}

/// A parsed chat template. Rendering does not change it, so one may serve many threads.
#[derive(Debug)]
pub struct ChatTemplate {
    program: Program,
    source: String,
}

impl ChatTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`] with the line, or [`TemplateError::LimitExceeded`] for a source over 1 MiB.
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(TemplateError::LimitExceeded {
                line: 1,
                limit: TemplateLimit::SourceBytes(MAX_SOURCE_BYTES),
            });
        }
        Ok(Self {
            program: parser::parse(source)?,
            source: source.to_owned(),
        })
    }

    /// Returns the text that it was parsed from.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders the template with the entries of `context`, which is an object, as its variables.
    ///
    /// # Errors
    /// [`TemplateError::Raised`] if the template refuses the conversation, other variants if it fails or exceeds a limit.
    pub fn render(
        &self,
        context: &serde_json::Value,
        options: &RenderOptions,
    ) -> Result<String, TemplateError> {
        Ok(self.render_with_trust(context, &[], options)?.text)
    }

    /// Does the same as [`Self::render`], and marks the template's own bytes. Texts of the variables in `trusted` count as its own.
    pub(crate) fn render_with_trust(
        &self,
        context: &serde_json::Value,
        trusted: &[&str],
        options: &RenderOptions,
    ) -> Result<Rendered, TemplateError> {
        let empty = serde_json::Map::new();
        let context = context.as_object().unwrap_or(&empty);
        let RenderLimits {
            fuel,
            memory_bytes,
            output_bytes,
        } = options.limits;
        let meter = Meter::new(fuel, memory_bytes);
        let interpreter =
            Interpreter::new(&self.program, context, trusted, &meter, options.now, output_bytes);
        let interpreter =
            interpreter.map(|interpreter| interpreter.taking_any_turns(options.takes_any_turns));
        interpreter
            .map_err(|fault| fault.at(1))?
            .run()
            .map_err(|(fault, line)| fault.at(line))
    }

    /// Returns whether the template reads a variable of that name, such as `tools` or `enable_thinking`.
    pub fn names(&self, variable: &str) -> bool {
        self.program.names.iter().any(|name| &**name == variable)
    }
}
