//! [`ConversationArgs`]: the options of a conversation; and its prompt.
//!
//! `run` and `chat` share them. Invariant: files and values are read and parsed before a model is loaded.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use clap::Args;
use serde_json::{Map, Value, json};
use tokenmill::{
    Conversation, Error, Model,
    text::{ModelWords, Prompt},
};

use crate::{failure::Failure, input::read_text, numbers::Limit, template::TemplateArgs};

/// How a model is asked through its chat template.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Conversation")]
pub(crate) struct ConversationArgs {
    /// Tell the model how to behave [short: -sys]
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Offer the tools of this file, a JSON array in the form of OpenAI's `tools`; a call is shown as `-> NAME ARGUMENTS`
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) template: TemplateArgs,
    /// Most reasoning tokens, after which the reasoning is ended; -1 for no limit [default: -1]
    #[arg(long, value_name = "N")]
    pub(crate) reasoning_budget: Option<Limit>,
    /// Do not show the model's reasoning, which is otherwise shown on standard error, dimmed on a terminal; JSON has it all the same
    #[arg(long, alias = "hidethinking")]
    pub(crate) hide_reasoning: bool,
}

impl ConversationArgs {
    /// Whether an option is given that is about a conversation.
    pub(crate) fn is_given(&self) -> bool {
        self.system.is_some()
            || self.tools.is_some()
            || self.template.is_given()
            || self.reasoning_budget.is_some()
    }

    /// The budget of the reasoning.
    pub(crate) fn reasoning_budget(&self) -> Limit {
        self.reasoning_budget.unwrap_or(Limit::Unbounded)
    }

    /// Reads the tools.
    ///
    /// # Errors
    /// A file that cannot be read, and tools that are not a JSON array or have no names of their own.
    pub(crate) fn read_tools(&self) -> Result<Option<Value>, Failure> {
        self.tools.as_deref().map(read_tools).transpose()
    }
}

/// A system message and others, as one list.
pub(crate) fn with_system(system: Option<&str>, messages: &[Value]) -> Vec<Value> {
    let system = system.map(|text| json!({"role": "system", "content": text}));
    system.into_iter().chain(messages.iter().cloned()).collect()
}

/// Checks that a model has a usable template.
///
/// # Errors
/// Fails if the template is invalid or missing.
pub(crate) fn check_template(words: &ModelWords) -> Result<(), Failure> {
    match (words.template(), words.template_error()) {
        (Some(_), _) => Ok(()),
        (None, Some(error)) => Err(error.clone().into()),
        (None, None) => Err(Error::NoTemplate.into()),
    }
}

/// Builds the prompt of a conversation.
///
/// # Errors
/// Fails if the template refuses the conversation, or if calls of the tools cannot be held to their schemas.
pub(crate) fn prompt(
    model: &Model,
    messages: Vec<Value>,
    tools: Option<&Value>,
    variables: &Map<String, Value>,
) -> Result<Prompt, Failure> {
    Ok(model.words().prompt(&Conversation {
        tools: tools.cloned(),
        variables: variables.clone(),
        ..Conversation::from_json(messages)
    })?)
}

fn read_tools(path: &Path) -> Result<Value, Failure> {
    let text = read_text(path)?;
    let tools: Value = serde_json::from_str(&text)
        .map_err(|error| Failure::input(format!("{} is not JSON: {error}", path.display())))?;
    check_names(&tools).map_err(|problem| {
        Failure::input(format!("{} {problem}", path.display()))
            .hint("write [{\"type\": \"function\", \"function\": {\"name\": …}}]")
    })?;
    Ok(tools)
}

/// Checks that tools are a list with distinct names, which identify calls.
fn check_names(tools: &Value) -> Result<(), String> {
    let tools = tools.as_array().ok_or("is not a JSON array")?;
    let mut names = HashSet::new();
    for (idx, tool) in tools.iter().enumerate() {
        let function = tool.get("function").unwrap_or(tool);
        let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
        if name.trim().is_empty() {
            return Err(format!("has no name for tool {}", idx + 1));
        }
        if !names.insert(name) {
            return Err(format!("has two tools that are called `{name}`"));
        }
    }
    Ok(())
}
