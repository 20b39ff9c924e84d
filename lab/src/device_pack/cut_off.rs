//! A pack's run that is stopped before its end, and the files that it leaves.
//!
//! Machines that are lent for minutes stop a run that takes too long, and a server that is left running keeps the GPU's memory from the next
//! user. Invariant: such a run says so in its summary and in its archive, and leaves no process.

use std::{
    fs,
    path::Path,
    process::{Child, Command, ExitStatus},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use super::results::summary_of;

/// Longest time, in seconds, that a run may take to end after SIGTERM.
const END_S: u64 = 15;
/// Time between checks of a condition.
const PAUSE: Duration = Duration::from_millis(50);

/// Stops a run by SIGTERM once `is_time` returns true, and returns its summary, which the archive also has.
///
/// # Errors
/// A run that ends by itself or does not end, no summary, another one in the archive, or another exit code than 143.
pub(super) fn end(
    mut run: Child,
    results: &Path,
    limit: Duration,
    mut is_time: impl FnMut() -> bool,
) -> anyhow::Result<Value> {
    let begun = Instant::now();
    while !is_time() {
        if let Some(status) = run.try_wait().context("cannot wait for a run")? {
            bail!("the run that was to be cut off ended with {status}");
        }
        if begun.elapsed() > limit {
            // The first reason is reported.
            let _ = told_to_end(&mut run);
            bail!(
                "the run had not begun what was to be cut off after {} s",
                limit.as_secs()
            );
        }
        std::thread::sleep(PAUSE);
    }
    let status = told_to_end(&mut run)?;
    ensure!(
        status.code() == Some(143),
        "a run that was cut off by SIGTERM ends with {status}"
    );
    let summary = summary_of(results, &results.with_extension("unpacked"))?;
    ensure!(
        summary["cut_off"] == "SIGTERM",
        "the summary does not say that the run was cut off"
    );
    Ok(summary)
}

fn told_to_end(run: &mut Child) -> anyhow::Result<ExitStatus> {
    let status = Command::new("kill").arg(run.id().to_string()).status();
    ensure!(status.context("cannot run kill")?.success(), "kill failed");
    let begun = Instant::now();
    loop {
        if let Some(status) = run.try_wait().context("cannot wait for a run")? {
            return Ok(status);
        }
        if begun.elapsed() > Duration::from_secs(END_S) {
            run.kill().context("cannot end a run")?;
            bail!("the run did not end within {END_S} s of SIGTERM");
        }
        std::thread::sleep(PAUSE);
    }
}

/// Lists processes whose command line has this text, as `PID COMMAND`. Processes that ended and are not waited for have no command line.
///
/// # Errors
/// No list of processes.
pub(super) fn processes_with(text: &str) -> anyhow::Result<Vec<String>> {
    let listed = fs::read_dir("/proc").context("cannot list processes")?;
    let found = listed.filter_map(|entry| {
        let entry = entry.ok()?;
        let command = fs::read(entry.path().join("cmdline")).ok()?;
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let pid = entry.file_name().into_string().ok()?;
        (command.contains(text)).then(|| format!("{pid} {}", command.trim()))
    });
    Ok(found.collect())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Stdio;

    use super::*;
    use crate::device_pack::{archive, others_tools, write_scripts};

    /// Scripts in place of the programs: the self-test passes, and `lab` gives the answer for any other call.
    struct Pack {
        folder: tempfile::TempDir,
        run: Command,
    }

    impl Pack {
        fn new(lab: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let here = folder.path();
            for folder in ["bin", "fixtures"] {
                fs::create_dir(here.join(folder)).unwrap();
            }
            // Put together as the programs are.
            for (name, body) in [("tokenmill", "exit 0"), ("lab", lab)] {
                let [head, tail] = ["head", "tail"].map(|end| here.join(format!("bin/{name}.{end}")));
                fs::write(head, "#!/bin/sh\n").unwrap();
                fs::write(tail, format!("{body}\n")).unwrap();
            }
            fs::write(here.join("bin/kernels.z"), "# kernels\n").unwrap();
            archive(here).unwrap();
            write_scripts(here).unwrap();
            fs::write(here.join("pack.json"), "{\n  \"commit\": \"c\"\n}\n").unwrap();
            let mut run = Command::new("bash");
            run.arg(here.join("run.sh"))
                .arg(here.join("results"))
                .env("PATH", others_tools::write(&here.join("tools")).unwrap().path)
                .env_remove("WORK_FOLDER")
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            Self { folder, run }
        }

        fn work(&self) -> String {
            let work = self.folder.path().join("results.work/tokenmill-pack");
            work.to_str().unwrap().to_owned()
        }
    }

    /// Returns part, status and reason of each row.
    fn rows(summary: &Value) -> Vec<[&str; 3]> {
        let rows = summary["parts"].as_array().into_iter().flatten();
        rows.map(|row| ["part", "status", "reason"].map(|key| row[key].as_str().unwrap_or_default()))
            .collect()
    }

    #[test]
    fn a_run_that_is_cut_off_says_so_and_ends_what_it_started() {
        // Their children delay their end after SIGTERM, as a server does that ends its streams first.
        let mut pack = Pack::new("trap '' TERM; echo $1 >>${0%/*}/begun; sleep 60");
        let results = pack.folder.path().join("results");
        let begun = Path::new(&pack.work()).join("bin/begun");
        pack.run.env("PARTS", "self-test compare bench");
        let is_time = || fs::read_to_string(&begun).is_ok_and(|begun| begun.lines().count() == 2);
        let summary = end(
            pack.run.spawn().unwrap(),
            &results,
            Duration::from_secs(30),
            is_time,
        );
        let summary = summary.unwrap();
        let cut = "cut off by SIGTERM";
        assert_eq!(
            rows(&summary),
            [
                ["self-test", "passed", ""],
                ["compare", "late", cut],
                ["synth-llama-3-8b-Q4_K_M", "late", cut],
            ]
        );
        assert_eq!(processes_with(&pack.work()).unwrap(), [""; 0]);
    }

    #[test]
    fn each_model_that_was_not_made_has_its_own_reason() {
        let mut pack = Pack::new("[ $1 = synth ] && exit 1; exit 0");
        let status = (pack.run)
            .arg("45")
            .env("PARTS", "bench more baselines")
            .env("BENCH_PRESETS", "llama-3-8b:Q4_K_M llama-3-8b:Q8_0")
            .status();
        // The first model was tried with enough time.
        assert_eq!(status.unwrap().code(), Some(1));
        let text = fs::read_to_string(pack.folder.path().join("results/summary.json")).unwrap();
        let summary: Value = serde_json::from_str(&text).unwrap();
        let status_of = |part| {
            let rows = rows(&summary);
            let row = rows.iter().find(|row| row[0] == part);
            row.map(|row| row[1].to_owned()).unwrap_or_default()
        };
        let of_first = ["bench-llama-3-8b-Q4_K_M", "baseline-llama.cpp"].map(status_of);
        assert_eq!(of_first, ["absent"; 2]);
        let of_second = ["synth-llama-3-8b-Q8_0", "bench-llama-3-8b-Q8_0-more"].map(status_of);
        assert_eq!(of_second, ["late"; 2]);
    }
}
