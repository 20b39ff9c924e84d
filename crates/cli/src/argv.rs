//! Rewrites the command line before it is parsed: expands two-letter flags of llama.cpp and vLLM and `-m
//! MODEL`, and drops flags that ask for the default behaviour.
//!
//! The parser knows only one-letter short flags and reports one error at a time. Invariant: arguments after
//! `--` do not change.

use std::ffi::OsString;

use tokenmill::load::engine_options;
use tokenmill_server::near_names;

use crate::{
    failure::Failure,
    foreign_flags,
    harmless_flags::{self, Value},
    unknown_flag::unknown_option,
};

/// Short flags of llama.cpp and vLLM with their long names here, besides those of [`engine_options`].
const SHORT_FLAGS: [(&str, &str); 10] = [
    ("-np", "parallel"),
    ("-dev", "device"),
    ("-sys", "system"),
    ("-md", "draft"),
    ("-mm", "mmproj"),
    ("-a", "alias"),
    ("-fa", "flash-attn"),
    ("-cb", "cont-batching"),
    ("-cnv", "conversation"),
    ("-no-cnv", "no-conversation"),
];

/// Flags of other programs whose value is the model.
pub(crate) const MODEL_FLAGS: [&str; 5] = ["-m", "--model", "-hf", "-hfr", "--hf-repo"];

/// Lists short flags with the long names that they stand for.
fn short_flags() -> impl Iterator<Item = (&'static str, &'static str)> {
    let of_engine = engine_options().filter_map(|(name, look)| Some((look.letters?, name)));
    SHORT_FLAGS.into_iter().chain(of_engine)
}

/// Holds a command line for the parser.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rewritten {
    /// The arguments.
    pub(crate) args: Vec<OsString>,
    /// Dropped flags as they were typed, each with the reason.
    pub(crate) left_out: Vec<(String, &'static str)>,
}

/// Rewrites the program's arguments for its `parser`.
///
/// # Errors
/// Fails on several unknown flags, which it lists, or on `-m` without a model.
pub(crate) fn rewrite(
    args: impl IntoIterator<Item = OsString>,
    parser: &clap::Command,
) -> Result<Rewritten, Failure> {
    let typed: Vec<OsString> = args.into_iter().collect();
    let args = with_long_names(typed.iter().cloned())?;
    let Some(command) = args.get(1).and_then(|name| parser.find_subcommand(name)) else {
        return Ok(Rewritten {
            args,
            left_out: Vec::new(),
        });
    };
    without_harmless(&args, &typed, command, parser)
}

/// Expands two-letter flags, and moves the model to its position.
fn with_long_names(args: impl IntoIterator<Item = OsString>) -> Result<Vec<OsString>, Failure> {
    let mut rewritten: Vec<OsString> = Vec::new();
    let mut model = None;
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let Some(text) = arg.to_str() else {
            rewritten.push(arg);
            continue;
        };
        if text == "--" {
            rewritten.push(arg);
            rewritten.extend(args);
            break;
        }
        let (name, value) = name_and_value(text);
        // There `--model` is the name that requests ask for.
        let names_a_request = rewritten.get(1).is_some_and(|command| command == "bench-serve");
        if MODEL_FLAGS.contains(&name) && !names_a_request {
            model = match value {
                Some(value) => Some(value.into()),
                None => args.next(),
            };
            if model.is_none() {
                return Err(Failure::usage(format!("`{name}` needs a model")));
            }
            continue;
        }
        match short_flags().find(|(short, _)| *short == name) {
            Some((_, long)) => rewritten.push(match value {
                Some(value) => format!("--{long}={value}").into(),
                None => format!("--{long}").into(),
            }),
            None => rewritten.push(arg),
        }
    }
    if let Some(model) = model {
        // The program's name and the command come first, then the model.
        rewritten.insert(rewritten.len().min(2), model);
    }
    Ok(rewritten)
}

/// Drops from `args` the flags that ask for a command's default behaviour. It reports several unknown flags together, because the parser
/// would report only the first.
fn without_harmless(
    args: &[OsString],
    typed: &[OsString],
    command: &clap::Command,
    parser: &clap::Command,
) -> Result<Rewritten, Failure> {
    let mut kept: Vec<OsString> = Vec::new();
    let mut left_out = Vec::new();
    // As they were typed, and with their long names.
    let mut unknown: Vec<(String, String)> = Vec::new();
    let mut rest = args.iter().cloned().peekable();
    kept.extend(rest.by_ref().take(2));
    while let Some(arg) = rest.next() {
        let Some(text) = arg.to_str().filter(|text| is_flag(text)) else {
            kept.push(arg);
            continue;
        };
        if text == "--" {
            kept.push(arg);
            kept.extend(rest.by_ref());
            break;
        }
        let (name, value) = name_and_value(text);
        if let Some(n_values) = n_values_of(command, name) {
            let n_behind = if value.is_some() { 0 } else { n_values };
            kept.push(arg);
            kept.extend(rest.by_ref().take(n_behind));
            continue;
        }
        let typed = typed_for(name, typed).unwrap_or(name).to_owned();
        let next = rest
            .peek()
            .and_then(|next| next.to_str())
            .filter(|next| !is_flag(next));
        let given = value.or(next);
        let (is_harmless, has_value) = match harmless_flags::find(command.get_name(), name) {
            None => (false, false),
            Some((Value::None, _)) => (value.is_none(), false),
            Some((Value::Any, _)) => (given.is_some(), true),
            Some((Value::OneOf(values), _)) => (given.is_some_and(|given| values.contains(&given)), true),
            Some((Value::Maybe(values), _)) => (true, given.is_some_and(|given| values.contains(&given))),
        };
        if let Some((_, why)) = harmless_flags::find(command.get_name(), name).filter(|_| is_harmless) {
            if has_value && value.is_none() {
                rest.next();
            }
            left_out.push((typed, why));
        } else {
            unknown.push((typed, name.to_owned()));
            kept.push(arg);
        }
    }
    match &unknown[..] {
        // The parser reads several letters after one dash as flags of their own.
        [(flag, name)] if foreign_flags::is_row(flag) => {
            let foreign = foreign_flags::refusal(command.get_name(), flag);
            return Err(foreign.unwrap_or_else(|| unknown_option(flag, name, parser, typed)));
        }
        // The parser names a single one.
        [] | [_] => {}
        flags => {
            let typed: Vec<String> = flags.iter().map(|(typed, _)| typed.clone()).collect();
            return Err(several_unknown(command, &typed));
        }
    }
    Ok(Rewritten { args: kept, left_out })
}

/// Reports several flags that a command does not have.
fn several_unknown(command: &clap::Command, flags: &[String]) -> Failure {
    let name = command.get_name();
    let message = format!("`tokenmill {name}` has no `{}`", flags.join("`, `"));
    let longs: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
    let hint = |flag: &String| {
        let near = || {
            // The dashes that all flags have do not count as likeness.
            let near = near_names(flag.trim_start_matches('-'), longs.iter().copied());
            near.first().map(|near| format!("a similar one is `--{near}`"))
        };
        let foreign = foreign_flags::refusal(name, flag).and_then(|failure| failure.hint);
        Some(format!("`{flag}`: {}", foreign.or_else(near)?))
    };
    let hints: Vec<String> = flags.iter().filter_map(hint).collect();
    let help = format!("`tokenmill {name} --help` lists its options");
    Failure::usage(message).hint(if hints.is_empty() { help } else { hints.join("; ") })
}

/// Says whether an argument is a flag; a number is a value.
fn is_flag(text: &str) -> bool {
    text.len() > 1 && text.starts_with('-') && text.parse::<f64>().is_err()
}

fn name_and_value(text: &str) -> (&str, Option<&str>) {
    match text.split_once('=') {
        Some((name, value)) if name.starts_with('-') => (name, Some(value)),
        _ => (text, None),
    }
}

/// Returns the number of values of a command's option; `None` if it has no such flag.
pub(crate) fn n_values_of(command: &clap::Command, name: &str) -> Option<usize> {
    if ["-h", "--help", "-V", "--version"].contains(&name) {
        return Some(0);
    }
    let n_values = |arg: &clap::Arg| {
        let least = arg.get_num_args().map_or(1, |range| range.min_values());
        if arg.get_action().takes_values() { least } else { 0 }
    };
    let arguments = || command.get_arguments().filter(|arg| !arg.is_positional());
    if let Some(long) = name.strip_prefix("--") {
        let is_it = |arg: &&clap::Arg| {
            let others = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(long) || others.contains(&long)
        };
        return arguments().find(is_it).map(n_values);
    }
    // A flag of another program is not a group of short flags.
    if foreign_flags::refusal_of_row(command.get_name(), name).is_some()
        || harmless_flags::find(command.get_name(), name).is_some()
    {
        return None;
    }
    let mut letters = name.strip_prefix('-')?.chars();
    while let Some(letter) = letters.next() {
        let is_it = |arg: &&clap::Arg| {
            let others = arg.get_all_short_aliases().unwrap_or_default();
            arg.get_short() == Some(letter) || others.contains(&letter)
        };
        let is_of_parser = ['h', 'V'].contains(&letter);
        let arg = arguments().find(is_it);
        if !is_of_parser && arg?.get_action().takes_values() {
            // The rest of the argument is the value. A word is more likely a flag that this program does not have.
            return match letters.next() {
                None => arg.map(n_values),
                Some(next) => (!next.is_alphabetic()).then_some(0),
            };
        }
        if letters.as_str().is_empty() {
            return Some(0);
        }
    }
    None
}

/// The short flag that stands in `args` for `long`, the name that the parser speaks of.
pub(crate) fn typed_for(long: &str, args: &[OsString]) -> Option<&'static str> {
    let is_given = |short: &str| {
        args.iter().filter_map(|arg| arg.to_str()).any(|arg| {
            arg.strip_prefix(short)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        })
    };
    let (short, _) = short_flags().find(|(_, name)| long.strip_prefix("--") == Some(*name))?;
    is_given(short).then_some(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_of(line: &str) -> Result<Rewritten, String> {
        let args = line.split(' ').map(OsString::from);
        rewrite(args, &crate::parser()).map_err(|failure| failure.line())
    }

    #[track_caller]
    fn check(line: &str, expected: Result<&str, &str>) {
        let found = line_of(line).map(|rewritten| {
            let args: Vec<&str> = rewritten.args.iter().map(|arg| arg.to_str().unwrap()).collect();
            args.join(" ")
        });
        assert_eq!(
            found.as_deref(),
            expected.map_err(str::to_owned).as_deref(),
            "{line}"
        );
    }

    #[test]
    fn two_letter_flags_become_long() {
        check(
            "tokenmill run x -ctk q8_0 -ub=8",
            Ok("tokenmill run x --cache-type-k q8_0 --ubatch-size=8"),
        );
        check("tokenmill run -m x hi", Ok("tokenmill run x hi"));
        check("tokenmill serve -hf o/r:Q8_0", Ok("tokenmill serve o/r:Q8_0"));
        check(
            "tokenmill bench-serve http://127.0.0.1:1 --model x",
            Ok("tokenmill bench-serve http://127.0.0.1:1 --model x"),
        );
        check("tokenmill run x -- -ctk -m", Ok("tokenmill run x -- -ctk -m"));
        check("tokenmill run -m", Err("error: `-m` needs a model"));
    }

    #[test]
    fn a_line_of_another_program_runs_where_nothing_is_left_to_do() {
        let line = "tokenmill serve x -fa on --jinja --mlock -cb --metrics -ngl 99 -lv 3 -t 4 --reasoning-format auto -fa -c 8";
        check(line, Ok("tokenmill serve x --gpu-layers 99 -t 4 -c 8"));
        let left_out = line_of(line).unwrap().left_out;
        let names: Vec<&str> = left_out.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "-fa",
                "--jinja",
                "--mlock",
                "-cb",
                "--metrics",
                "-lv",
                "--reasoning-format",
                "-fa"
            ]
        );
        check(
            "tokenmill run x -p hi -st -fit on --simple-io --keepalive 5m -dev none --nowordwrap",
            Ok("tokenmill run x -p hi --device none"),
        );
        check("tokenmill chat x -cnv -i", Ok("tokenmill chat x"));
        check("tokenmill chat x --color on -c 8", Ok("tokenmill chat x -c 8"));
        check(
            "tokenmill chat x -st",
            Err(
                "error: `-st` is an option of llama.cpp that does not exist here (hint: `tokenmill run MODEL PROMPT` answers one message)",
            ),
        );
        check(
            "tokenmill chat x -no-cnv",
            Err(
                "error: `-no-cnv` is an option of llama.cpp that does not exist here (hint: `tokenmill run --raw` continues a text)",
            ),
        );
        // Values are not flags, and neither are numbers.
        check(
            "tokenmill run x -n -1 --stop --jinja -s=-1",
            Ok("tokenmill run x -n -1 --stop --jinja -s=-1"),
        );
        check("tokenmill run x -n48", Ok("tokenmill run x -n48"));
    }

    #[test]
    fn several_letters_are_one_flag_unless_they_are_switches_or_a_number() {
        check(
            "tokenmill run x -n48 -c8k -s=1",
            Ok("tokenmill run x -n48 -c8k -s=1"),
        );
        check("tokenmill run x -f./prompt", Ok("tokenmill run x -f./prompt"));
        let foreign = |flag: &str, hint: &str| {
            format!("error: `{flag}` is an option of llama.cpp that does not exist here (hint: {hint})")
        };
        for flag in ["-hfd", "-hfrd"] {
            let hint =
                "`--draft MODEL` names the draft model; `run`, `chat`, `serve`, `batch` and `bench` take it";
            check(&format!("tokenmill run x {flag} y"), Err(&foreign(flag, hint)));
        }
        for flag in ["-ctkd", "-ctvd", "-cd", "-td", "-tbd", "-ngld", "-ncmoed"] {
            let hint = "a draft model is loaded with the options of the model";
            check(
                &format!("tokenmill run x -n 1 {flag} 0"),
                Err(&foreign(flag, hint)),
            );
        }
        for flag in ["-fitt", "-fitc"] {
            let hint =
                "options that are not given are always fitted to the memory; `-ngl N` and `-c N` set them";
            check(&format!("tokenmill run x {flag} 1"), Err(&foreign(flag, hint)));
        }
        check(
            "tokenmill run x -hft secret",
            Err(&foreign(
                "-hft",
                "the variable HF_TOKEN holds an access token for the Hub",
            )),
        );
        check("tokenmill run x -n 1 -nr -ndio", Ok("tokenmill run x -n 1"));
        for (flag, expected) in [
            (
                "-temp",
                "`-temp` is not an option of `run` (hint: near it: `--temp`)",
            ),
            (
                "-hfx",
                "`-hfx` is not an option of `run` (hint: `tokenmill run --help` lists its options)",
            ),
            (
                "-fcat.txt",
                "`-fcat.txt` is not an option of `run` (hint: a value stands apart: `-f cat.txt`)",
            ),
        ] {
            check(
                &format!("tokenmill run x {flag} 0"),
                Err(&format!("error: {expected}")),
            );
        }
    }

    #[test]
    fn all_unknown_flags_are_told_at_once() {
        check(
            "tokenmill serve x --grammar-file g --rope-scale 2 --prot 80 --jinja",
            Err(
                "error: `tokenmill serve` has no `--grammar-file`, `--rope-scale`, `--prot` (hint: `--grammar-file`: `run` and `chat` take \
                 `--json-schema`, `--regex` and `--grammar`; requests to a server carry their own schema; `--rope-scale`: \
                 positions are scaled as the file says, which cannot be overridden; `--prot`: a similar one is `--port`)",
            ),
        );
        // The parser reports a single unknown flag, because it can suggest a similar one.
        check("tokenmill serve x --prot 80", Ok("tokenmill serve x --prot 80"));
        check(
            "tokenmill run x --reasoning-format none --rope-scale 2",
            Err(
                "error: `tokenmill run` has no `--reasoning-format`, `--rope-scale` (hint: `--reasoning-format`: a conversation's reasoning \
                 is always separate from the answer; `--rope-scale`: positions are scaled as the file says, which cannot be \
                 overridden)",
            ),
        );
        check(
            "tokenmill run x -sm row",
            Err(
                "error: `-sm` is an option of llama.cpp that does not exist here (hint: `--tensor-parallel-size N` divides a model evenly \
                 among N GPUs, from the one of `--device cuda:N` on)",
            ),
        );
    }
}
