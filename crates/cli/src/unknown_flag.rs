//! [`unknown_option`]: the answer to a flag that no known program has.
//!
//! Separate from the other refusals, because it is also given before the parser reads the line.

use std::ffi::OsString;

use tokenmill_server::near_names;

use crate::failure::Failure;

/// The command that was given.
pub(crate) fn command_of<'p>(parser: &'p clap::Command, args: &[OsString]) -> Option<&'p clap::Command> {
    args.iter().skip(1).find_map(|arg| parser.find_subcommand(arg))
}

/// Returns the answer to a flag that no known program has: it names the commands of this program with the
/// flag, or similar flags.
pub(crate) fn unknown_option(typed: &str, flag: &str, parser: &clap::Command, args: &[OsString]) -> Failure {
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
    let own = longs(command);
    // It was typed with one dash.
    if own.iter().any(|long| long == wanted) {
        return failure.hint(format!("near it: `--{wanted}`"));
    }
    let others = having(parser, flag);
    let near = near_names(wanted, own.iter().map(String::as_str));
    failure.hint(match (&others[..], &near[..]) {
        ([_, ..], _) => format!("an option of {}", others.join(", ")),
        ([], [_, ..]) => format!("near it: `--{}`", near.join("`, `--")),
        ([], []) => {
            apart(flag, command).unwrap_or_else(|| format!("`tokenmill {name} --help` lists its options"))
        }
    })
}

/// Lists the commands with a flag of this name, of one letter or several.
fn having(parser: &clap::Command, flag: &str) -> Vec<String> {
    let wanted = flag.trim_start_matches('-');
    let is_it = |arg: &clap::Arg| match flag.strip_prefix("--") {
        None if wanted.chars().count() == 1 => arg.get_short().is_some_and(|short| wanted.starts_with(short)),
        _ => arg.get_long() == Some(wanted),
    };
    let has = |command: &&clap::Command| {
        command
            .get_arguments()
            .any(|arg| !arg.is_hide_set() && is_it(arg))
    };
    let commands = parser.get_subcommands().filter(has);
    commands
        .map(|command| format!("`{}`", command.get_name()))
        .collect()
}

/// Returns the hint for a flag of one letter whose value follows without a space.
fn apart(flag: &str, command: &clap::Command) -> Option<String> {
    let mut letters = flag
        .strip_prefix('-')
        .filter(|text| !text.starts_with('-'))?
        .chars();
    let letter = letters.next()?;
    let takes_it = |arg: &clap::Arg| arg.get_short() == Some(letter) && arg.get_action().takes_values();
    let takes_text = command.get_arguments().any(takes_it);
    (takes_text && !letters.as_str().is_empty())
        .then(|| format!("a value stands apart: `-{letter} {}`", letters.as_str()))
}
