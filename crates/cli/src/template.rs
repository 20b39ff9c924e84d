//! [`TemplateArgs`] holds the options for chat templates, with llama.cpp's names.
//!
//! `run`, `chat`, `serve` and `batch` share them. Invariant: the given files are read and parsed before a
//! model is loaded.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};
use tokenmill::LoadOptions;

use crate::{failure::Failure, help::ADVANCED, input::read_text};

/// The one template that has a name.
const CHATML_NAME: &str = "chatml";

/// The most common training format of models without a template of their own.
const CHATML: &str = "{%- for message in messages -%}\
    {{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
    {%- endfor -%}\
    {%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";

/// How conversations become prompts.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Conversation")]
pub(crate) struct TemplateArgs {
    /// Use this template instead of the model's
    #[arg(long, alias = "chat-template-file", value_name = "FILE")]
    template: Option<PathBuf>,
    /// Use this text as the template, or `chatml`
    #[arg(long, help_heading = ADVANCED, value_name = "TEXT", conflicts_with = "template", value_parser = template_text)]
    chat_template: Option<String>,
    /// Turn the model's reasoning on or off, if its template can [default: auto, which is on]
    #[arg(long, value_enum, value_name = "on|off|auto", hide_possible_values = true)]
    reasoning: Option<Reasoning>,
    /// JSON object of template variables, for conversations that do not set them
    #[arg(long, help_heading = ADVANCED, value_name = "JSON", value_parser = variables)]
    chat_template_kwargs: Option<Variables>,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Reasoning {
    On,
    Off,
    Auto,
}

/// Says whether a text can be a template: one without an expression and a statement drops the messages.
fn is_template(text: &str) -> bool {
    text.contains("{{") || text.contains("{%")
}

fn template_text(text: &str) -> Result<String, String> {
    if text == CHATML_NAME || is_template(text) {
        return Ok(text.to_owned());
    }
    let file = if Path::new(text).exists() { text } else { "FILE" };
    Err(format!(
        "the text of a template has `{{{{` or `{{%`; `--template {file}` reads a file, and `{CHATML_NAME}` is the only name"
    ))
}

/// Holds variables of a template.
#[derive(Debug, Clone, PartialEq)]
struct Variables(Map<String, Value>);

fn variables(text: &str) -> Result<Variables, String> {
    let value = serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
    match value {
        Value::Object(object) => Ok(Variables(object)),
        _ => Err("expected a JSON object, such as {\"enable_thinking\": false}".to_owned()),
    }
}

impl TemplateArgs {
    /// Says whether an option is given.
    pub(crate) fn is_given(&self) -> bool {
        self.template.is_some()
            || self.chat_template.is_some()
            || self.reasoning.is_some()
            || self.chat_template_kwargs.is_some()
    }

    /// Returns the first option that is given and changes how prompts are written, reasoning apart.
    pub(crate) fn of_prompts(&self) -> Option<&'static str> {
        [
            (self.template.is_some(), "--template"),
            (self.chat_template.is_some(), "--chat-template"),
            (self.chat_template_kwargs.is_some(), "--chat-template-kwargs"),
        ]
        .into_iter()
        .find_map(|(is_given, flag)| is_given.then_some(flag))
    }

    /// Says whether an option asks for reasoning.
    pub(crate) fn asks_to_reason(&self) -> bool {
        self.reasoning == Some(Reasoning::On)
    }

    /// Makes the template's path relative to a folder.
    pub(crate) fn move_below(&mut self, folder: &Path) {
        if let Some(path) = &mut self.template {
            *path = folder.join(&*path);
        }
    }

    /// Adds the options to the load options.
    ///
    /// # Errors
    /// Fails if a file cannot be read or is not a template.
    pub(crate) fn add_to(&self, options: &mut LoadOptions) -> Result<(), Failure> {
        options.chat_template = match (&self.template, self.chat_template.as_deref()) {
            (Some(path), _) => Some(read_template(path)?),
            (None, Some(CHATML_NAME)) => Some(CHATML.to_owned()),
            (None, text) => text.map(str::to_owned),
        };
        let given = self.chat_template_kwargs.as_ref();
        let mut variables = given.map_or_else(Map::new, |given| given.0.clone());
        if let Some(thinks) = self.thinks() {
            // Each template reads one of these names.
            for name in ["enable_thinking", "thinking"] {
                variables.entry(name).or_insert(thinks.into());
            }
        }
        options.template_variables = variables;
        Ok(())
    }

    /// Says whether the model is to reason; `None` if no option says so.
    fn thinks(&self) -> Option<bool> {
        match self.reasoning {
            Some(Reasoning::On) => Some(true),
            Some(Reasoning::Off) => Some(false),
            Some(Reasoning::Auto) | None => None,
        }
    }
}

fn read_template(path: &Path) -> Result<String, Failure> {
    let text = read_text(path)?;
    if is_template(&text) {
        return Ok(text);
    }
    let message = format!(
        "{} is not a chat template: it has neither `{{{{` nor `{{%`",
        path.display()
    );
    Err(Failure::input(message).hint("`--template` takes a file with a Jinja template"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        template: TemplateArgs,
    }

    fn options(line: &[&str]) -> LoadOptions {
        let line = Line::try_parse_from([&["t"], line].concat()).expect("the line is right");
        let mut options = LoadOptions::default();
        line.template.add_to(&mut options).expect("nothing is read");
        options
    }

    #[test]
    fn reasoning_is_said_to_the_template_in_its_words() {
        assert_eq!(options(&[]).template_variables, Map::new());
        assert_eq!(options(&["--reasoning", "auto"]).template_variables, Map::new());
        let off = options(&[
            "--reasoning",
            "off",
            "--chat-template-kwargs",
            r#"{"thinking": true, "a": 1}"#,
        ]);
        assert_eq!(
            Value::Object(off.template_variables),
            json!({ "thinking": true, "a": 1, "enable_thinking": false })
        );
    }

    #[test]
    fn a_template_is_a_text_or_chatml() {
        assert_eq!(
            options(&["--chat-template", "{{ 1 }}"]).chat_template.as_deref(),
            Some("{{ 1 }}")
        );
        assert_eq!(
            options(&["--chat-template", "chatml"]).chat_template.as_deref(),
            Some(CHATML)
        );
        for wrong in [
            ["--chat-template-kwargs", "[1]"],
            ["--chat-template-kwargs", "{"],
            ["--reasoning", "maybe"],
            ["--chat-template", "llama3"],
            ["--chat-template", "./t.jinja"],
            ["--chat-template", ""],
        ] {
            assert!(
                Line::try_parse_from([&["t"], &wrong[..]].concat()).is_err(),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn a_file_without_an_expression_is_no_template() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.jinja");
        let add = |text: &str| {
            std::fs::write(&path, text).expect("a file");
            let args = TemplateArgs {
                template: Some(path.clone()),
                ..TemplateArgs::default()
            };
            args.add_to(&mut LoadOptions::default())
        };
        let line = add("You are kind.").expect_err("no template").line();
        assert!(line.contains("is not a chat template"), "{line}");
        assert!(add("{% if true %}x{% endif %}").is_ok());
        let path = path.to_str().expect("a name");
        let reason = template_text(path).expect_err("a path");
        assert!(
            reason.contains(&format!("`--template {path}` reads a file")),
            "{reason}"
        );
    }
}
