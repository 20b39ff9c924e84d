//! [`run_all`]: all test programs, the documentation's tests and the end-to-end scripts, two at a time.
//!
//! `cargo test` runs one program after the other, and a core is idle while one long test ends a program, or while a program waits for a server.
//! Each program runs as under cargo, in the folder of its package. Its output goes to a file, and is printed when the program ends. A failed
//! program stops no other.

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, ExitStatus},
    sync::{Mutex, PoisonError},
    thread,
    time::Instant,
};

use anyhow::{Context, ensure};

use super::binaries::TestBinary;

/// Number of jobs at a time. Programs run their own tests in as many threads as there are cores.
const N_WORKERS: usize = 2;

/// The programs that run longest, which begin first: one of them at the end would run alone. Cargo lists them by the names of their crates, and
/// those of `text` almost last.
const LONGEST: [&str; 9] = [
    "crates/testkit/tests/all/main.rs",
    "crates/cli/tests/all/main.rs",
    "crates/cuda-exec/tests/all/main.rs",
    "crates/placed/tests/all/main.rs",
    "crates/text/src/lib.rs",
    "crates/server/tests/all/main.rs",
    "crates/tokenmill/tests/all/main.rs",
    "crates/text/tests/all/main.rs",
    "crates/convert/tests/all/main.rs",
];

/// The program that reports what the others compared, which runs after them.
const REPORT: &str = "tests/comparisons/report.rs";

/// A part of the tests.
struct Job {
    name: String,
    command: Command,
}

/// Runs the test programs that cargo has built, the tests of the documentation, and scripts.
///
/// # Errors
/// Fails if a job fails, and names all that did.
pub(super) fn run_all(mut programs: Vec<TestBinary>, scripts: &Path) -> anyhow::Result<()> {
    let place = |program: &TestBinary| {
        let at = LONGEST
            .iter()
            .position(|source| program.source == Path::new(source));
        at.unwrap_or(LONGEST.len())
    };
    programs.sort_by_key(place);
    let (reports, programs): (Vec<_>, Vec<_>) = programs
        .iter()
        .partition(|program| program.source == Path::new(REPORT));
    let mut jobs: Vec<Job> = programs.into_iter().map(of_program).collect();
    // Both are long as well. The scripts mostly wait.
    jobs.insert(jobs.len().min(2), of_scripts(scripts));
    jobs.insert(jobs.len().min(LONGEST.len() + 1), of_documentation());
    let logs = crate::target_dir().join("tmp/ci");
    let mut failed = run(jobs, N_WORKERS, &logs, |text| println!("{text}"))?;
    ensure!(!reports.is_empty(), "cargo built no {REPORT}");
    let reports = reports.into_iter().map(of_program).collect();
    failed.extend(run(reports, 1, &logs.join("report"), |text| println!("{text}"))?);
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

fn of_program(program: &TestBinary) -> Job {
    let mut command = Command::new(&program.path);
    command.current_dir(program.folder());
    Job {
        name: program.source.display().to_string(),
        command,
    }
}

fn of_documentation() -> Job {
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["test", "--workspace", "--locked", "--doc", "--no-fail-fast"])
        .current_dir(crate::workspace_root());
    Job {
        name: "documentation".to_owned(),
        command,
    }
}

fn of_scripts(script: &Path) -> Job {
    let mut command = Command::new(script);
    command.arg("core").current_dir(crate::workspace_root());
    Job {
        name: "end to end".to_owned(),
        command,
    }
}

/// Runs jobs in their order, `n_workers` at a time, with their output in files in `logs`, and hands the beginning and the output of each to
/// `say`. Returns the failed jobs, with the reason.
///
/// # Errors
/// Fails if the folder of the files cannot be made.
fn run(
    jobs: Vec<Job>,
    n_workers: usize,
    logs: &Path,
    say: impl Fn(String) + Sync,
) -> anyhow::Result<Vec<String>> {
    fs::create_dir_all(logs).with_context(|| format!("cannot make {}", logs.display()))?;
    let queue = Mutex::new(jobs.into_iter().enumerate());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    // Also keeps the texts of two jobs apart.
    let failed = Mutex::new(Vec::new());
    let work = || {
        while let Some((job_idx, Job { name, command })) = next() {
            let log = logs.join(format!("{job_idx}.log"));
            {
                let _apart = failed.lock().unwrap_or_else(PoisonError::into_inner);
                say(format!("== {name} begins"));
            }
            let began = Instant::now();
            let outcome = run_into(command, &log);
            let seconds = began.elapsed().as_secs_f64();
            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
            let printed = fs::read(&log).unwrap_or_default();
            let printed = String::from_utf8_lossy(&printed);
            let reason = match outcome {
                Ok(status) if status.success() => None,
                Ok(status) => Some(status.to_string()),
                Err(error) => Some(format!("{error:#}")),
            };
            let ended = reason.as_deref().unwrap_or("passed");
            say(format!(
                "== {name}\n{}\n== {name}: {seconds:.0} s, {ended}",
                printed.trim_end()
            ));
            failed.extend(reason.map(|reason| format!("{name} ({reason})")));
        }
    };
    thread::scope(|scope| {
        for _ in 0..n_workers {
            scope.spawn(work);
        }
    });
    Ok(failed.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Runs a command whose output goes to a file. A pipe would stay open as long as any process that the command leaves behind.
fn run_into(mut command: Command, log: &Path) -> anyhow::Result<ExitStatus> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    // Incremental builds are builds of their own: the scripts would compile the program again.
    command
        .env("CARGO_INCREMENTAL", "0")
        .stdout(file.try_clone()?)
        .stderr(file)
        .status()
        .context("it cannot be started")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_with_a_place_are_there() {
        for source in LONGEST.into_iter().chain([REPORT]) {
            assert!(crate::workspace_root().join(source).is_file(), "{source}");
        }
    }

    #[test]
    fn all_jobs_run_and_all_that_fail_are_named() {
        let job = |name: &str, program: &str, argument: &str| {
            let mut command = Command::new(program);
            command.arg(argument);
            Job {
                name: name.to_owned(),
                command,
            }
        };
        let cargo = env!("CARGO");
        let jobs = vec![
            job("first", cargo, "no-such-command"),
            job("second", cargo, "version"),
            job("third", "/no/such/program", ""),
            job("fourth", cargo, "version"),
        ];
        let logs = crate::target_dir().join(format!("tmp/jobs-{}", std::process::id()));
        let said = Mutex::new(Vec::new());
        let mut failed = run(jobs, N_WORKERS, &logs, |text| said.lock().unwrap().push(text)).unwrap();
        fs::remove_dir_all(&logs).unwrap();
        failed.sort();
        assert_eq!(failed.len(), 2, "{failed:?}");
        assert!(
            failed[0].starts_with("first (exit status: ")
                && failed[1].starts_with("third (it cannot be started")
        );
        let said = said.into_inner().unwrap();
        let find = |begin: &str| {
            said.iter()
                .find(|text| text.starts_with(begin))
                .expect("it is said")
        };
        assert_eq!(said.len(), 8);
        let fourth = find("== fourth\n");
        assert!(
            fourth.contains("\ncargo ") && fourth.ends_with(" s, passed"),
            "{fourth}"
        );
        assert!(find("== first\n").contains("no-such-command"));
        find("== third begins");
    }
}
