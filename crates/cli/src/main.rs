//! `tokenmill`: the program.
//!
//! Here are the table of commands and the way from a result to an exit code. Each command is one file of
//! [`commands`]; what several share is in modules of its own. Invariant: nothing but this crate reads the environment, and an error
//! is one line on stderr with a documented exit code.
#![forbid(unsafe_code)]
// `note!` stands for the macros that panic where standard error is closed.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod adapters;
mod argv;
mod asking;
mod commands;
mod constraint;
mod context_shift;
mod failure;
mod foreign_commands;
mod foreign_flags;
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
mod reply_view;
mod sampling;
mod session;
mod signals;
mod speculation;
mod swapped;
mod type_names;
mod visible;
mod vision;
mod wrap;

use std::{env, ffi::OsString, process::ExitCode};

use clap::{
    CommandFactory, FromArgMatches, Parser,
    error::{ContextKind, ContextValue, ErrorKind},
};

use tokenmill_server::near_names;

use failure::Failure;

/// Run quantized language models from GGUF files.
#[derive(Parser)]
#[command(
    name = "tokenmill",
    version,
    max_term_width = 100,
    propagate_version = true,
    after_help = "MODEL is a GGUF file, a folder with one, a Hugging Face folder (config.json, safetensors files and\n\
        tokenizer.json), OWNER/REPOSITORY[:TYPE] of the Hugging Face Hub, which is downloaded at the first use, or `demo`,\n\
        a small model built into the program.\n\n\
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
        5    a GPU that was asked for and cannot be used, or not for this model\n  \
        6    a GPU that was lost while it worked\n  \
        7    an answer of `run` that was cut before the shape asked for was complete\n  \
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

/// The parser. Whatever takes a value takes negative numbers too, so that its own range stands in the refusal.
fn parser() -> clap::Command {
    Cli::command().mut_subcommands(|command| {
        command.mut_args(|arg| {
            if arg.get_action().takes_values() && !arg.is_positional() {
                arg.allow_negative_numbers(true)
            } else {
                arg
            }
        })
    })
}

/// What to say to a flag or command that only other programs know, in the words that were typed.
fn refusal(error: &clap::Error, args: &[OsString]) -> Option<Failure> {
    let text_of = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let flag = text_of(ContextKind::InvalidArg)?;
            let typed = argv::typed_for(flag, args);
            let typed = typed.unwrap_or(flag);
            Some(foreign_flags::refusal(typed).unwrap_or_else(|| unknown_option(typed, flag, args)))
        }
        ErrorKind::InvalidSubcommand => foreign_commands::refusal(
            text_of(ContextKind::InvalidSubcommand)?,
            error.get(ContextKind::SuggestedSubcommand).is_some(),
        ),
        ErrorKind::MissingRequiredArgument => {
            missing_option(error, args).or_else(|| swapped::file_without_model(&command_of(args)?, args))
        }
        ErrorKind::InvalidValue => {
            let Some(ContextValue::Strings(known)) = error.get(ContextKind::ValidValue) else {
                return None;
            };
            let (option, value) = (
                text_of(ContextKind::InvalidArg)?,
                text_of(ContextKind::InvalidValue)?,
            );
            (!known.is_empty() && !value.is_empty()).then(|| {
                Failure::usage(format!("`{value}` is no value of `{option}`"))
                    .hint(format!("it takes {}", known.join(", ")))
            })
        }
        _ => None,
    }
}

/// The name of the command that was given.
fn command_of(args: &[OsString]) -> Option<String> {
    let parser = parser();
    let command = args.iter().skip(1).find_map(|arg| parser.find_subcommand(arg))?;
    Some(command.get_name().to_owned())
}

/// What to say to options that need another one. Arguments that are missing are told by the parser, with the whole usage.
fn missing_option(error: &clap::Error, args: &[OsString]) -> Option<Failure> {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    if missing.is_empty() || !missing.iter().all(|missing| missing.starts_with('-')) {
        return None;
    }
    let (name, missing) = (command_of(args)?, missing.join("` and `"));
    let failure = Failure::usage(format!("an option that was given needs `{missing}` as well"));
    Some(failure.hint(format!("`tokenmill {name} --help` describes the options")))
}

/// What to say to a flag of no program that is known: which of this program's commands have it, or which flags are near it.
fn unknown_option(typed: &str, flag: &str, args: &[OsString]) -> Failure {
    let parser = parser();
    let Some(command) = args.iter().skip(1).find_map(|arg| parser.find_subcommand(arg)) else {
        return Failure::usage(format!("`{typed}` is not an option"))
            .hint("`tokenmill --help` lists the commands");
    };
    let name = command.get_name();
    let failure = Failure::usage(format!("`{typed}` is not an option of `{name}`"));
    let wanted = flag.trim_start_matches('-');
    let longs = |command: &clap::Command| -> Vec<String> {
        let longs = command.get_arguments().filter(|arg| !arg.is_hide_set());
        longs
            .filter_map(|arg| arg.get_long().map(str::to_owned))
            .collect()
    };
    let others: Vec<String> = (parser.get_subcommands())
        .filter(|command| longs(command).iter().any(|long| long == wanted))
        .map(|command| format!("`{}`", command.get_name()))
        .collect();
    let own = longs(command);
    let near = near_names(wanted, own.iter().map(String::as_str));
    failure.hint(match (&others[..], &near[..]) {
        ([_, ..], _) => format!("an option of {}", others.join(", ")),
        ([], [_, ..]) => format!("near it: `--{}`", near.join("`, `--")),
        ([], []) => format!("`tokenmill {name} --help` lists its options"),
    })
}

fn main() -> ExitCode {
    let typed: Vec<OsString> = env::args_os().collect();
    let result = argv::rewrite(typed.iter().cloned()).and_then(|args| {
        let matches = parser()
            .try_get_matches_from(args)
            .or_else(|error| match refusal(&error, &typed) {
                Some(refusal) => Err(refusal),
                // Also the way that --help takes.
                None => error.exit(),
            })?;
        let cli = Cli::from_arg_matches(&matches).map_err(|error| Failure::usage(error.to_string()))?;
        dispatch(&cli.command)
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
