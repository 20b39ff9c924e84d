//! `ci`: everything that must pass before a change lands, what fails fastest first.

use std::process::Command;

use anyhow::{Context, bail};

/// Runs format check, tidy, lints, tests, documentation and the comparison of the kernels with their PTX, warnings denied
#[derive(clap::Args)]
pub struct Args {}

/// A step that cargo runs.
struct Step {
    name: &'static str,
    args: &'static [&'static str],
    env: Option<(&'static str, &'static str)>,
}

const STEPS: [Step; 4] = [
    Step {
        name: "format",
        args: &["fmt", "--all", "--check"],
        env: None,
    },
    Step {
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
    Step {
        name: "tests",
        args: &["test", "--workspace", "--locked"],
        env: None,
    },
    Step {
        name: "docs",
        args: &["doc", "--workspace", "--no-deps", "--locked"],
        env: Some(("RUSTDOCFLAGS", "-D warnings")),
    },
];

/// Runs all steps and stops at the first that fails.
///
/// # Errors
/// The step that failed.
pub fn run(_: &Args) -> anyhow::Result<()> {
    crate::tidy::run(&crate::tidy::Args {})?;
    for Step { name, args, env } in STEPS {
        println!("== {name}: cargo {}", args.join(" "));
        let status = Command::new(env!("CARGO"))
            .args(args)
            .envs(env)
            .current_dir(crate::workspace_root())
            .status()
            .with_context(|| format!("cannot run cargo for {name}"))?;
        if !status.success() {
            bail!("{name} failed");
        }
    }
    println!("== kernels: cargo xtask ptx --check");
    crate::ptx::run(&crate::ptx::Args::check())
}
