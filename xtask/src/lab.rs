//! `lab`: builds the program of the tools that run our code, and calls it.
//!
//! `cargo run --package lab` would resolve features for that package alone and compile all our crates a second time. Invariant:
//! this build has the features of `cargo test --workspace`, so that neither repeats the other's work.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command as Process,
};

use anyhow::{Context, ensure};
use clap::{Arg, ArgMatches, Command, value_parser};

/// Commands of `lab` that `cargo xtask` also offers, since people and documents call them that way.
const NAMES: [&str; 3] = ["device-pack", "parity", "ptx"];

/// Programs that tests, measurements and packs run.
const PROGRAMS: [&str; 2] = ["tokenmill", "lab"];

/// Returns the options of this command.
pub fn command() -> Command {
    passed_on(Command::new("lab"))
        .about("Builds and calls the tools that run our code; `--release` first builds them optimized, `--help` lists them")
}

/// Lists the commands that are passed on under their own names.
pub fn names() -> impl Iterator<Item = Command> {
    NAMES
        .into_iter()
        .map(|name| passed_on(Command::new(name)).about(format!("The same as `cargo lab {name}`")))
}

/// Makes a command whose arguments are all passed to another program.
fn passed_on(command: Command) -> Command {
    command.disable_help_flag(true).arg(
        Arg::new("args")
            .num_args(0..)
            .trailing_var_arg(true)
            .allow_hyphen_values(true)
            .value_parser(value_parser!(OsString)),
    )
}

/// Builds the program and calls it.
///
/// # Errors
/// A failed build or call.
pub fn run(args: &ArgMatches) -> anyhow::Result<()> {
    call(None, args)
}

/// Does the same for a command that has a name here.
///
/// # Errors
/// As [`run`].
pub fn run_named(name: &str, args: &ArgMatches) -> anyhow::Result<()> {
    call(Some(name), args)
}

fn call(name: Option<&str>, args: &ArgMatches) -> anyhow::Result<()> {
    let mut args: Vec<&OsString> = args.get_many("args").into_iter().flatten().collect();
    let is_release = args.first().is_some_and(|first| *first == "--release");
    if is_release {
        args.remove(0);
    }
    let programs = build(is_release)?;
    let status = Process::new(programs.join("lab"))
        .args(name)
        .args(args)
        .status()
        .context("cannot run lab")?;
    // The program has reported the reason.
    std::process::exit(status.code().unwrap_or(1));
}

/// Builds [`PROGRAMS`]; returns the folder that they are in.
///
/// # Errors
/// A build that fails.
pub(crate) fn build(is_release: bool) -> anyhow::Result<PathBuf> {
    let mut cargo = Process::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "--workspace"]);
    for program in PROGRAMS {
        cargo.args(["--bin", program]);
    }
    // The build must include some test, or the features that only tests request would be missing.
    cargo.args(["--test", "comparisons"]);
    if is_release {
        cargo.arg("--release");
    }
    let status = cargo.current_dir(crate::workspace_root()).status();
    ensure!(
        status.context("cannot run cargo")?.success(),
        "building lab failed"
    );
    let folder = Path::new(if is_release { "release" } else { "debug" });
    Ok(crate::target_dir().join(folder))
}
