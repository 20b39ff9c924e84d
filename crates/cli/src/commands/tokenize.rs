//! `tokenize`: text to token ids, with a model's vocabulary or a `tokenizer.json`.

use std::{
    fmt::Write,
    io::{self, IsTerminal as _},
    path::{Path, PathBuf},
};

use serde_json::json;
use tokenmill::{load::ModelSource, text::tokenizer_json};
use tokenmill_text::{EncodeOptions, Tokenizer};

use crate::{
    failure::Failure,
    help::ADVANCED,
    input::{read_stdin, read_text},
    model_name::FetchArgs,
    output,
};

/// Turn text into token ids.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tokenmill tokenize demo \"Once upon a time\"\n  \
    tokenmill tokenize model.gguf --file book.txt --ids --no-bos\n  \
    echo -n Hello | tokenmill tokenize tokenizer.json")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Args {
    /// A GGUF file (one with a vocabulary only will do), a tokenizer.json, a folder with one of these,
    /// OWNER/REPOSITORY[:TYPE] of the Hub, NAME:TAG of Ollama, or `demo`
    model: PathBuf,
    /// The text; read from standard input where neither TEXT nor --file is given
    #[arg(conflicts_with = "file")]
    text: Option<String>,
    /// Read the text from a file
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print only the ids, on one line, separated by spaces
    #[arg(long, conflicts_with = "json")]
    ids: bool,
    /// Print JSON: the ids and the piece of text of each
    #[arg(long)]
    json: bool,
    /// Leave out the tokens that the model wants around a text
    #[arg(long)]
    no_bos: bool,
    /// Parse control tokens in the text, such as <|im_end|>
    #[arg(long, help_heading = ADVANCED)]
    special: bool,
    #[command(flatten)]
    fetch: FetchArgs,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let tokenizer = open(&args.fetch.resolve(&args.model)?)?;
    let text = match (&args.text, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => read_text(path)?,
        (None, None) if io::stdin().is_terminal() => {
            return Err(Failure::usage("there is no text")
                .hint("write it after the model, pipe it in, or name a file with `--file`"));
        }
        (None, None) => read_stdin()?,
    };
    let options = EncodeOptions {
        add_special: !args.no_bos,
        parse_special: args.special,
    };
    let ids = tokenizer.encode(&text, options);
    if args.ids {
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        return output::print_line(&ids.join(" "));
    }
    let piece = |id| String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap_or_default());
    if args.json {
        let pieces: Vec<_> = ids.iter().map(|&id| piece(id)).collect();
        return output::print_json(&json!({ "ids": ids, "pieces": pieces }));
    }
    let mut table = String::new();
    for id in ids {
        writeln!(table, "{id:>7}  {:?}", piece(id)).expect("writing to a string does not fail");
    }
    output::print(&table)
}

/// The tokenizer of a model, or of its `tokenizer.json`.
pub(crate) fn open(path: &Path) -> Result<Tokenizer, Failure> {
    if path.extension().is_some_and(|extension| extension == "json") {
        return Ok(tokenizer_json(path)?);
    }
    if path.join("tokenizer.json").is_file() {
        return Ok(ModelSource::Folder(path.to_owned()).tokenizer(None)?);
    }
    let source = ModelSource::find(path)?;
    Ok(source.tokenizer(source.open_gguf()?.as_ref())?)
}
