//! `ci`: everything that must pass before a change lands, in the order of what it costs.
//!
//! Format and tidy answer in seconds, then come lints, tests and documentation, all of one build of the workspace. Steps whose claim
//! depends on few paths come last (`by_path`): they run where one of these changed, and whole once a day (`record`). A step that
//! is left out says so at the end, and why. A machine of CI builds once and has little room: nothing incremental is kept, and
//! what the build for another system leaves is removed.

mod binaries;
mod by_path;
mod emulated;
mod grids;
mod needs;
mod record;
mod windows;

use std::{fs, path::Path, process::Command, time::Instant};

use anyhow::{Context, bail, ensure};
use clap::{Arg, ArgAction, ArgMatches};

use self::{
    by_path::STEPS,
    record::{Due, Record},
};

/// The options of this command.
pub fn command() -> clap::Command {
    let flag = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
    };
    clap::Command::new("ci")
        .about("Runs everything that must pass before a change lands")
        .arg(flag("whole", "Run the steps by path whatever changed"))
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
            Arg::new("only")
                .long("only")
                .value_name("STEP")
                .action(ArgAction::Append)
                .help("Run this step by path alone, due or not; may be repeated"),
        )
}

/// Something that cargo does.
struct Cargo {
    name: &'static str,
    args: &'static [&'static str],
    env: Option<(&'static str, &'static str)>,
}

/// The cargo checks that the code must pass everywhere; format and tidy are separate.
const CARGO: [Cargo; 4] = [
    Cargo {
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
    },
    Cargo {
        name: "tests",
        args: &["test", "--workspace", "--locked"],
        env: None,
    },
    // With the examples, features are those of lints and tests, so that what others wrote is checked once.
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
    // The same program as for lints, and not `check`: it finds all packages whose features did not change as the lints left them.
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
    let mut due = Vec::new();
    let mut skipped = Vec::new();
    for step in STEPS {
        let verdict = if only.is_empty() && !args.get_flag("whole") {
            record.due(step.name, step.paths)?
        } else if only.is_empty() || only.iter().any(|name| *name == step.name) {
            Due::Now("it was asked for".to_owned())
        } else {
            continue;
        };
        match verdict {
            Due::Now(reason) => due.push((step, reason)),
            Due::Not(reason) => skipped.push(format!("{}: {reason}", step.name)),
        }
    }
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
        for Cargo { name, args, env } in CARGO {
            timed(name, || cargo(args, env))?;
        }
        timed("end to end", || by_path::end_to_end("core"))?;
    }
    if args.get_flag("install") {
        let needs = due.iter().flat_map(|(step, _)| step.needs).collect::<Vec<_>>();
        timed("tools", || needs::install(&needs))?;
    }
    for (step, reason) in due {
        if let Some(missing) = needs::missing(step.needs)? {
            skipped.push(format!("{}: {missing}", step.name));
            continue;
        }
        println!("{}: {reason}", step.name);
        timed(step.name, step.run)?;
        record.ran(step.name);
    }
    if args.get_flag("record") {
        record.write()?;
    }
    say_what_was_compared();
    for line in skipped {
        println!("== skipped: {line}");
    }
    Ok(())
}

/// Runs a step between its name and its time.
fn timed<T>(name: &str, step: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    println!("== {name}");
    let began = Instant::now();
    let result = step().with_context(|| format!("{name} failed"))?;
    println!("== {name}: {:.0} s", began.elapsed().as_secs_f64());
    Ok(result)
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

/// Prints once more, so that it stands at the end, what the tests compared with other software, and what they did not.
fn say_what_was_compared() {
    let report = crate::target_dir().join("tmp/comparisons.txt");
    if let Ok(text) = fs::read_to_string(report) {
        println!("\n{text}");
    }
}

/// Removes what the build for another system left. A folder that cannot be removed costs room only.
fn remove_build(target: &str) {
    let _ = fs::remove_dir_all(Path::new(&crate::target_dir()).join(target));
}
