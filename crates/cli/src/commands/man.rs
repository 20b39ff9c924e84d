//! `man`: the manual's pages, one for each command.

use std::{fs, path::PathBuf};

use crate::{failure::Failure, help::with_advanced_last, output, parser};

/// Write the manual pages to a folder.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tokenmill man ~/.local/share/man/man1\n  \
    man tokenmill-run")]
pub(crate) struct Args {
    /// The folder; it is created if it is missing
    folder: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let folder = &args.folder;
    let unwritable = |error| Failure::unwritable(folder, error);
    fs::create_dir_all(folder).map_err(unwritable)?;
    // A page has room for the types that `--help` lists in one place only, or not at all.
    let with_values =
        |command: clap::Command| with_advanced_last(command).mut_args(|arg| arg.hide_possible_values(false));
    let command = parser()
        .disable_help_subcommand(true)
        .mut_subcommands(with_values);
    let n_pages = 1 + command.get_subcommands().count();
    clap_mangen::generate_to(command, folder).map_err(unwritable)?;
    output::print_sentence(&format!("{n_pages} pages written to {}", folder.display()))
}
