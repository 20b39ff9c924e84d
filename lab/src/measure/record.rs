//! Records: files of JSON, and the machine and the commit that figures belong to.
//!
//! Invariant: an error names the file.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokenmill_quant::CpuFeatures;

use crate::workspace_root;

/// Reads a file of JSON.
///
/// # Errors
/// A file that cannot be read, or that is not such JSON.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} has another form", path.display()))
}

/// Writes a file of JSON, for people too.
///
/// # Errors
/// A file that cannot be written.
pub(crate) fn write(path: &Path, figures: &impl Serialize) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(figures)?;
    text.push('\n');
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes the file that a command's `--json` names, if it does.
///
/// # Errors
/// A file that cannot be written.
pub(crate) fn write_asked(path: Option<&Path>, figures: &impl Serialize) -> anyhow::Result<()> {
    path.map_or(Ok(()), |path| write(path, figures))
}

/// Makes a folder without contents.
///
/// # Errors
/// A folder that cannot be emptied or made.
pub(crate) fn empty_folder(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}

/// Lists the files in a folder and below it.
///
/// # Errors
/// A folder that cannot be listed.
pub(crate) fn files_below(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files.extend(files_below(&entry.path())?);
        } else {
            files.push(entry.path());
        }
    }
    Ok(files)
}

/// The machine that figures belong to.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) n_processors: usize,
    /// The instruction sets in use.
    pub(crate) instruction_sets: String,
    pub(crate) system: String,
}

impl Machine {
    /// Describes this machine.
    ///
    /// # Errors
    /// No count of processors, or no `uname`.
    pub(crate) fn this() -> anyhow::Result<Self> {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or("unknown processor", |(_, name)| name.trim());
        Ok(Self {
            cpu: cpu.to_owned(),
            n_processors: thread::available_parallelism()?.get(),
            instruction_sets: CpuFeatures::detect().to_string(),
            system: output_of("uname", &["-sm"])?,
        })
    }
}

/// Returns so many digits of the sources' commit, and whether files below `paths` differ from it; any file if there is no path.
///
/// # Errors
/// No git, or no repository.
pub(crate) fn commit(n_digits: usize, paths: &[&str]) -> anyhow::Result<String> {
    let commit = output_of("git", &["rev-parse", &format!("--short={n_digits}"), "HEAD"])?;
    let changes = output_of("git", &[&["status", "--porcelain", "--"], paths].concat())?;
    Ok(if changes.is_empty() {
        commit
    } else {
        commit + " with changes"
    })
}

/// Runs a program in the root of the workspace and returns its output, without surrounding space.
///
/// # Errors
/// A program that cannot be started or that fails.
pub(crate) fn output_of(program: &str, options: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program)
        .args(options)
        .current_dir(workspace_root())
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        bail!("{program} ended with {}", output.status);
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
