//! [`Record`]: the last complete run of each step by path, in `.ci/last-whole`.
//!
//! ```text
//! 2026-11-29 14:05 be09d41d4f0c2f... Windows
//! ```
//!
//! The date is that of the commit on which the step ran. A developer who runs `cargo xtask ci --record` commits the file: a CI
//! machine cannot. Everything is decided by commits and their dates, never by the clock: the same commit always has the same
//! steps. Invariant: a step that has run once is skipped only if none of its paths differs from the recorded commit, which is at
//! most a day older. A step joins with its first recorded run, which shows that it can pass; until then each run reports it as
//! skipped.

use std::{collections::BTreeMap, fmt::Write as _, fs, process::Command};

use anyhow::{Context, ensure};

/// The file.
const PATH: &str = ".ci/last-whole";
const HEAD: &str = "\
# When each step by path last ran whole, and on which commit. Written by `cargo xtask ci --record`; commit it.
# A step runs where one of its paths differs from that commit, and where the commit at hand is a day younger.
";
/// Longest time for which a step may be skipped.
const DAY_S: i64 = 24 * 60 * 60;

/// Says whether a step runs, and why or why not.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Due {
    Now(String),
    Not(String),
}

/// The last run of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Last {
    /// Day and time, as git writes them.
    date: String,
    commit: String,
}

/// All steps that ever ran, by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    steps: BTreeMap<String, Last>,
    /// The steps of this run.
    ran: Vec<&'static str>,
}

impl Record {
    /// Reads the file; without a file no step has run.
    ///
    /// # Errors
    /// Fails on a line of another form.
    pub(super) fn read() -> anyhow::Result<Self> {
        match fs::read_to_string(crate::workspace_root().join(PATH)) {
            Ok(text) => Self::parse(&text),
            Err(_) => Ok(Self::default()),
        }
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut record = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            let [day, time, commit, step] = words[..] else {
                anyhow::bail!("{PATH}: `{line}` is no date, time, commit and step");
            };
            let last = Last {
                date: format!("{day} {time}"),
                commit: commit.to_owned(),
            };
            record.steps.insert(step.to_owned(), last);
        }
        Ok(record)
    }

    fn render(&self) -> String {
        let mut text = HEAD.to_owned();
        for (step, Last { date, commit }) in &self.steps {
            let _ = writeln!(text, "{date} {commit} {step}");
        }
        text
    }

    /// Returns the day and time of a step's last run; they sort by time.
    pub(super) fn last_ran(&self, step: &str) -> Option<&str> {
        self.steps.get(step).map(|last| last.date.as_str())
    }

    /// Decides about a step.
    ///
    /// # Errors
    /// If git cannot be run.
    pub(super) fn due(&self, step: &str, paths: &[&str]) -> anyhow::Result<Due> {
        let Some(Last { date, commit }) = self.steps.get(step) else {
            return Ok(Due::Not(format!(
                "no run of it is recorded; `cargo xtask ci --install --only '{step}' --record` makes the first one"
            )));
        };
        let (Some(then), Some(now)) = (seconds(commit)?, seconds("HEAD")?) else {
            return Ok(Due::Now(format!(
                "{commit}, on which it last ran, is not in this clone"
            )));
        };
        if now - then > DAY_S {
            return Ok(Due::Now(format!(
                "it last ran whole on {date}, more than a day before this commit"
            )));
        }
        let differing = git(&[&["diff", "--name-only", commit, "--"], paths].concat())?;
        let unknown = git(&[&["ls-files", "--others", "--exclude-standard", "--"], paths].concat())?;
        let changed = differing.or(unknown).unwrap_or_default();
        let short = commit.get(..8).unwrap_or(commit);
        Ok(match changed.lines().next() {
            Some(path) => Due::Now(format!("{path} differs from {short}")),
            None => Due::Not(format!(
                "none of its paths changed since {date} ({short}), when it last ran"
            )),
        })
    }

    /// Notes that a step ran.
    pub(super) fn ran(&mut self, step: &'static str) {
        self.ran.push(step);
    }

    /// Writes the file, with the present commit for the steps that ran.
    ///
    /// # Errors
    /// If git or the disk fails.
    pub(super) fn write(&mut self) -> anyhow::Result<()> {
        let said = git(&[
            "show",
            "--no-patch",
            "--format=%cd %H",
            "--date=format:%Y-%m-%d %H:%M",
        ])?;
        let said = said.context("git knows no commit")?;
        let (date, commit) = said.rsplit_once(' ').context("git says no date")?;
        for step in &self.ran {
            let last = Last {
                date: date.to_owned(),
                commit: commit.to_owned(),
            };
            self.steps.insert((*step).to_owned(), last);
        }
        let path = crate::workspace_root().join(PATH);
        fs::write(&path, self.render()).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{PATH}: {} steps ran on {commit}", self.ran.len());
        Ok(())
    }
}

/// Refuses a work tree that differs from its commit: a run there proves nothing about the commit.
///
/// # Errors
/// Returns an error that lists the differences.
pub(super) fn refuse_changes() -> anyhow::Result<()> {
    let changes = git(&["status", "--porcelain", "--untracked-files=all"])?.unwrap_or_default();
    ensure!(
        changes.is_empty(),
        "--record wants a work tree without changes:\n{changes}"
    );
    Ok(())
}

/// Returns the time of a commit, in seconds; `None` if this clone does not have it.
fn seconds(commit: &str) -> anyhow::Result<Option<i64>> {
    let said = git(&["show", "--no-patch", "--format=%ct", commit])?;
    Ok(said.and_then(|text| text.parse().ok()))
}

/// Returns the output of git without the last line break; `None` if there is none or git fails.
fn git(args: &[&str]) -> anyhow::Result<Option<String>> {
    let output = Command::new("git")
        .args(args)
        .current_dir(crate::workspace_root())
        .output()
        .context("cannot run git")?;
    let text = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
    Ok((output.status.success() && !text.is_empty()).then_some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(commit: &str) -> Record {
        Record::parse(&format!("{HEAD}2026-11-29 14:05 {commit} some step\n")).unwrap()
    }

    #[test]
    fn what_is_written_is_read_again() {
        let known = record("0123abcd");
        assert_eq!(known.last_ran("some step"), Some("2026-11-29 14:05"));
        assert_eq!(Record::parse(&known.render()).unwrap(), known);
        assert!(Record::parse("2026-11-29 14:05\n").is_err());
    }

    #[test]
    fn a_step_is_due_where_its_last_run_is_old_or_a_path_changed() {
        if seconds("HEAD").unwrap().is_none() {
            return; // Without git there is nothing to compare with.
        }
        let due = |record: &Record, step, paths: &[&str]| record.due(step, paths).unwrap();
        let unknown = record("0123456789012345678901234567890123456789");
        assert!(matches!(due(&unknown, "some step", &["xtask"]), Due::Now(_)));
        let here = record(&git(&["rev-parse", "HEAD"]).unwrap().unwrap());
        // A step joins with its first run, which shows that it can pass.
        assert!(matches!(due(&here, "another step", &["xtask"]), Due::Not(_)));
        assert!(matches!(due(&here, "some step", &["no/such/path"]), Due::Not(_)));
        // The very first commit is older than a day, or all files came after it.
        let first = git(&["rev-list", "--max-parents=0", "HEAD"]).unwrap().unwrap();
        let first = record(first.lines().next().unwrap());
        assert!(matches!(due(&first, "some step", &["xtask"]), Due::Now(_)));
    }
}
