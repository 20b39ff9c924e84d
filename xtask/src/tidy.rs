//! `tidy`: turns taste and architecture into checks that fail.
//!
//! The rules about text are in `rules`, those about who may import whom in `layers`; `source` tells code from comments.
//! Invariant: a finding names file and line and says what the rule wants.

mod layers;
mod rules;
mod source;

use std::{fs, path::Path, process::Command};

use anyhow::{Context, bail, ensure};

/// Checks module docs, layering, unsafe islands, forbidden words and file sizes
#[derive(clap::Args)]
pub struct Args {}

/// What tidy has to say about one place.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    /// The file, relative to the workspace root, with a line number where there is one.
    place: String,
    message: String,
    /// Whether it is only worth a look.
    is_note: bool,
}

/// Checks the whole workspace.
///
/// # Errors
/// When there is a finding other than a note; all findings are printed first.
pub fn run(_: &Args) -> anyhow::Result<()> {
    let root = crate::workspace_root();
    let mut findings = layers::check(root)?;
    let files = tracked_files(root)?;
    ensure!(!files.is_empty(), "git lists no file in {}", root.display());
    for path in &files {
        let Ok(text) = fs::read_to_string(root.join(path)) else {
            continue; // Binary data, or deleted and not yet committed.
        };
        findings.extend(rules::check_file(path, &text));
    }
    for finding in &findings {
        let kind = if finding.is_note { "note" } else { "error" };
        println!("{kind}: {}: {}", finding.place, finding.message);
    }
    let n_errors = findings.iter().filter(|finding| !finding.is_note).count();
    if n_errors > 0 {
        bail!("tidy found {n_errors} errors in {} files", files.len());
    }
    println!("tidy: {} files in order, {} notes", files.len(), findings.len());
    Ok(())
}

/// The files that git knows or would add.
fn tracked_files(root: &Path) -> anyhow::Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot run git to list the files")?;
    ensure!(
        output.status.success(),
        "git ls-files failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    Ok(names.split_terminator('\0').map(str::to_owned).collect())
}
