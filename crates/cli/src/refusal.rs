//! What to say where the parser refuses the command line: the words that were typed, and what to do instead.
//!
//! Separate from the table of commands because the parser's own errors speak of its grammar. Invariant: every answer is one line
//! with the name that was typed.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use tokenmill_server::near_names;

use crate::{argv, failure::Failure, foreign_commands, foreign_flags, swapped};

/// What to say to an error of the parser, in the words that were typed; `None` where the parser's own words are as good.
pub(crate) fn of(error: &clap::Error, parser: &clap::Command, args: &[OsString]) -> Option<Failure> {
    let text_of = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let flag = text_of(ContextKind::InvalidArg)?;
            if !flag.starts_with('-') {
                return word_too_many(flag, command_of(parser, args)?);
            }
            let typed = typed_name(flag, args);
            Some(foreign_flags::refusal(typed).unwrap_or_else(|| unknown_option(typed, flag, parser, args)))
        }
        ErrorKind::InvalidSubcommand => foreign_commands::refusal(
            text_of(ContextKind::InvalidSubcommand)?,
            error.get(ContextKind::SuggestedSubcommand).is_some(),
        ),
        ErrorKind::MissingRequiredArgument => {
            let command = command_of(parser, args)?.get_name();
            missing_option(error, command).or_else(|| swapped::file_without_model(command, args))
        }
        ErrorKind::InvalidValue => {
            let (option, value) = (
                text_of(ContextKind::InvalidArg)?,
                text_of(ContextKind::InvalidValue)?,
            );
            if value.is_empty() {
                return Some(option_without_value(option, args));
            }
            let Some(ContextValue::Strings(known)) = error.get(ContextKind::ValidValue) else {
                return None;
            };
            (!known.is_empty()).then(|| {
                Failure::usage(format!("`{value}` is no value of `{option}`"))
                    .hint(format!("it takes {}", known.join(", ")))
            })
        }
        ErrorKind::ArgumentConflict => {
            let option = text_of(ContextKind::InvalidArg)?;
            let prior = text_of(ContextKind::PriorArg)?;
            (option == prior).then(|| {
                let (name, _) = name_and_value(option);
                Failure::usage(format!(
                    "`{}` is given twice, and takes one value",
                    typed_name(name, args)
                ))
            })
        }
        _ => None,
    }
}

/// The command that was given.
fn command_of<'p>(parser: &'p clap::Command, args: &[OsString]) -> Option<&'p clap::Command> {
    args.iter().skip(1).find_map(|arg| parser.find_subcommand(arg))
}

/// The option's name and what stands for its value, as the parser shows them together: `--kl-base <FILE>`.
fn name_and_value(option: &str) -> (&str, Option<&str>) {
    match option.split_once([' ', '=']) {
        Some((name, value)) => (name, Some(value.trim_matches(['<', '>']))),
        None => (option, None),
    }
}

/// An option as it was typed, which may be a short flag that the parser does not know.
fn typed_name<'a>(option: &'a str, args: &[OsString]) -> &'a str {
    argv::typed_for(option, args).unwrap_or(option)
}

/// What to say to an option at the end of the line, or before another one, that takes a value.
fn option_without_value(option: &str, args: &[OsString]) -> Failure {
    let (name, value) = name_and_value(option);
    let name = typed_name(name, args);
    match value {
        Some(value) => Failure::usage(format!("`{name}` needs a value: `{name} {value}`")),
        None => Failure::usage(format!("`{name}` needs a value")),
    }
}

/// What to say to an argument behind the last one that a command takes.
fn word_too_many(word: &str, command: &clap::Command) -> Option<Failure> {
    let name = command.get_name();
    let last = command.get_positionals().last()?;
    let last = last.get_value_names()?.first()?.as_str();
    let failure = Failure::usage(format!("`{word}` is one argument too many for `{name}`"));
    Some(failure.hint(match (name, last) {
        ("chat", _) => {
            "`chat` reads messages from the terminal or from standard input; `tokenmill run MODEL PROMPT --chat` answers one"
                .to_owned()
        }
        (_, "PROMPT" | "TEXT") => {
            format!("several words stand in quotes: `tokenmill {name} MODEL \"Once upon a time\"`")
        }
        _ => format!("`tokenmill {name} --help` shows what it takes"),
    }))
}

/// What to say to options that need another one. Arguments that are missing are told by the parser, with the whole usage.
fn missing_option(error: &clap::Error, name: &str) -> Option<Failure> {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    if missing.is_empty() || !missing.iter().all(|missing| missing.starts_with('-')) {
        return None;
    }
    let missing = missing.join("` and `");
    let failure = Failure::usage(format!("an option that was given needs `{missing}` as well"));
    Some(failure.hint(format!("`tokenmill {name} --help` describes the options")))
}

/// What to say to a flag of no program that is known: which of this program's commands have it, or which flags are near it.
fn unknown_option(typed: &str, flag: &str, parser: &clap::Command, args: &[OsString]) -> Failure {
    let Some(command) = command_of(parser, args) else {
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
