//! `tokenmill`: the program.
//!
//! Here are the table of commands and the conversion of a result to an exit code. Each command is one file of
//! [`commands`]; modules next to it hold the code that several commands share. Invariant: an error is one
//! line on standard error with a documented exit code.
#![forbid(unsafe_code)]
// `note!` stands for the macros that panic where standard error is closed.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod adapters;
mod argv;
mod commands;
mod companions;
mod constraint;
mod context_shift;
mod conversation;
mod echo;
mod engine_args;
mod failure;
mod foreign_commands;
mod foreign_flags;
mod foreign_tools;
mod hanging;
mod harmless_flags;
mod help;
mod input;
mod interrupt;
mod kept_session;
mod load;
mod media;
mod memory_words;
mod missing_model;
mod model_name;
mod name_argument;
mod note;
mod numbers;
mod output;
mod progress;
mod refusal;
mod reply_view;
mod sampling;
mod serve_plan;
mod session;
mod signals;
mod speculation;
mod swapped;
mod template;
mod type_names;
mod unknown_flag;
mod visible;
mod vision;
mod wrap;

use std::{env, ffi::OsString, process::ExitCode};

use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};

use failure::Failure;
use note::note;

/// Run quantized language models from GGUF files and Hugging Face folders.
#[derive(Parser)]
#[command(
    name = "tokenmill",
    version,
    max_term_width = 100,
    propagate_version = true,
    after_help = "MODEL is a GGUF file, a folder with one, a Hugging Face folder (config.json, safetensors files and\n\
        tokenizer.json), OWNER/REPOSITORY[:TYPE] of the Hugging Face Hub or NAME:TAG of Ollama's registry, which are\n\
        downloaded at the first use, or `demo`, a small model built into the program. `-m MODEL` may stand for it, as in\n\
        llama.cpp.\n\n\
        Examples:\n  \
        tokenmill run demo \"Once upon a time\"\n  \
        tokenmill chat model.gguf\n  \
        tokenmill chat ggml-org/gemma-3-1b-it-GGUF\n  \
        tokenmill serve model.gguf --port 8080\n  \
        tokenmill batch model.gguf requests.jsonl results.jsonl\n  \
        tokenmill inspect model.gguf\n  \
        tokenmill convert FOLDER model.gguf\n  \
        tokenmill quantize model-f16.gguf model-q4_k_m.gguf q4_k_m\n\n\
        Exit codes:\n  \
        0    success, also when the reader of the output went away\n  \
        1    the work failed: the model or the system\n  \
        2    a wrong option or argument\n  \
        3    input that cannot be used: a file, a prompt, a template, or a model or context too large for the memory\n  \
        4    output that cannot be written\n  \
        5    a requested GPU that cannot be used, or not for this model\n  \
        6    a GPU that was lost while it worked\n  \
        7    an answer of `run` that was cut before its shape was complete\n  \
        130  stopped with Ctrl-C"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Writes the command enum and its dispatch, one row per command.
macro_rules! commands {
    ($($name:ident => $module:ident;)*) => {
        #[derive(clap::Subcommand)]
        enum Command {
            $($name(commands::$module::Args),)*
        }

        fn dispatch(command: &Command) -> Result<(), Failure> {
            match command {
                $(Command::$name(args) => commands::$module::run(args),)*
            }
        }
    };
}

commands! {
    Run => run;
    Chat => chat;
    Serve => serve;
    Pull => pull;
    List => list;
    Rm => rm;
    Inspect => inspect;
    Tokenize => tokenize;
    Detokenize => detokenize;
    ApplyTemplate => apply_template;
    Batch => batch;
    Decide => decide;
    Perplexity => perplexity;
    Compare => compare;
    Convert => convert;
    Quantize => quantize;
    Imatrix => imatrix;
    Bench => bench;
    BenchServe => bench_serve;
    Devices => devices;
    Doctor => doctor;
    Completions => completions;
    Man => man;
}

/// The parser. Whatever takes a value takes negative numbers too, so that its own range stands in the refusal. A switch that is given
/// twice is on.
fn parser() -> clap::Command {
    Cli::command().mut_subcommands(|command| {
        command.mut_args(|arg| match arg.get_action() {
            ArgAction::SetTrue | ArgAction::SetFalse => {
                let own = arg.get_id().clone();
                arg.overrides_with(own)
            }
            action if action.takes_values() && !arg.is_positional() => arg.allow_negative_numbers(true),
            _ => arg,
        })
    })
}

fn main() -> ExitCode {
    let typed: Vec<OsString> = env::args_os().collect();
    let result = argv::rewrite(typed.iter().cloned(), &parser()).and_then(|rewritten| {
        let matches = parser().try_get_matches_from(rewritten.args).or_else(|error| {
            match refusal::of(&error, &parser(), &typed) {
                Some(refusal) => Err(refusal),
                None => help::show_and_exit(&error, parser(), &typed),
            }
        })?;
        let cli = Cli::from_arg_matches(&matches).map_err(|error| Failure::usage(error.to_string()))?;
        if !rewritten.left_out.is_empty() {
            let flags = rewritten.left_out.iter();
            let flags: Vec<String> = flags.map(|(flag, why)| format!("`{flag}` ({why})")).collect();
            note!("ignored: {}", flags.join(", "));
        }
        dispatch(&cli.command)
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
