//! `apply-template`: renders a chat template, to show a model's input.

use std::{fs, path::PathBuf};

use serde_json::Value;
use tokenmill::{
    load::ModelSource,
    text::{utc_now, without_mark},
};
use tokenmill_text::template::{ChatTemplate, CivilTime, RenderOptions};

use crate::{failure::Failure, input::read_text, model_name::FetchArgs, output};

/// Render a chat template.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tokenmill apply-template demo --context '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n  \
    tokenmill apply-template --template chat.jinja --context conversation.json --now 2024-07-26")]
pub(crate) struct Args {
    /// A model whose template is rendered, or OWNER/REPOSITORY[:TYPE] of the Hub
    #[arg(required_unless_present = "template", conflicts_with = "template")]
    model: Option<PathBuf>,
    /// A file with a template
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// The variables, a JSON object or a file with one; with MODEL, add_generation_prompt is true and the tokens of
    /// begin and end are the model's, unless given
    #[arg(long, value_name = "JSON")]
    context: String,
    /// The time that strftime_now sees, such as 2024-07-26 or 2024-07-26T13:45:00 [default: the time, in UTC]
    #[arg(long, value_name = "DATE")]
    now: Option<CivilTime>,
    #[command(flatten)]
    fetch: FetchArgs,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut context = read_context(&args.context)?;
    let source = match (&args.template, &args.model) {
        (Some(path), _) => read_text(path)?,
        (None, Some(model)) => {
            let source = ModelSource::find(args.fetch.resolve(model)?)?;
            let gguf = source.open_gguf()?;
            let tokenizer = source.tokenizer(gguf.as_ref())?;
            let files = source.chat_files(gguf.as_ref(), &tokenizer)?;
            if let Some(context) = context.as_object_mut() {
                for (name, default) in [
                    ("bos_token", Value::from(files.bos_token)),
                    ("eos_token", Value::from(files.eos_token)),
                    ("add_generation_prompt", Value::from(true)),
                ] {
                    context.entry(name).or_insert(default);
                }
            }
            files.template.ok_or_else(|| {
                Failure::input("the model has no chat template").hint("give one with --template")
            })?
        }
        (None, None) => unreachable!("the parser asks for one of them"),
    };
    let options = RenderOptions {
        now: args.now.unwrap_or_else(utc_now),
        ..RenderOptions::default()
    };
    let rendered = ChatTemplate::new(&source)?.render(&context, &options);
    let lacks_messages = context.get("messages").is_none();
    output::print(&rendered.map_err(|error| {
        let failure = Failure::from(error);
        if lacks_messages && failure.message.contains("messages") {
            failure.hint(CONTEXT_FORM)
        } else {
            failure
        }
    })?)
}

/// The hint for a context without messages.
const CONTEXT_FORM: &str = "write {\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}";

/// Reads a JSON object that is given as text or as a file.
fn read_context(argument: &str) -> Result<Value, Failure> {
    let path = PathBuf::from(argument);
    // An argument is JSON if it begins like JSON, or if it parses as JSON and no such file exists.
    let is_json = argument.trim_start().starts_with(['{', '[', '"'])
        || serde_json::from_str::<Value>(argument).is_ok() && !path.exists();
    let (text, name) = if is_json {
        (argument.to_owned(), "--context".to_owned())
    } else {
        let text = fs::read_to_string(&path).map_err(|error| Failure::unreadable(&path, &error))?;
        (without_mark(&text).to_owned(), argument.to_owned())
    };
    let value: Value = serde_json::from_str(&text)
        .map_err(|error| Failure::input(format!("{name} is not JSON: {error}")))?;
    if !value.is_object() {
        return Err(Failure::input(format!("{name} is not a JSON object")).hint(CONTEXT_FORM));
    }
    Ok(value)
}
