//! `completions`: completion scripts for shells.

use std::io;

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use crate::{Cli, failure::Failure, output};

/// Print a completion script for a shell.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tokenmill completions bash > ~/.local/share/bash-completion/completions/tokenmill\n  \
    tokenmill completions zsh > ~/.zfunc/_tokenmill\n  \
    tokenmill completions fish > ~/.config/fish/completions/tokenmill.fish")]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "tokenmill", &mut script);
    let script = String::from_utf8(script)
        .map_err(|error| Failure::unwritable("standard output", io::Error::other(error)))?;
    output::print(&script)
}
