//! Messages for command lines that the parser refuses: they quote the typed words and suggest the right ones.
//!
//! The parser's own messages use the terms of its grammar. Invariant: every message is one line with the name
//! that was typed.

use std::{error::Error as _, ffi::OsString};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use tokenmill::load::KvType;

use crate::{
    argv,
    failure::Failure,
    foreign_commands, foreign_flags, swapped,
    unknown_flag::{command_of, unknown_option},
};

/// Returns the answer to an error of the parser, in the words that were typed; `None` for requests of help
/// and versions, which are not errors.
pub(crate) fn of(error: &clap::Error, parser: &clap::Command, args: &[OsString]) -> Option<Failure> {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return None;
    }
    Some(of_kind(error, parser, args).unwrap_or_else(|| parsers_own(error)))
}

/// Returns the answer to the kinds of errors that people make; `None` for others.
fn of_kind(error: &clap::Error, parser: &clap::Command, args: &[OsString]) -> Option<Failure> {
    let text_of = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let flag = text_of(ContextKind::InvalidArg)?;
            if !flag.starts_with('-') {
                return Some(word_too_many(flag, command_of(parser, args)?));
            }
            let typed = typed_name(flag, args);
            let command = command_of(parser, args);
            if command.is_none()
                && let Some(failure) = without_command(typed, flag, parser, args)
            {
                return Some(failure);
            }
            let command = command.map_or("", clap::Command::get_name);
            let foreign = foreign_flags::refusal(command, typed);
            Some(foreign.unwrap_or_else(|| unknown_option(typed, flag, parser, args)))
        }
        ErrorKind::InvalidSubcommand => {
            let typed = text_of(ContextKind::InvalidSubcommand)?;
            let near = texts_of(error, ContextKind::SuggestedSubcommand);
            foreign_commands::refusal(typed, !near.is_empty()).or_else(|| {
                let failure = Failure::usage(format!("there is no command `{typed}`"));
                Some(failure.hint(format!("near it: `{}`", near.join("`, `"))))
            })
        }
        ErrorKind::MissingRequiredArgument => {
            let command = command_of(parser, args)?;
            let name = command.get_name();
            missing_option(error, command, parser, args)
                .or_else(|| swapped::file_without_model(name, args))
                .or_else(|| swapped::type_without_output(command, args))
                .or_else(|| missing_argument(error, command))
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
                let (name, _) = name_and_value(option);
                let name = typed_name(name, args).trim_matches(['<', '>']);
                Failure::usage(format!("`{value}` is not a value for `{name}`")).hint(format!(
                    "it takes {}",
                    known
                        .iter()
                        .map(|name| with_alias(name))
                        .collect::<Vec<_>>()
                        .join(", ")
                ))
            })
        }
        ErrorKind::ValueValidation => {
            let reason = error.source()?.to_string();
            let (option, value) = (
                text_of(ContextKind::InvalidArg)?,
                text_of(ContextKind::InvalidValue)?,
            );
            let command = command_of(parser, args);
            if let Some(swapped) =
                command.and_then(|command| swapped::type_before_output(command, value, args))
            {
                return Some(swapped);
            }
            let failure = wrong_value(option, value, &reason, args);
            Some(match in_place_of(option, value) {
                Some(hint) => failure.hint(hint),
                None => failure,
            })
        }
        ErrorKind::TooManyValues => {
            let (name, _) = name_and_value(text_of(ContextKind::InvalidArg)?);
            let value = text_of(ContextKind::InvalidValue)?;
            Some(Failure::usage(format!(
                "`{}` takes no value, but `{value}` is given",
                typed_name(name, args)
            )))
        }
        ErrorKind::ArgumentConflict => {
            let option = text_of(ContextKind::InvalidArg)?;
            Some(conflict(option, &texts_of(error, ContextKind::PriorArg), args))
        }
        _ => None,
    }
}

/// The name of a value, and after that of a type of keys and values how others call it.
fn with_alias(name: &str) -> String {
    let ty: Option<KvType> = name.parse().ok();
    match ty.map(KvType::aliases) {
        Some([alias, ..]) => format!("{name} ({alias})"),
        _ => name.to_owned(),
    }
}

/// The parser's own words, without its usage.
fn parsers_own(error: &clap::Error) -> Failure {
    let text = error.to_string();
    let line = text
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or_default();
    Failure::usage(line.strip_prefix("error: ").unwrap_or(line))
}

/// Returns the texts of an error for one kind of context.
fn texts_of(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

/// Returns the answer to a value that its option or argument refuses for a reason.
fn wrong_value(option: &str, value: &str, reason: &str, args: &[OsString]) -> Failure {
    let (name, _) = name_and_value(option);
    let is_option = name.starts_with('-');
    let name = typed_name(name, args);
    let reason = &of_number(reason);
    if is_option && value.is_empty() {
        return Failure::usage(format!("`{name}` is empty: {reason}"));
    }
    Failure::usage(match (is_option, reason.starts_with(&format!("`{value}`"))) {
        (true, true) => format!("`{name}`: {reason}"),
        (true, false) => format!("`{value}` is not a value for `{name}`: {reason}"),
        (false, true) => reason.to_owned(),
        (false, false) => format!(
            "`{value}` is not a value for {}: {reason}",
            name.trim_matches(['<', '>', '[', ']'])
        ),
    })
}

/// Returns the replacement for a value that has a meaning in llama.cpp only.
fn in_place_of(option: &str, value: &str) -> Option<&'static str> {
    let (name, _) = name_and_value(option);
    Some(match (name, value) {
        ("--threads" | "--threads-batch", "-1") => "without the option each processor has a thread",
        ("--gpu-layers", "-1") => {
            "`-ngl auto` puts as many layers there as fit, and `-ngl all` puts all there"
        }
        ("--n-predict", "-2") => "`-n -1` continues until the model ends or the context is full",
        _ => return None,
    })
}

/// Returns the expected form if the parser says that a number is out of range or is not a number; other
/// reasons stay as they are. The largest value of a type is not shown as a bound to a person who is below the
/// range.
fn of_number(reason: &str) -> String {
    match reason {
        "invalid digit found in string" => return "expected a whole number".to_owned(),
        "invalid float literal" => return "expected a number".to_owned(),
        "number too large to fit in target type" => return "expected a smaller number".to_owned(),
        _ => {}
    }
    let bounds = reason.rsplit_once(" is not in ").and_then(|(number, range)| {
        let (low, high) = range.split_once("..")?;
        let is_number = |text: &str| text.parse::<i128>().is_ok();
        let (found, least): (i128, i128) = (number.parse().ok()?, low.parse().ok()?);
        let ends_with_type = high
            .strip_prefix('=')
            .and_then(|last| last.parse().ok())
            .is_some_and(|last: i128| {
                [
                    u8::MAX.into(),
                    u16::MAX.into(),
                    u32::MAX.into(),
                    i64::MAX.into(),
                    u64::MAX.into(),
                ]
                .contains(&last)
            });
        match (high, high.strip_prefix('=')) {
            _ if ends_with_type && found < least => Some(format!("expected a whole number, {low} or more")),
            ("", _) => Some(format!("expected a whole number, {low} or more")),
            (_, Some(last)) if is_number(last) => {
                Some(format!("expected a whole number from {low} to {last}"))
            }
            _ => None,
        }
    });
    bounds.unwrap_or_else(|| reason.to_owned())
}

/// Returns the answer to an option that is given twice, or to two options that exclude each other.
fn conflict(option: &str, others: &[String], args: &[OsString]) -> Failure {
    let shown = |option: &str| {
        let (name, _) = name_and_value(option);
        if name.starts_with('-') {
            format!("`{}`", typed_name(name, args))
        } else {
            name.trim_matches(['<', '>', '[', ']', '.']).to_owned()
        }
    };
    if others.iter().all(|other| other == option) {
        return Failure::usage(format!("{} is given twice, but takes one value", shown(option)));
    }
    let names: Vec<String> = others.iter().map(|other| shown(other)).collect();
    let message = format!("{} cannot be used with {}", shown(option), names.join(" and "));
    let failure = Failure::usage(message);
    if option == "[FILE]" && others.iter().any(|other| other.starts_with("--kl-base")) {
        return failure.hint("the text is in the file of logits: leave FILE out");
    }
    failure
}

/// A small model of the Hub that chats; docs/models-by-memory.md names others.
const EXAMPLE_MODEL: &str = "ggml-org/gemma-3-1b-it-GGUF";

/// Returns the answer to a missing argument: its name, and the usage of the command.
fn missing_argument(error: &clap::Error, command: &clap::Command) -> Option<Failure> {
    let missing = texts_of(error, ContextKind::InvalidArg);
    let missing: Vec<&str> = missing.iter().map(|name| name.trim_matches(['<', '>'])).collect();
    let (last, before) = missing.split_last()?;
    let message = match before {
        [] => format!("{last} is missing"),
        before => format!("{} and {last} are missing", before.join(", ")),
    };
    let arguments = command.get_positionals().filter_map(|arg| {
        let name = arg.get_value_names()?.first()?;
        // Some are needed only without an option that stands for them.
        Some(if arg.is_required_set() || missing.contains(&name.as_str()) {
            name.to_string()
        } else {
            format!("[{name}]")
        })
    });
    let arguments: Vec<String> = arguments.collect();
    let name = command.get_name();
    let example = match name {
        "perplexity" if missing == ["FILE"] => ", or `--kl-base FILE` in place of the text".to_owned(),
        "apply-template" => ", or `--template FILE` in place of the model".to_owned(),
        _ if !missing.contains(&"MODEL") => String::new(),
        // The built-in model needs no download.
        "pull" => format!(", as in `tokenmill {name} {EXAMPLE_MODEL}`"),
        "rm" => "; `tokenmill list` shows the names".to_owned(),
        name => format!(", as in `tokenmill {name} {EXAMPLE_MODEL}` or `tokenmill {name} demo`"),
    };
    let hint = format!(
        "`tokenmill {name} {}`{example}; `tokenmill {name} --help` has examples",
        arguments.join(" ")
    );
    Some(Failure::usage(message).hint(hint))
}

/// The option's name and the name of its value, as the parser shows them together: `--kl-base <FILE>`.
fn name_and_value(option: &str) -> (&str, Option<&str>) {
    match option.split_once([' ', '=']) {
        Some((name, value)) => (name, Some(value.trim_matches(['<', '>']))),
        None => (option, None),
    }
}

/// Returns an option in the form in which it was typed, which may be a short flag that the parser does not
/// know.
fn typed_name<'a>(option: &'a str, args: &[OsString]) -> &'a str {
    argv::typed_for(option, args).unwrap_or(option)
}

/// Returns the answer to an option that takes a value and is followed by the end of the line or another
/// option.
fn option_without_value(option: &str, args: &[OsString]) -> Failure {
    let (name, value) = name_and_value(option);
    let name = typed_name(name, args);
    match value {
        Some(value) => Failure::usage(format!("`{name}` needs a value: `{name} {value}`")),
        None => Failure::usage(format!("`{name}` needs a value")),
    }
}

/// Returns the answer to an argument after the last one that a command takes.
fn word_too_many(word: &str, command: &clap::Command) -> Failure {
    let name = command.get_name();
    let last = command.get_positionals().last();
    let last = last.and_then(|last| last.get_value_names()?.first());
    let last = last.map_or("", |last| last.as_str());
    if last.is_empty() {
        let failure = Failure::usage(format!("`{name}` takes only options, and `{word}` is not one"));
        return failure.hint(format!("`tokenmill {name} --help` lists them"));
    }
    let failure = Failure::usage(format!("`{word}` is one argument too many for `{name}`"));
    failure.hint(match (name, last) {
        ("chat", _) => {
            "`chat` reads messages from the terminal or from standard input; `tokenmill run MODEL PROMPT` answers one"
                .to_owned()
        }
        ("quantize", _) if word.parse::<usize>().is_ok() => format!("`-t {word}` sets the number of threads"),
        (_, "PROMPT" | "TEXT") => {
            format!("several words stand in quotes: `tokenmill {name} MODEL \"Once upon a time\"`")
        }
        _ => format!("`tokenmill {name} --help` shows what it takes"),
    })
}

/// Returns the answer to options that need another one; `None` if arguments are missing.
fn missing_option(
    error: &clap::Error,
    command: &clap::Command,
    parser: &clap::Command,
    args: &[OsString],
) -> Option<Failure> {
    let missing = texts_of(error, ContextKind::InvalidArg);
    if missing.is_empty() || !missing.iter().all(|missing| missing.starts_with('-')) {
        return None;
    }
    let failure = match needing_option(&missing, command, parser, args) {
        Some((flag, needed)) => {
            let needed = needed.join("` and `");
            Failure::usage(format!("`{flag}` needs `{needed}` as well"))
        }
        None => Failure::usage(format!("`{}` is missing", missing.join("` and `"))),
    };
    let name = command.get_name();
    Some(failure.hint(format!("`tokenmill {name} --help` describes the options")))
}

/// The first option without which some of `missing` are not missed, and these. The parser does not tell it, so the line is read again
/// without each option and its value.
fn needing_option(
    missing: &[String],
    command: &clap::Command,
    parser: &clap::Command,
    args: &[OsString],
) -> Option<(String, Vec<String>)> {
    let mut options = args.iter().enumerate().filter_map(|(idx, arg)| {
        let (name, value) = name_and_value(arg.to_str().filter(|text| text.starts_with('-'))?);
        let n_values = argv::n_values_of(command, name)?;
        let n_words = if value.is_some() { 1 } else { 1 + n_values };
        Some((idx, n_words, name))
    });
    options.find_map(|(idx, n_words, name)| {
        let rest = args[..idx].iter().chain(args.iter().skip(idx + n_words));
        let still_missing = missing_of(rest.cloned(), parser)?;
        let is_needed = |option: &&String| !still_missing.contains(option);
        let needed: Vec<String> = missing.iter().filter(is_needed).cloned().collect();
        (!needed.is_empty()).then(|| (name.to_owned(), needed))
    })
}

/// The options that a command line lacks; `None` where something else is wrong with it.
fn missing_of(args: impl IntoIterator<Item = OsString>, parser: &clap::Command) -> Option<Vec<String>> {
    let rewritten = argv::rewrite(args, parser).ok()?;
    match parser.clone().try_get_matches_from(rewritten.args) {
        Ok(_) => Some(Vec::new()),
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
            Some(texts_of(&error, ContextKind::InvalidArg))
        }
        Err(_) => None,
    }
}

/// Returns the answer to a line without a command; `None` if no command that takes a model has the flag.
fn without_command(typed: &str, flag: &str, parser: &clap::Command, args: &[OsString]) -> Option<Failure> {
    let has = |name: &&str| {
        let command = parser.find_subcommand(name);
        command.is_some_and(|command| argv::n_values_of(command, flag).is_some())
    };
    let command = ["run", "serve", "chat"].into_iter().find(has)?;
    let mut model = None;
    let mut rest = Vec::new();
    let mut words = args.iter().skip(1).map(|arg| arg.to_string_lossy());
    while let Some(word) = words.next() {
        match word.split_once('=') {
            _ if argv::MODEL_FLAGS.contains(&&*word) => model = words.next().map(|name| quoted(&name)),
            Some((flag, name)) if argv::MODEL_FLAGS.contains(&flag) => model = Some(quoted(name)),
            _ => rest.push(quoted(&word)),
        }
    }
    let model = model.unwrap_or_else(|| "MODEL".to_owned());
    let failure = Failure::usage(format!("`{typed}` follows no command"));
    Some(failure.hint(format!(
        "a command comes first: `tokenmill {command} {model} {}`",
        rest.join(" ")
    )))
}

/// Writes a word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |char: char| char.is_alphanumeric() || "-_./:=,+@%".contains(char);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}
