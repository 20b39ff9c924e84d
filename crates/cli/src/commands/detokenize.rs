//! `detokenize`: token ids to text, the way back from `tokenize --ids`.

use std::{
    io::{self, IsTerminal as _},
    path::PathBuf,
};

use serde_json::json;
use tokenmill_text::DecodeOptions;

use crate::{
    commands::tokenize::open, failure::Failure, input::read_stdin, model_name::FetchArgs, output,
    visible::visible_lines,
};

/// Turn token ids into text.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tokenmill detokenize demo 394 502\n  \
    tokenmill tokenize demo \"Once upon a time\" --ids | tokenmill detokenize demo\n  \
    tokenmill detokenize tokenizer.json 15496 11 995 --json")]
pub(crate) struct Args {
    /// A GGUF file (one with a vocabulary only will do), a tokenizer.json, a folder with one of these,
    /// OWNER/REPOSITORY[:TYPE] of the Hub, NAME:TAG of Ollama, or `demo`
    model: PathBuf,
    /// The ids; read from standard input where there are none, separated by spaces or commas
    ids: Vec<String>,
    /// Leave out control tokens, such as the one that begins a text
    #[arg(long)]
    skip_special: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    fetch: FetchArgs,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let tokenizer = open(&args.fetch.resolve(&args.model)?)?;
    let text = if args.ids.is_empty() {
        if io::stdin().is_terminal() {
            let failure = Failure::usage("there are no ids");
            return Err(failure.hint("write them after the model, or pipe them in"));
        }
        read_stdin()?
    } else {
        args.ids.join(" ")
    };
    let is_separator = |c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']');
    let ids = (text.split(is_separator))
        .filter(|word| !word.is_empty())
        .map(|word| match word.parse::<u32>() {
            Ok(id) if (id as usize) < tokenizer.n_vocab() => Ok(id),
            Ok(id) => Err(Failure::input(format!(
                "{id} is not in the vocabulary of {} tokens",
                tokenizer.n_vocab()
            ))),
            Err(_) => Err(Failure::input(format!("`{word}` is not a token id"))
                .hint("ids are whole numbers, separated by spaces or commas")),
        })
        .collect::<Result<Vec<u32>, Failure>>()?;
    let options = DecodeOptions {
        skip_special: args.skip_special,
        is_continuation: false,
    };
    let text = tokenizer.decode(&ids, options);
    if args.json {
        return output::print_json(&json!({ "ids": ids, "text": text }));
    }
    if output::is_terminal() {
        return output::print_line(&visible_lines(&text));
    }
    output::print_line(&text)
}
