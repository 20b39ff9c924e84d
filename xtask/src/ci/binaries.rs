//! [`test_binaries`]: finds the binaries of tests that cargo built. Steps run them through an emulator, or with
//! the program of another system.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::text;

/// A binary of tests.
pub(super) struct TestBinary {
    /// The source file that it is built from, relative to the workspace root.
    pub(super) source: PathBuf,
    pub(super) path: PathBuf,
}

impl TestBinary {
    /// Returns the folder of its package, in which cargo would run it.
    pub(super) fn folder(&self) -> PathBuf {
        let is_package = |folder: &&std::path::Path| folder.join("Cargo.toml").is_file();
        let source = crate::workspace_root().join(&self.source);
        let found = source.ancestors().skip(1).find(is_package);
        found.unwrap_or(crate::workspace_root()).to_owned()
    }
}

/// All tests of the workspace, and no examples.
pub(super) const WORKSPACE: [&str; 2] = ["--workspace", "--tests"];

/// Builds tests as `cargo test` with these arguments would, and runs none.
///
/// # Errors
/// A build that fails.
pub(super) fn test_binaries(args: &[&str], env: &[(&str, &str)]) -> anyhow::Result<Vec<TestBinary>> {
    let output = Command::new(env!("CARGO"))
        .args([
            "test",
            "--locked",
            "--no-run",
            "--message-format=json-render-diagnostics",
        ])
        .args(args)
        .env("CARGO_INCREMENTAL", "0")
        .envs(env.iter().copied())
        .current_dir(crate::workspace_root())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    ensure!(output.status.success(), "cargo test {} failed", args.join(" "));
    let mut binaries = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        if message["profile"]["test"] != true {
            continue;
        }
        let Some(path) = message["executable"].as_str() else {
            continue;
        };
        let source = PathBuf::from(text(&message["target"]["src_path"]));
        binaries.push(TestBinary {
            source: source
                .strip_prefix(crate::workspace_root())
                .map_or(source.clone(), PathBuf::from),
            path: path.into(),
        });
    }
    Ok(binaries)
}
