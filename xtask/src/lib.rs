//! The project's rules as commands, one module per command. Each has a `command` that clap parses and a `run`.
//!
//! (`lab` runs our code.) Invariant: nothing here depends on a crate of ours, and little on others, so that `cargo xtask tidy`
//! answers within seconds in a fresh clone.
#![forbid(unsafe_code)]

pub mod ci;
pub mod lab;
pub mod release;
pub mod tidy;

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

/// Returns the root of the workspace.
fn workspace_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace root")
}

/// Returns the folder in which cargo builds.
fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace_root().join("target"), PathBuf::from)
}

/// Returns the output of `cargo metadata`.
fn metadata(args: &[&str]) -> anyhow::Result<serde_json::Value> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1"])
        .args(args)
        .current_dir(workspace_root())
        .output()
        .context("cannot run cargo")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Returns the entries of a list in cargo's output; empty if it is not a list.
fn entries(value: &serde_json::Value) -> &[serde_json::Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns a text in cargo's output; empty if it is not a text.
fn text(value: &serde_json::Value) -> &str {
    value.as_str().unwrap_or_default()
}
