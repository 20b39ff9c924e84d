//! `cargo xtask`: the table of the project's rules as commands.
//!
//! Each command is one module of the library in this folder. A new one is its module and a row here.
#![forbid(unsafe_code)]

use clap::{ArgMatches, Command};
use xtask::{ci, lab, release, tidy};

/// A command: its options, and the function that runs it.
type Row = (fn() -> Command, fn(&ArgMatches) -> anyhow::Result<()>);

const COMMANDS: [Row; 4] = [
    (ci::command, ci::run),
    (lab::command, lab::run),
    (release::command, release::run),
    (tidy::command, tidy::run),
];

fn main() -> anyhow::Result<()> {
    let commands = COMMANDS.iter().map(|(command, _)| command());
    let matches = Command::new("cargo xtask")
        .about("The project's rules; `cargo lab` has the tools that run its code")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(commands)
        .subcommands(lab::names())
        .get_matches();
    let (name, args) = matches.subcommand().expect("clap has asked for one");
    match COMMANDS.iter().find(|(command, _)| command().get_name() == name) {
        Some((_, run)) => run(args),
        None => lab::run_named(name, args),
    }
}
