//! The rehearsal of a device pack: all of it, over the simulated driver.
//!
//! Separate from making the folder. A GPU is met for minutes, so the script, the programs' options, the archive and the report are tried
//! together before, by the very files that are packed; other programs have stand-ins. Then a run is cut off while its server works. Invariant: every
//! part passes, but for torch where there is no python; a part that the seconds did not suffice for is an error unless late parts are allowed. What
//! is rehearsed is called so, and no time of it is reported.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, ensure};
use serde_json::Value;
use tokenmill_cuda_exec::{
    Cubins,
    modules::{self, Entry, Target},
};
use tokenmill_gguf::TensorType;

use super::{cut_off, others_tools};
use crate::device_report::{self, Figures};

/// What the program finds as the driver, and what it is called among the binaries.
const DRIVER: [&str; 2] = ["libcuda.so.1", "libtokenmill_sim_driver.so"];

/// What makes the parts short enough for an interpreter.
const SHORT: [(&str, &str); 13] = [
    ("BENCH_PRESETS", "tiny-llama:Q4_K_M tiny-llama:Q8_0"),
    ("BENCH_ARGS", "--n-prompt 16 --n-gen 3 --batches 1,2"),
    ("MORE_ARGS", "--n-prompt 24 --n-gen 3 --batches 1,4"),
    ("PREFILL_ARGS", "--n-prompt 24 --n-gen 2 --batches 1"),
    ("DEPTH_8K_ARGS", "--n-prompt 32 --n-gen 2 --batches 1,2 --once"),
    ("DEPTH_32K_ARGS", "--n-prompt 48 --n-gen 2 --batches 1 --once"),
    (
        "SAMPLED_ARGS",
        "--n-prompt 8 --n-gen 3 --batches 1,2 --sampled --once",
    ),
    ("SERVE_ARGS", "-c 256 --parallel 2"),
    (
        "LOAD_ARGS",
        "--concurrency 2 --requests 2 --warmup 0 --prompt-words 2 --max-tokens 2 --ignore-eos",
    ),
    ("PREDICTIONS", "h200"),
    ("KERNEL_ARGS", "--slice 512 --filter 4"),
    ("PARITY_ARGS", "--filter llama/Q4_K_M"),
    ("CONFORMANCE_ARGS", "--filter copied_pages"),
];

/// Whether parts may be left out because the seconds did not suffice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Late {
    Refused,
    Allowed,
}

/// What keeps the server of the run that is cut off busy until then.
const LONG_LOAD: &str =
    "--concurrency 2 --requests 1000 --warmup 0 --prompt-words 2 --max-tokens 100 --ignore-eos";
/// What the run that is cut off may take until its server works.
const LONG_LOAD_LIMIT: Duration = Duration::from_mins(1);

/// Parts that a machine need not have the programs for: torch's stand-in takes a python.
const MAY_BE_ABSENT: [&str; 1] = ["baseline-torch"];

/// Parts that run on any machine which has all that the pack has, in the order in which the script runs them.
const PARTS: [&str; 25] = [
    "self-test",
    "compare",
    "parity",
    "conformance",
    "cubins",
    "bench-tiny-llama-Q4_K_M",
    "kernel-bench",
    "bench-tiny-llama-Q4_K_M-pp4096",
    "bench-tiny-llama-Q4_K_M-depth8k",
    "bench-tiny-llama-Q4_K_M-depth32k",
    "bench-tiny-llama-Q4_K_M-sampled",
    "serving",
    "bench-tiny-llama-Q4_K_M-batches",
    "bench-tiny-llama-Q8_0",
    "doctor",
    "conformance-cpu",
    "parity-cpu",
    "baseline-llama.cpp",
    "baseline-torch",
    "baseline-ncu",
    "sanitizer-memcheck",
    "sanitizer-racecheck",
    "sanitizer-initcheck",
    "sanitizer-synccheck",
    "synth-tiny-llama-Q4_K_M",
];
/// The most files that some machines give back.
const MOST_FILES: usize = 8;

/// Runs the pack in `pack` with the driver that was built with `binaries`, checks its results and prints which parts were late. Then cuts a run off.
///
/// # Errors
/// What is wrong with them; a late part, unless those are allowed.
pub(super) fn run(pack: &Path, binaries: &Path, seconds: u64, late: Late) -> anyhow::Result<()> {
    // Next to the pack, for whoever wants to look at it.
    let folder = pack.with_extension("rehearsal");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    let driver = driver_folder(&folder, binaries)?;
    let [results, work] = ["results", "work"].map(|name| folder.join(name));
    let (cubins, tools) = (ptx_as_cubins(&folder)?, others_tools::write(&folder)?);
    let script = |results: &Path| {
        let mut command = Command::new(pack.join("run.sh"));
        command
            .arg(results)
            .arg(seconds.to_string())
            .envs(SHORT)
            .env("WORK_FOLDER", &work)
            .env("CUBINS", &cubins)
            .env("LD_LIBRARY_PATH", &driver)
            .env("PATH", &tools.path)
            .env("PYTHONPATH", &tools.python_path)
            .env_remove("TOKENMILL_SIM_DRIVER")
            .env_remove("CUDA_VISIBLE_DEVICES");
        command
    };
    let status = script(&results)
        .status()
        .context("cannot run the pack's script")?;
    ensure!(status.success(), "the pack's script ends with {status}");
    let summary = check(&results, seconds, late)?;
    let tables = device_report::tables(&results.join("unpacked"), Figures::Rehearsed)?;
    let is_predicted = pack.join("predictions-h200.json").is_file();
    check_tables(&summary, &tables, is_predicted)?;
    let results = folder.join("cut-off");
    let mut serving = script(&results);
    serving.env("PARTS", "serving").env("LOAD_ARGS", LONG_LOAD);
    rehearse_cut_off(serving, &results, &work.join("tokenmill-pack"))?;
    println!("device-pack: rehearsed on the simulated driver, nothing was measured");
    let late = late_parts(&summary);
    if !late.is_empty() {
        println!(
            "device-pack: these were late and are not rehearsed: {}",
            late.join(", ")
        );
    }
    Ok(())
}

/// Cuts a run off whose server works.
fn rehearse_cut_off(mut serving: Command, results: &Path, work: &Path) -> anyhow::Result<()> {
    // The run before has left one.
    let log = work.join("parts/serving.log");
    if log.exists() {
        fs::remove_file(&log).with_context(|| format!("cannot remove {}", log.display()))?;
    }
    let run = serving.spawn().context("cannot run the pack's script")?;
    let is_listening = || fs::read_to_string(&log).is_ok_and(|log| log.contains("listening"));
    let summary = cut_off::end(run, results, LONG_LOAD_LIMIT, is_listening)?;
    let row = row_of(&summary, "serving").context("what was cut off is not in the summary")?;
    ensure!(
        row["status"] == "late" && row["reason"] == "cut off by SIGTERM",
        "what was cut off is {}, {}",
        row["status"],
        row["reason"]
    );
    let left = cut_off::processes_with(&work.display().to_string())?;
    ensure!(
        left.is_empty(),
        "a run that was cut off left these: {}",
        left.join("; ")
    );
    Ok(())
}

/// An archive of what stands for code compiled ahead: a simulated GPU runs that of no real one. It has the modules of the self-test's model.
fn ptx_as_cubins(folder: &Path) -> anyhow::Result<PathBuf> {
    let mut archive = Cubins::header();
    for module in modules::all() {
        let is_needed = module.types.is_empty() || module.types == [TensorType::Q8_0];
        if module.target == Target::All && is_needed {
            let name = module.name.as_str();
            let ptx = modules::ptx(name).with_context(|| format!("the archive has no PTX of {name}"))?;
            let code = ["\x7fELF", ptx.as_str()].concat();
            Entry::append(&mut archive, &format!("sm_80/{name}"), code.as_bytes());
        }
    }
    let path = folder.join("cubins.z");
    fs::write(&path, archive).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// A folder with the simulated driver under the real one's name.
fn driver_folder(folder: &Path, binaries: &Path) -> anyhow::Result<PathBuf> {
    let [name, file] = DRIVER;
    let built = [binaries.join("deps").join(file), binaries.join(file)];
    let built = built
        .iter()
        .find(|path| path.is_file())
        .with_context(|| format!("{} was not built", built[0].display()))?;
    let driver = folder.join("driver");
    fs::create_dir_all(&driver).with_context(|| format!("cannot create {}", driver.display()))?;
    fs::copy(built, driver.join(name)).with_context(|| format!("cannot copy {}", built.display()))?;
    Ok(driver)
}

/// Checks the summary and the archive; gives the summary.
fn check(results: &Path, seconds: u64, late: Late) -> anyhow::Result<Value> {
    let path = results.join("summary.json");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let summary: Value = serde_json::from_str(&text).context("the summary is no JSON")?;
    let took = summary["seconds"]
        .as_u64()
        .context("the summary has no seconds")?;
    // A part is told to end at the deadline and has five seconds for it.
    ensure!(took <= seconds + 10, "it took {took} s of {seconds} s");
    for key in ["date", "commit", "kernels_sha256", "machine", "command"] {
        ensure!(
            summary[key].as_str().is_some_and(|text| !text.is_empty()),
            "the summary has no {key}"
        );
    }
    for part in PARTS {
        let row = row_of(&summary, part).with_context(|| format!("{part} is not in the summary"))?;
        let (status, reason) = (&row["status"], row["reason"].as_str().unwrap_or_default());
        let is_right = status == "passed"
            || status == "absent" && MAY_BE_ABSENT.contains(&part) && !reason.is_empty()
            // Which were late is said once, all of them together.
            || status == "late" && !reason.is_empty();
        ensure!(is_right, "{part}: {status}, {reason}");
    }
    let late_parts = late_parts(&summary);
    ensure!(
        late_parts.is_empty() || late == Late::Allowed,
        "{} were late with {seconds} s, so they are not rehearsed; give more seconds, or --allow-late",
        late_parts.join(", ")
    );
    // The first parts have time even where later ones are allowed to be late.
    for part in &PARTS[..5] {
        let status = row_of(&summary, part).map(|row| &row["status"]);
        ensure!(
            status.is_some_and(|status| status == "passed" || status == "absent"),
            "{part} did not run: {status:?}"
        );
    }
    // In order: what was late or absent has its place too.
    let ran: Vec<&str> = rows_of(&summary).filter_map(|row| row["part"].as_str()).collect();
    let place = |part: &str| ran.iter().position(|ran| *ran == part);
    let places: Vec<_> = PARTS
        .iter()
        .filter(|part| !part.starts_with("synth-"))
        .map(|part| place(part))
        .collect();
    ensure!(
        places.is_sorted(),
        "the parts ran in another order: {}",
        ran.join(", ")
    );
    let n_files = fs::read_dir(results)?.count();
    ensure!(
        n_files <= MOST_FILES,
        "the results are {n_files} files, at most {MOST_FILES} are wanted"
    );
    let unpacked = results.join("unpacked");
    device_report::unpack(&results.join("results.tar.gz"), &unpacked)?;
    let archived = fs::read_to_string(unpacked.join("summary.json")).context("the archive has no summary")?;
    ensure!(archived == text, "the archive has another summary");
    for row in rows_of(&summary) {
        let part = row["part"].as_str().unwrap_or_default();
        let text = fs::read_to_string(unpacked.join(format!("{part}.json")))
            .with_context(|| format!("the archive has nothing of {part}"))?;
        serde_json::from_str::<Value>(&text).with_context(|| format!("what {part} wrote is no JSON"))?;
    }
    Ok(summary)
}

/// Checks that the tables have a row for all that ran.
fn check_tables(summary: &Value, tables: &str, is_predicted: bool) -> anyhow::Result<()> {
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

/// Parts that the seconds did not suffice for.
fn late_parts(summary: &Value) -> Vec<&str> {
    let late = rows_of(summary).filter(|row| row["status"] == "late");
    late.filter_map(|row| row["part"].as_str()).collect()
}

fn rows_of(summary: &Value) -> impl Iterator<Item = &Value> {
    summary["parts"].as_array().into_iter().flatten()
}

fn row_of<'a>(summary: &'a Value, part: &str) -> Option<&'a Value> {
    rows_of(summary).find(|row| row["part"] == part)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What a script leaves whose parts all have a status.
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
            refusal.starts_with("self-test, compare,") && refusal.contains("--allow-late"),
            "{refusal}"
        );
        let refusal = outcome_with("late", "left out", 120, Late::Allowed).unwrap_err();
        assert!(refusal.starts_with("self-test did not run"), "{refusal}");
        let folder = results("late", "left out");
        change(folder.path(), "", |rows| {
            for row in &mut rows[..5] {
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
        change(folder.path(), "", |rows| rows.swap(1, 6));
        let error = check(folder.path(), 120, Late::Refused).unwrap_err().to_string();
        assert!(
            error.starts_with("the parts ran in another order: self-test, kernel-bench,"),
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
        for index in 0..MOST_FILES {
            fs::write(folder.path().join(index.to_string()), "").unwrap();
        }
        let error = check(folder.path(), 120, Late::Refused).unwrap_err().to_string();
        assert!(error.contains("at most 8"), "{error}");
    }
}
