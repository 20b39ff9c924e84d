//! `ci`: everything that must pass before a change lands, the cheapest first.
//!
//! Format and tidy answer in seconds, then come lints, tests and documentation, all of one build of the workspace. Test programs and the
//! end-to-end scripts run two at a time (`programs`). Steps whose claim depends on few paths come last (`by_path`): they
//! run if one of these changed, and completely once a day (`record`). A skipped step is reported at the end, with its reason. None of these
//! steps starts late in a run, so that they cannot exceed the time limit of a CI machine. The step whose last run is the oldest comes first,
//! and the others stay due. A CI machine builds once and has little disk space: nothing incremental is kept, and the files of a build for
//! another system are removed.

mod binaries;
mod by_path;
mod emulated;
mod grids;
mod needs;
mod programs;
mod record;
mod windows;

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use clap::{Arg, ArgAction, ArgMatches, value_parser};

use self::{
    by_path::{STEPS, Step},
    record::{Due, Record},
};

/// Age of a run, in minutes, from which on no further step by path starts. A CI machine stops a run after 90.
const YOUNG_MINUTES: u64 = 55;

/// Returns the options of this command.
pub fn command() -> clap::Command {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
    };
    clap::Command::new("ci")
        .about("Runs everything that must pass before a change lands")
        .arg(flag("whole", "Run the steps by path even if nothing changed"))
        .arg(flag(
            "install",
            "Install the Debian packages and Rust targets that the steps need",
        ))
        .arg(flag(
            "record",
            "Write to .ci/last-whole which steps by path ran; commit it",
        ))
        .arg(flag("list", "Say which steps by path are due, and run nothing"))
        .arg(
            Arg::new("minutes")
                .long("minutes")
                .value_name("N")
                .value_parser(value_parser!(u64))
                .help("Start no step by path once the run is N minutes old [default: 55, no limit for requested steps]"),
        )
        .arg(
            Arg::new("only")
                .long("only")
                .value_name("STEP")
                .action(ArgAction::Append)
                .help("Run this step by path alone, due or not; may be repeated"),
        )
}

/// A cargo command.
struct Cargo {
    name: &'static str,
    args: &'static [&'static str],
    env: Option<(&'static str, &'static str)>,
}

const LINTS: Cargo = Cargo {
    name: "lints",
    args: &[
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--",
        "-D",
        "warnings",
    ],
    env: None,
};

/// The cargo checks after the tests.
const AFTER_TESTS: [Cargo; 2] = [
    // With the examples, features are those of lints and tests, so that dependencies are checked once.
    Cargo {
        name: "docs",
        args: &[
            "doc",
            "--workspace",
            "--no-deps",
            "--lib",
            "--examples",
            "--locked",
        ],
        env: Some(("RUSTDOCFLAGS", "-D warnings")),
    },
    // The same program as for lints, and not `check`: all packages with unchanged features are still as the lints left them.
    Cargo {
        name: "builds without features",
        args: &[
            "clippy",
            "--workspace",
            "--no-default-features",
            "--lib",
            "--bins",
            "--examples",
            "--locked",
            "--",
            "-D",
            "warnings",
        ],
        env: None,
    },
];

/// Folders of modules that a macro declares, one for each weight format: `cargo fmt` does not find them.
const LISTED: [&str; 2] = ["crates/quant/src/formats", "crates/cpu-kernels/src/tiles"];

/// Runs all steps and stops at the first that fails.
///
/// # Errors
/// The step that failed.
pub fn run(args: &ArgMatches) -> anyhow::Result<()> {
    let began = Instant::now();
    let only: Vec<&String> = args.get_many("only").into_iter().flatten().collect();
    if let Some(unknown) = only
        .iter()
        .find(|name| STEPS.iter().all(|step| step.name != name.as_str()))
    {
        let known: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        bail!(
            "there is no step `{unknown}` by path; there are {}",
            known.join(", ")
        );
    }
    let mut record = Record::read()?;
    if args.get_flag("record") {
        record::refuse_changes()?;
    }
    let is_asked_for = !only.is_empty() || args.get_flag("whole");
    let minutes = args.get_one("minutes").copied();
    let minutes = minutes.or((!is_asked_for).then_some(YOUNG_MINUTES));
    let mut due = Vec::new();
    let mut skipped = Vec::new();
    for step in STEPS {
        let verdict = if !is_asked_for {
            record.due(step.name, step.paths)?
        } else if only.is_empty() || only.iter().any(|name| *name == step.name) {
            Due::Now("it was requested".to_owned())
        } else {
            continue;
        };
        match verdict {
            Due::Now(reason) => due.push((step, reason)),
            Due::Not(reason) => skipped.push(format!("{}: {reason}", step.name)),
        }
    }
    due.sort_by_key(|(step, _)| record.last_ran(step.name).map(str::to_owned));
    if args.get_flag("list") {
        for (step, reason) in due {
            println!("due: {}: {reason}", step.name);
        }
        for line in skipped {
            println!("not due: {line}");
        }
        return Ok(());
    }
    if only.is_empty() {
        timed("format", check_format)?;
        timed("tidy", crate::tidy::report)?;
        LINTS.run()?;
        // Without a choice of targets, cargo also builds the examples, which tests run. `--lib` would compile the library of kernels once
        // more, which has no tests inside.
        let programs = timed("build of tests", || {
            binaries::test_binaries(&["--workspace"], &[])
        })?;
        let scripts = crate::workspace_root().join("tests/e2e/run");
        timed("tests", || programs::run_all(programs, &scripts))?;
        for check in AFTER_TESTS {
            check.run()?;
        }
    }
    if args.get_flag("install") {
        let needs = due.iter().flat_map(|(step, _)| step.needs).collect::<Vec<_>>();
        timed("tools", || needs::install(&needs))?;
    }
    let outcome = run_while_young(
        due,
        minutes,
        || began.elapsed(),
        |step, reason| {
            if let Some(missing) = needs::missing(step.needs)? {
                skipped.push(format!("{}: {missing}", step.name));
                return Ok(());
            }
            println!("{}: {reason}", step.name);
            timed(step.name, step.run)?;
            record.ran(step.name);
            Ok(())
        },
    );
    // Steps that ran before one that fails are recorded too.
    if args.get_flag("record") {
        record.write()?;
    }
    skipped.extend(outcome?);
    say_what_was_compared();
    for line in skipped {
        println!("== skipped: {line}");
    }
    Ok(())
}

/// Runs the first step, and more while the run is younger than so many minutes; returns a line for each step that was not started. The first
/// is the one that ran longest ago, so that even a slow machine runs each step eventually.
fn run_while_young(
    due: Vec<(&Step, String)>,
    minutes: Option<u64>,
    age: impl Fn() -> Duration,
    mut run: impl FnMut(&Step, &str) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<String>> {
    let mut late = Vec::new();
    for (at, (step, reason)) in due.into_iter().enumerate() {
        let limit = minutes.filter(|minutes| at > 0 && age() >= Duration::from_secs(minutes * 60));
        if let Some(limit) = limit {
            late.push(format!(
                "{}: {reason}, but the run was {limit} minutes old when its turn came; it stays due",
                step.name
            ));
        } else {
            run(step, &reason)?;
        }
    }
    Ok(late)
}

/// Runs a step, and prints its name before and its time after it.
fn timed<T>(name: &str, step: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    println!("== {name}");
    let began = Instant::now();
    let result = step().with_context(|| format!("{name} failed"))?;
    println!("== {name}: {:.0} s", began.elapsed().as_secs_f64());
    Ok(result)
}

impl Cargo {
    fn run(&self) -> anyhow::Result<()> {
        timed(self.name, || cargo(self.args, self.env))
    }
}

fn cargo(args: &[&str], env: Option<(&str, &str)>) -> anyhow::Result<()> {
    let status = Command::new(env!("CARGO"))
        .args(args)
        .env("CARGO_INCREMENTAL", "0")
        .envs(env)
        .current_dir(crate::workspace_root())
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "cargo {} ended with {status}", args.join(" "));
    Ok(())
}

/// Checks the format of all packages and of [`LISTED`] folders.
fn check_format() -> anyhow::Result<()> {
    cargo(&["fmt", "--all", "--check"], None)?;
    let mut command = Command::new("rustfmt");
    command.args(["--check", "--edition", "2024"]);
    for folder in LISTED {
        let folder = crate::workspace_root().join(folder);
        let files = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for file in files {
            command.arg(file?.path());
        }
    }
    let status = command.status().context("cannot run rustfmt")?;
    ensure!(status.success(), "rustfmt found files to format");
    Ok(())
}

/// Prints once more, so that it is at the end, which comparisons with other software the tests made, and which they skipped.
fn say_what_was_compared() {
    let report = crate::target_dir().join("tmp/comparisons.txt");
    if let Ok(text) = fs::read_to_string(report) {
        println!("\n{text}");
    }
}

/// Removes the build for another system. A folder that cannot be removed only costs space.
fn remove_build(target: &str) {
    let _ = fs::remove_dir_all(Path::new(&crate::target_dir()).join(target));
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn only_the_first_step_starts_once_the_run_is_old() {
        let due = || -> Vec<_> {
            let named = |(at, step): (usize, &'static Step)| (step, format!("reason {at}"));
            STEPS.iter().take(3).enumerate().map(named).collect()
        };
        // Each step takes half an hour.
        let run = |minutes| {
            let now = Cell::new(20);
            let mut ran = Vec::new();
            let late = run_while_young(
                due(),
                minutes,
                || Duration::from_secs(now.get() * 60),
                |step, _| {
                    now.set(now.get() + 30);
                    ran.push(step.name);
                    Ok(())
                },
            );
            (ran, late.unwrap())
        };
        let names: Vec<_> = STEPS.iter().take(3).map(|step| step.name).collect();
        let (ran, late) = run(Some(55));
        assert_eq!(ran, names[..2]);
        let expected = format!(
            "{}: reason 2, but the run was 55 minutes old when its turn came; it stays due",
            names[2]
        );
        assert_eq!(late, [expected]);
        assert_eq!(run(Some(50)).0, names[..1]);
        // The step that ran longest ago always runs.
        assert_eq!(run(Some(0)).0, names[..1]);
        assert_eq!(run(None), (names, Vec::new()));
    }
}
