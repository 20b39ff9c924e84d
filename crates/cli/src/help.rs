//! The layout of `--help`: examples first, options in two columns, rare ones last under "Advanced".
//!
//! Separate from the parser because a help text is a view of it: nothing here changes what a command line means. `-h` leaves out the
//! advanced options and what is said of each possible value. Invariant: [`ADVANCED`] names options by their long names, of whatever
//! command has them.

use std::{
    ffi::OsString,
    fmt::Write as _,
    io::{self, Write as _},
    process,
};

use clap::{
    Arg, Command,
    builder::StyledStr,
    error::{Error, ErrorKind},
};
use console::Term;

use crate::hanging::{MAX_HELP_COLUMNS, columns, hanging};

/// Heading of the options that few need.
const HEADING: &str = "Advanced";

/// Long names of the options that few need.
const ADVANCED: &[&str] = &[
    // Sampling.
    "typical",
    "top-n-sigma",
    "xtc-probability",
    "xtc-threshold",
    "dynatemp-range",
    "dynatemp-exp",
    "mirostat",
    "mirostat-lr",
    "mirostat-ent",
    "samplers",
    "sampler-seq",
    "repeat-last-n",
    "dry-multiplier",
    "dry-base",
    "dry-allowed-length",
    "dry-penalty-last-n",
    "dry-sequence-breaker",
    "logit-bias",
    // Prompts.
    "special",
    "chat-template",
    "chat-template-kwargs",
    // Speculation.
    "spec-max",
    "mtp",
    // Loading.
    "control-vector",
    "control-vector-layer-range",
    "threads-batch",
    "cpu-range",
    "cpu-strict",
    "numa",
    "no-mmap",
    "batch-size",
    "ubatch-size",
    "cpu-features",
    "n-cpu-moe",
    "place",
    "gpu-batch",
    "bandwidths",
    "measure-again",
    "all-reduce",
    "batch-invariant",
    "context-shift",
    "keep",
    // Serving.
    "kv-events-config",
    "tags",
    "no-slots",
    "prefix-dir",
    "prefix-dir-bytes",
    "session-dir-bytes",
    "lora-dir",
    "max-body-bytes",
    "write-timeout",
    "queue-timeout",
    "scheduling-policy",
    "drain-timeout",
    "heartbeat-timeout",
];

/// How much a help text has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// `-h`.
    Brief,
    /// `--help`.
    Whole,
}

/// Prints what the parser was asked for, help or the version, and ends the program. Lines break between words.
pub(crate) fn show_and_exit(error: &Error, parser: Command, typed: &[OsString]) -> ! {
    let (terminal, is_colored) = if error.use_stderr() {
        (Term::stderr(), console::colors_enabled_stderr())
    } else {
        (Term::stdout(), console::colors_enabled())
    };
    // A pager shows the text on the terminal that standard error has.
    let n_columns = (columns(&terminal).or_else(|| columns(&Term::stderr())))
        .map_or(MAX_HELP_COLUMNS, |n_columns| n_columns.min(MAX_HELP_COLUMNS));
    let text = match error.kind() {
        ErrorKind::DisplayHelp => of_typed(parser, typed, n_columns),
        _ => error.render(),
    };
    let text = if is_colored {
        text.ansi().to_string()
    } else {
        text.to_string()
    };
    let text = hanging(&text, Some(n_columns));
    // A reader that went away has read enough.
    let _unwritten = if error.use_stderr() {
        io::stderr().lock().write_all(text.as_bytes())
    } else {
        io::stdout().lock().write_all(text.as_bytes())
    };
    process::exit(error.exit_code());
}

/// Renders the help that a command line asks for: of the program, or of the command that it names.
fn of_typed(parser: Command, typed: &[OsString], n_columns: usize) -> StyledStr {
    let mut parser = parser.term_width(n_columns);
    parser.build();
    let is_brief = typed.iter().any(|arg| arg == "-h");
    let scope = if is_brief { Scope::Brief } else { Scope::Whole };
    let named =
        (typed.iter().skip(1)).find_map(|name| parser.find_subcommand(name).filter(|_| name != "help"));
    match named {
        Some(command) => of_command(command, scope, n_columns),
        None => parser.render_help(),
    }
}

/// Renders the help of one command.
fn of_command(command: &Command, scope: Scope, n_columns: usize) -> StyledStr {
    let mut args: Vec<Arg> = (command.get_arguments().cloned())
        .map(|arg| placed(arg, scope))
        .collect();
    let has_advanced = args.iter().any(is_advanced);
    // The headings come in the order of their first options.
    args.sort_by_key(is_advanced);
    let usage = command.clone().render_usage().to_string();
    let whole = command
        .get_after_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let (examples, mut notes) = match whole.split_once("\n\n") {
        Some((examples, notes)) => (examples.to_owned(), notes.to_owned()),
        None => (whole, String::new()),
    };
    if has_advanced && scope == Scope::Brief {
        let name = command.get_name();
        let rest = format!("`tokenmill {name} --help` lists advanced options, too.");
        notes = [notes, rest].join(if examples.is_empty() { "" } else { "\n\n" });
    }
    let mut shown = Command::new("tokenmill")
        .term_width(n_columns)
        // The options include the program's `--version`, which the parser refuses without one.
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_flag(true)
        .disable_version_flag(true)
        .override_usage(usage.trim_start_matches("Usage: ").to_owned())
        .before_help(examples)
        .after_help(notes.trim_start().to_owned())
        .help_template(
            "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}{all-args}{after-help}\n",
        )
        .groups(command.get_groups().cloned())
        .args(args);
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    shown.render_help()
}

fn is_advanced(arg: &Arg) -> bool {
    arg.get_long().is_some_and(|long| ADVANCED.contains(&long))
}

/// Gives an option its heading and its text for a scope.
fn placed(arg: Arg, scope: Scope) -> Arg {
    if arg.get_id() == "help" {
        return arg.help("Print help; -h prints a shorter one");
    }
    let arg = if is_advanced(&arg) {
        arg.help_heading(HEADING).hide(scope == Scope::Brief)
    } else {
        arg
    };
    let values = arg.get_possible_values();
    if scope == Scope::Brief
        || arg.is_hide_possible_values_set()
        || values.iter().all(|value| value.get_help().is_none())
    {
        return arg;
    }
    let mut text = arg.get_help().map(ToString::to_string).unwrap_or_default();
    for value in values.iter().filter(|value| !value.is_hide_set()) {
        let help = value.get_help().map(ToString::to_string).unwrap_or_default();
        let _ = write!(text, "\n- {}: {help}", value.get_name());
    }
    arg.help(text).hide_possible_values(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn help(name: &str, scope: Scope, n_columns: usize) -> String {
        let mut parser = crate::parser().term_width(n_columns);
        parser.build();
        let command = parser.find_subcommand(name).expect("a command");
        hanging(
            &of_command(command, scope, n_columns).to_string(),
            Some(n_columns),
        )
    }

    #[test]
    fn examples_come_first_and_advanced_options_last() {
        for name in ["run", "chat", "serve"] {
            let text = help(name, Scope::Whole, MAX_HELP_COLUMNS);
            let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} in {text}"));
            assert!(at("\nExamples:") < at("\nArguments:"));
            assert!(at("\nOptions:") < at("\nAdvanced:"));
            assert!(at("\nAdvanced:") < at("--numa"));
            let after = &text[at("\nAdvanced:") + 1..];
            let is_heading = |line: &&str| line.ends_with(':') && !line.starts_with(' ');
            assert_eq!(after.lines().filter(is_heading).count(), 1, "{after}");
        }
    }

    #[test]
    fn a_brief_help_leaves_out_what_few_need() {
        let text = help("run", Scope::Brief, MAX_HELP_COLUMNS);
        assert!(!text.contains("--numa") && !text.contains(HEADING), "{text}");
        assert!(
            text.contains("--temp") && text.contains("`tokenmill run --help`"),
            "{text}"
        );
    }

    #[test]
    fn no_line_is_wider_than_its_terminal() {
        let parser = crate::parser();
        for n_columns in [60, 80, MAX_HELP_COLUMNS] {
            for command in parser.get_subcommands() {
                let text = help(command.get_name(), Scope::Whole, n_columns);
                for line in text.lines() {
                    let is_word = !line.trim().contains(' ');
                    assert!(
                        is_word || line.chars().count() <= n_columns,
                        "{n_columns}: {line}"
                    );
                }
            }
        }
    }

    #[test]
    fn advanced_options_exist() {
        let parser = crate::parser();
        for name in ADVANCED {
            let has_it = |command: &Command| command.get_arguments().any(|arg| arg.get_long() == Some(*name));
            assert!(parser.get_subcommands().any(has_it), "{name}");
        }
    }
}
