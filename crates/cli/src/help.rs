//! The layout of `--help`: examples first, options in two columns, rare ones last under "Advanced".
//!
//! It only presents the parser's options and changes no meaning. `-h` leaves out the advanced options and the
//! descriptions of possible values. Invariant: an option's own heading marks it as advanced.

use std::{
    ffi::OsString,
    fmt::Write as _,
    io::{self, Write as _},
    process,
};

use clap::{
    Arg, Command, Id,
    builder::StyledStr,
    error::{Error, ErrorKind},
};
use console::Term;

use crate::hanging::{MAX_HELP_COLUMNS, columns, hanging};

/// Heading of the options that few need: an option is advanced by standing below it.
pub(crate) const ADVANCED: &str = "Advanced";

/// How much a help text has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// `-h`.
    Brief,
    /// `--help`.
    Whole,
}

/// Prints the help or the version, and ends the program. Lines break between words.
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
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            of_typed(parser, typed, n_columns)
        }
        _ => error.render(),
    };
    let text = if is_colored {
        text.ansi().to_string()
    } else {
        text.to_string()
    };
    let text = wrapped(&text, n_columns);
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
    if let Some(command) = named {
        return of_command(command, scope, n_columns);
    }
    let notes = parser
        .get_after_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    parser
        .after_help(broken_examples(&flowing(&notes), n_columns))
        .render_help()
}

/// Joins the lines of each paragraph, which are broken for the width of the source. The terminal's width breaks them again. Indented
/// lines, such as examples, stay.
fn flowing(text: &str) -> String {
    let is_text = |line: &str| !line.is_empty() && !line.starts_with(' ');
    let mut lines: Vec<String> = Vec::new();
    for line in text.split('\n') {
        if let Some(last) = lines.last_mut().filter(|last| is_text(last) && is_text(line)) {
            last.push(' ');
            last.push_str(line);
        } else {
            lines.push(line.to_owned());
        }
    }
    lines.join("\n")
}

/// Breaks the lines that are still wider than the terminal. Examples stay, since a line break would cut a text in quotes.
fn wrapped(text: &str, n_columns: usize) -> String {
    let mut is_example = false;
    let lines = text.split('\n').map(|line| {
        is_example = line == "Examples:" || is_example && !line.is_empty();
        hanging(line, (!is_example).then_some(n_columns))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Breaks the examples that are wider than a terminal as a shell reads them: with a backslash, and only between words.
fn broken_examples(text: &str, n_columns: usize) -> String {
    let mut is_example = false;
    let mut lines = Vec::new();
    for line in text.split('\n') {
        is_example = line == "Examples:" || is_example && !line.is_empty();
        if is_example && line.chars().count() > n_columns {
            lines.extend(broken(line, n_columns));
        } else {
            lines.push(line.to_owned());
        }
    }
    lines.join("\n")
}

/// Breaks the line of a shell. A text in quotes is one word.
fn broken(line: &str, n_columns: usize) -> Vec<String> {
    let mut quote = None;
    let words = line.trim_start().split(|char: char| {
        match quote {
            Some(open) if open == char => quote = None,
            None if ['"', '\''].contains(&char) => quote = Some(char),
            _ => {}
        }
        char == ' ' && quote.is_none()
    });
    let mut lines = Vec::new();
    let mut last = " ".to_owned();
    for word in words {
        // The line has room for a space, the word and a backslash.
        if !last.trim().is_empty() && last.chars().count() + word.chars().count() + 3 > n_columns {
            lines.push(format!("{last} \\"));
            last = " ".repeat(5);
        }
        last.push(' ');
        last.push_str(word);
    }
    lines.push(last);
    lines
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
        Some((examples, notes)) => (examples.to_owned(), flowing(notes)),
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
        .before_help(broken_examples(&examples, n_columns))
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

/// Moves the advanced options of a command to its end, for views that take the headings as they come.
pub(crate) fn with_advanced_last(command: Command) -> Command {
    let advanced: Vec<Id> = (command.get_arguments())
        .filter(|arg| is_advanced(arg))
        .map(|arg| arg.get_id().clone())
        .collect();
    // An argument that is changed moves to the end.
    (advanced.into_iter()).fold(command, |command, id| command.mut_arg(id, |arg| arg))
}

fn is_advanced(arg: &Arg) -> bool {
    arg.get_help_heading() == Some(ADVANCED)
}

/// Gives an option its text for a scope.
fn placed(arg: Arg, scope: Scope) -> Arg {
    if arg.get_id() == "help" {
        return arg.help("Print help; -h prints a shorter one");
    }
    let arg = if is_advanced(&arg) {
        arg.hide(scope == Scope::Brief)
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
        wrapped(&of_command(command, scope, n_columns).to_string(), n_columns)
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
    fn the_list_of_types_stands_below_the_examples() {
        let text = help("quantize", Scope::Whole, MAX_HELP_COLUMNS);
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} in {text}"));
        assert!(at("\nExamples:") < at("from the list below"));
        assert!(at("from the list below") < at("\nTypes, with bits per weight:"));
    }

    #[test]
    fn a_brief_help_leaves_out_what_few_need() {
        let text = help("run", Scope::Brief, MAX_HELP_COLUMNS);
        assert!(!text.contains("--numa") && !text.contains(ADVANCED), "{text}");
        assert!(
            text.contains("--temp") && text.contains("`tokenmill run --help`"),
            "{text}"
        );
    }

    #[test]
    fn a_paragraph_breaks_only_where_the_terminal_ends() {
        for n_columns in [60, 80, MAX_HELP_COLUMNS] {
            let text = help("pull", Scope::Whole, n_columns);
            let paragraph = text
                .split("\n\n")
                .find(|paragraph| paragraph.starts_with("Models are stored in"))
                .expect("it is in the text");
            let lines: Vec<&str> = paragraph.lines().collect();
            for pair in lines.windows(2) {
                let next = pair[1].split(' ').next().expect("a word");
                let n_with_next = pair[0].chars().count() + 1 + next.chars().count();
                assert!(n_with_next > n_columns, "{n_columns}: {}", pair[0]);
            }
        }
    }

    #[test]
    fn a_wide_example_is_broken_as_a_shell_reads_it() {
        for command in crate::parser().get_subcommands() {
            let text = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            let broken = broken_examples(&text, 60);
            assert_eq!(broken.replace(" \\\n      ", " "), text);
        }
        let text = help("run", Scope::Whole, 60);
        assert!(text.contains(" \\\n      "), "{text}");
        assert_eq!(
            broken("  tokenmill run demo \"Once upon a time\" --raw -n 48", 40),
            [
                "  tokenmill run demo \\",
                "      \"Once upon a time\" --raw -n 48"
            ]
        );
    }

    #[test]
    fn a_copied_example_is_the_same_command_at_any_width() {
        for n_columns in [30, 60, 80, MAX_HELP_COLUMNS] {
            for command in crate::parser().get_subcommands() {
                let text = help(command.get_name(), Scope::Whole, n_columns);
                // As a shell reads it.
                let joined = text.replace(" \\\n      ", " ");
                let examples = command
                    .get_after_help()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                let examples = examples.split("\n\n").next().unwrap_or_default();
                for example in examples.lines().skip(1) {
                    assert!(
                        joined.lines().any(|line| line == example),
                        "{n_columns}: {example} in {text}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_example_fits_into_a_line() {
        for command in crate::parser().get_subcommands() {
            let text = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            for line in text.lines().filter(|line| line.starts_with("  tokenmill")) {
                assert!(line.chars().count() <= MAX_HELP_COLUMNS, "{line}");
            }
        }
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
}
