//! The files that a call of the pack's script leaves: summary, archive and report, checked against its parts.
//!
//! The checks are tested on results with one fault each. Invariant: every part has a row, a file and a line of the report; a part that did not pass
//! says why.

use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::travel;
use crate::{device_report, measure::record};

/// Selects whether parts may be missing because there was not enough time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Late {
    Refused,
    Allowed,
}

/// Parts whose programs a machine may lack: torch's stand-in needs a python.
const MAY_BE_ABSENT: [&str; 1] = ["baseline-torch"];

/// Describes the files that a call should leave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    /// Its parts on a machine with everything in the pack, in the order in which the script runs them.
    pub(super) parts: &'static [&'static str],
    /// This many of them have enough time even if later ones may be late.
    pub(super) n_first: usize,
    pub(super) seconds: u64,
    pub(super) late: Late,
}

/// Reads the summary of a call, which the archive has too; unpacks the archive.
///
/// # Errors
/// A file that is not a summary, or an archive with another one.
pub(super) fn summary_of(results: &Path, unpacked: &Path) -> anyhow::Result<Value> {
    device_report::unpack(&results.join("results.tar.gz"), unpacked)?;
    let [summary, archived] =
        [results, unpacked].map(|folder| record::read::<Value>(&folder.join("summary.json")));
    let (summary, archived) = (summary?, archived.context("the archive has no summary")?);
    ensure!(archived == summary, "the archive has another summary");
    Ok(summary)
}

/// Checks the summary and the archive, which is unpacked into a separate folder; returns the summary.
///
/// # Errors
/// Fails if something is wrong with them, and on late parts, unless these are allowed.
pub(super) fn check(results: &Path, unpacked: &Path, expected: Expected) -> anyhow::Result<Value> {
    let Expected {
        parts,
        n_first,
        seconds,
        late,
    } = expected;
    let summary = summary_of(results, unpacked)?;
    let took = summary["seconds"]
        .as_u64()
        .context("the summary has no seconds")?;
    // A part is stopped at the deadline and has five seconds to end.
    ensure!(took <= seconds + 10, "it took {took} s of {seconds} s");
    for key in ["date", "commit", "kernels_sha256", "machine", "command"] {
        ensure!(
            summary[key].as_str().is_some_and(|text| !text.is_empty()),
            "the summary has no {key}"
        );
    }
    for &part in parts {
        let row = row_of(&summary, part).with_context(|| format!("{part} is not in the summary"))?;
        let (status, reason) = (&row["status"], row["reason"].as_str().unwrap_or_default());
        let is_right = status == "passed"
            || status == "absent" && MAY_BE_ABSENT.contains(&part) && !reason.is_empty()
            // The late parts are reported once, all of them together.
            || status == "late" && !reason.is_empty();
        ensure!(is_right, "{part}: {status}, {reason}");
    }
    let late_parts = late_parts(&summary);
    ensure!(
        late_parts.is_empty() || late == Late::Allowed,
        "{} were late with {seconds} s, so they are not rehearsed; give more seconds, or --allow-late",
        late_parts.join(", ")
    );
    // The first parts have enough time even if later ones may be late.
    for part in &parts[..n_first] {
        let status = row_of(&summary, part).map(|row| &row["status"]);
        ensure!(
            status.is_some_and(|status| status == "passed" || status == "absent"),
            "{part} did not run: {status:?}"
        );
    }
    // In order: late and absent parts have their places too.
    let ran: Vec<&str> = rows_of(&summary).filter_map(|row| row["part"].as_str()).collect();
    let place = |part: &str| ran.iter().position(|ran| *ran == part);
    let places: Vec<_> = parts
        .iter()
        .filter(|part| !part.starts_with("synth-"))
        .map(|part| place(part))
        .collect();
    ensure!(
        places.is_sorted(),
        "the parts ran in another order: {}",
        ran.join(", ")
    );
    travel::come_back(results)?;
    for row in rows_of(&summary) {
        let part = row["part"].as_str().unwrap_or_default();
        let written = unpacked.join(format!("{part}.json"));
        ensure!(written.is_file(), "the archive has nothing of {part}");
        record::read::<Value>(&written)?;
    }
    Ok(summary)
}

/// Checks that the tables have a row for each part that ran.
///
/// # Errors
/// A row or figures that are missing.
pub(super) fn check_tables(summary: &Value, tables: &str, is_predicted: bool) -> anyhow::Result<()> {
    for row in rows_of(summary) {
        let part = row["part"].as_str().unwrap_or_default();
        ensure!(
            tables.contains(&format!("| {part} | ")),
            "the report has no row of {part}"
        );
    }
    let is_passed = |part| row_of(summary, part).is_some_and(|row| row["status"] == "passed");
    for (part, cell) in [
        ("bench-tiny-llama-Q4_K_M", "| tiny-llama-Q4_K_M.gguf | "),
        (
            "bench-tiny-llama-Q4_K_M-sampled",
            "| tiny-llama-Q4_K_M.gguf, sampled | ",
        ),
        ("kernel-bench", "| o, 4 rows | "),
    ] {
        ensure!(
            !is_passed(part) || tables.contains(cell),
            "the report has no figures of {part}"
        );
    }
    for said in [
        "Predicted figures are those of the timing model",
        "of the kernels that were measured:",
    ] {
        ensure!(
            !is_predicted || !is_passed("kernel-bench") || tables.contains(said),
            "the report does not say what its predictions rest on"
        );
    }
    Ok(())
}

/// Lists parts that did not have enough time.
pub(super) fn late_parts(summary: &Value) -> Vec<&str> {
    let late = rows_of(summary).filter(|row| row["status"] == "late");
    late.filter_map(|row| row["part"].as_str()).collect()
}

pub(super) fn rows_of(summary: &Value) -> impl Iterator<Item = &Value> {
    summary["parts"].as_array().into_iter().flatten()
}

pub(super) fn row_of<'a>(summary: &'a Value, part: &str) -> Option<&'a Value> {
    rows_of(summary).find(|row| row["part"] == part)
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use serde_json::json;

    use super::*;

    const PARTS: [&str; 7] = [
        "self-test",
        "kernel-checks",
        "ways",
        "compare",
        "doctor",
        "baseline-torch",
        "synth-tiny-llama-Q4_K_M",
    ];

    fn check(results: &Path, seconds: u64, late: Late) -> anyhow::Result<Value> {
        let unpacked = tempfile::tempdir().unwrap();
        let expected = Expected {
            parts: &PARTS,
            n_first: 3,
            seconds,
            late,
        };
        super::check(results, unpacked.path(), expected)
    }

    /// Makes the files that a script leaves if all parts have a status.
    fn results(status: &str, reason: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let rows: Vec<Value> = (PARTS.iter())
            .map(|part| json!({ "part": part, "status": status, "reason": reason, "seconds": 1 }))
            .collect();
        let summary = json!({
            "date": "d", "commit": "c", "kernels_sha256": "k", "machine": "m", "command": "r",
            "seconds": 100, "parts": rows,
        });
        fs::write(folder.path().join("summary.json"), summary.to_string()).unwrap();
        pack(folder.path(), &summary, "");
        folder
    }

    /// Archives a file of each part but one, and the summary.
    fn pack(folder: &Path, summary: &Value, without: &str) {
        let parts = tempfile::tempdir().unwrap();
        for part in PARTS.iter().filter(|part| **part != without) {
            fs::write(parts.path().join(format!("{part}.json")), "{}").unwrap();
        }
        fs::write(parts.path().join("summary.json"), summary.to_string()).unwrap();
        let status = Command::new("tar")
            .arg("-czf")
            .arg(folder.join("results.tar.gz"))
            .arg("-C")
            .arg(parts.path())
            .arg(".")
            .status();
        assert!(status.unwrap().success());
    }

    /// Changes the summary and the archive's.
    fn change(folder: &Path, without: &str, change: impl FnOnce(&mut Vec<Value>)) {
        let path = folder.join("summary.json");
        let mut summary: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        change(summary["parts"].as_array_mut().unwrap());
        fs::write(&path, summary.to_string()).unwrap();
        pack(folder, &summary, without);
    }

    #[test]
    fn parts_pass_and_late_ones_are_allowed_on_request_alone() {
        let outcome_with = |status, reason, seconds, late| {
            let folder = results(status, reason);
            check(folder.path(), seconds, late)
                .map(|_| ())
                .map_err(|error| error.to_string())
        };
        let outcome = |status, reason, seconds| outcome_with(status, reason, seconds, Late::Refused);
        assert_eq!(outcome("passed", "", 120), Ok(()));
        let refusal = outcome("late", "left out", 120).unwrap_err();
        assert!(
            refusal.starts_with("self-test, kernel-checks,") && refusal.contains("--allow-late"),
            "{refusal}"
        );
        let refusal = outcome_with("late", "left out", 120, Late::Allowed).unwrap_err();
        assert!(refusal.starts_with("self-test did not run"), "{refusal}");
        let folder = results("late", "left out");
        change(folder.path(), "", |rows| {
            for row in &mut rows[..3] {
                (row["status"], row["reason"]) = (json!("passed"), json!(""));
            }
        });
        assert!(check(folder.path(), 120, Late::Allowed).is_ok());
        assert_eq!(
            outcome_with("late", "", 120, Late::Allowed),
            Err("self-test: \"late\", ".to_owned())
        );
        assert_eq!(
            outcome("absent", "no tool", 120),
            Err("self-test: \"absent\", no tool".to_owned())
        );
        assert_eq!(
            outcome("failed", "exit code 1", 120),
            Err("self-test: \"failed\", exit code 1".to_owned())
        );
        assert_eq!(outcome("passed", "", 60), Err("it took 100 s of 60 s".to_owned()));
    }

    #[test]
    fn tools_of_others_may_be_absent_and_parts_of_the_pack_may_not() {
        let folder = results("passed", "");
        change(folder.path(), "", |rows| {
            for row in rows.iter_mut() {
                if MAY_BE_ABSENT.iter().any(|part| row["part"] == *part) {
                    (row["status"], row["reason"]) = (json!("absent"), json!("not installed"));
                }
            }
        });
        assert!(check(folder.path(), 120, Late::Refused).is_ok());
    }

    #[test]
    fn another_order_of_the_parts_is_noticed() {
        let folder = results("passed", "");
        change(folder.path(), "", |rows| rows.swap(1, 4));
        let error = check(folder.path(), 120, Late::Refused).unwrap_err().to_string();
        assert!(
            error.starts_with("the parts ran in another order: self-test, doctor,"),
            "{error}"
        );
    }

    #[test]
    fn an_archive_without_a_parts_file_is_noticed() {
        let folder = results("passed", "");
        change(folder.path(), "doctor", |_| ());
        let error = check(folder.path(), 120, Late::Refused).unwrap_err().to_string();
        assert_eq!(error, "the archive has nothing of doctor");
    }

    #[test]
    fn more_files_than_a_machine_gives_back_are_noticed() {
        let folder = results("passed", "");
        for index in 0..8 {
            fs::write(folder.path().join(index.to_string()), "").unwrap();
        }
        let error = check(folder.path(), 120, Late::Refused).unwrap_err().to_string();
        assert!(error.contains("8 come back"), "{error}");
    }
}
