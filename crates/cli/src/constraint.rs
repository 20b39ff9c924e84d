//! [`ConstraintArgs`]: the options that constrain an answer.
//!
//! `run` and `chat` share them. Invariant: a constraint is read and parsed before a model is loaded; whether
//! it can be enforced is known when it is compiled for the model's vocabulary.

use std::path::Path;

use clap::Args;
use serde_json::Value;
use tokenmill::Constraint;

use crate::{failure::Failure, input::read_text};

/// The constraint on an answer.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Shape of the answer")]
#[group(multiple = false)]
pub(crate) struct ConstraintArgs {
    /// Answer in JSON that is valid against this schema, in a file or written out
    #[arg(long, alias = "json-schema-file", value_name = "FILE|JSON")]
    json_schema: Option<String>,
    /// Answer with a text that matches this regular expression as a whole
    #[arg(long, value_name = "PATTERN")]
    regex: Option<String>,
    /// Answer with a text of the grammar in this file: GBNF where rules are defined with ::=, else Lark
    #[arg(long, alias = "grammar-file", value_name = "FILE")]
    grammar: Option<String>,
}

impl ConstraintArgs {
    /// The constraint, if one is requested.
    ///
    /// # Errors
    /// An empty value, a file that cannot be read, or a schema that is not JSON.
    pub(crate) fn constraint(&self) -> Result<Option<Constraint>, Failure> {
        for (option, given) in [("--json-schema", &self.json_schema), ("--grammar", &self.grammar)] {
            if given.as_ref().is_some_and(|given| given.trim().is_empty()) {
                return Err(
                    Failure::usage(format!("`{option}` is empty")).hint("name a file, or leave it out")
                );
            }
        }
        if let Some(given) = &self.json_schema {
            let is_json = given.trim_start().starts_with('{') || matches!(given.trim(), "true" | "false");
            let (text, name) = if is_json {
                (given.clone(), "`--json-schema`")
            } else {
                (read_text(Path::new(given))?, given.as_str())
            };
            let schema: Value = serde_json::from_str(&text)
                .map_err(|error| Failure::input(format!("{name} is not JSON: {error}")))?;
            return Ok(Some(Constraint::json_schema(&schema)));
        }
        if let Some(pattern) = &self.regex {
            return Ok(Some(Constraint::regex(pattern)));
        }
        let Some(given) = &self.grammar else {
            return Ok(None);
        };
        // llama.cpp's option of this name takes the grammar itself.
        let grammar = if given.contains("::=") {
            given.clone()
        } else {
            read_text(Path::new(given))?
        };
        Ok(Some(Constraint::grammar(grammar)))
    }
}
