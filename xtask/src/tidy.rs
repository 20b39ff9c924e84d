//! `tidy`: turns taste and architecture into checks that fail.
//!
//! The rules about one file are in `rules`, those about the imports of crates in `layers` and of modules in `modules`, those about
//! names in all files in `workspace`, the one about tests that nothing runs in `unrun`; `source` distinguishes code from comments.
//! The test at the end runs them all. Invariant: a finding names file and line and states the rule.

mod layers;
mod modules;
mod rules;
mod source;
mod unrun;
mod workspace;

use std::{fs, path::Path, process::Command};

use anyhow::{Context, bail, ensure};

use self::source::Source;

/// Returns the options of this command.
pub fn command() -> clap::Command {
    clap::Command::new("tidy")
        .about("Checks module docs, layering, unsafe islands, forbidden words and file sizes")
}

/// A finding of tidy about one place.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    /// The file, relative to the workspace root, with a line number if there is one.
    place: String,
    message: String,
    /// Whether it is only a note.
    is_note: bool,
}

impl Finding {
    fn error(place: String, message: String) -> Self {
        Self {
            place,
            message,
            is_note: false,
        }
    }
}

/// A Rust file of the workspace.
struct RustFile {
    /// Its path, relative to the workspace root.
    path: String,
    source: Source,
    /// All of its code except tests at the end, without comments and the contents of strings.
    code: String,
}

impl RustFile {
    fn parse(path: String, text: &str) -> Self {
        let source = Source::parse(text);
        let lines = source.product_lines().map(|(_, line)| line.code.as_str());
        let code = lines.collect::<Vec<_>>().join("\n");
        Self { path, source, code }
    }

    /// Returns whether it is part of a crate's library or program, and not of its tests.
    fn is_product(&self) -> bool {
        let is_test = self.path.ends_with("/tests.rs") || self.path.contains("/tests/");
        self.path.starts_with("crates/") && self.path.contains("/src/") && !is_test
    }
}

/// Checks the whole workspace.
///
/// # Errors
/// When there is a finding other than a note; all findings are printed first.
pub fn run(_: &clap::ArgMatches) -> anyhow::Result<()> {
    report()
}

/// Checks the whole workspace and prints the findings.
pub(crate) fn report() -> anyhow::Result<()> {
    let (n_files, findings) = check(crate::workspace_root())?;
    for finding in &findings {
        let kind = if finding.is_note { "note" } else { "error" };
        println!("{kind}: {}: {}", finding.place, finding.message);
    }
    let n_errors = findings.iter().filter(|finding| !finding.is_note).count();
    if n_errors > 0 {
        bail!("tidy found {n_errors} errors in {n_files} files");
    }
    println!("tidy: {n_files} files in order, {} notes", findings.len());
    Ok(())
}

/// Returns the number of files, and the findings.
fn check(root: &Path) -> anyhow::Result<(usize, Vec<Finding>)> {
    let mut findings = layers::check()?;
    let paths = tracked_files(root)?;
    ensure!(!paths.is_empty(), "git lists no file in {}", root.display());
    let n_files = paths.len();
    let mut rust_files = Vec::new();
    let mut manifests = Vec::new();
    for path in paths {
        let Ok(text) = fs::read_to_string(root.join(&path)) else {
            continue; // Binary data, or deleted and not yet committed.
        };
        findings.extend(rules::check_file(&path, &text));
        if rules::has_extension(&path, "rs") {
            rust_files.push(RustFile::parse(path, &text));
        } else if path.ends_with("Cargo.toml") {
            manifests.push((path, text));
        }
    }
    findings.extend(modules::check(&rust_files));
    findings.extend(workspace::check(&rust_files));
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    findings.extend(unrun::check(&manifests, &rust_files, read));
    Ok((n_files, findings))
}

/// Lists the files that git knows or would add.
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

#[cfg(test)]
mod tests {
    #[test]
    fn the_workspace_is_tidy() {
        let root = crate::workspace_root();
        if !root.join(".git").exists() {
            return; // Without git it cannot be told which files belong to the workspace.
        }
        let (_, findings) = super::check(root).unwrap();
        let errors: Vec<String> = findings
            .iter()
            .filter(|finding| !finding.is_note)
            .map(|finding| format!("{}: {}", finding.place, finding.message))
            .collect();
        assert!(
            errors.is_empty(),
            "{} errors:\n{}",
            errors.len(),
            errors.join("\n")
        );
    }
}
