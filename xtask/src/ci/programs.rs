//! [`run_all`]: all test programs, the documentation's tests and the end-to-end scripts, two at a time.
//!
//! `cargo test` runs one program after the other, and most of them end with one long test, or wait for servers: two cores are half idle.
//! Each program runs as under cargo, in the folder of its package. Its output is printed when it ends. A failed program stops no other.

use std::{
    path::Path,
    process::{Command, Output},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};

use super::binaries::TestBinary;

/// Number of jobs at a time. Programs run their own tests in as many threads as there are cores.
const N_WORKERS: usize = 2;

/// The programs that run longest, which begin first.
const LONGEST: [&str; 4] = [
    "crates/testkit/tests/all/main.rs",
    "crates/cli/tests/all/main.rs",
    "crates/cuda-exec/tests/all/main.rs",
    "crates/placed/tests/all/main.rs",
];

/// A part of the tests.
struct Job {
    name: String,
    command: Command,
}

/// Runs the test programs that cargo has built, the tests of the documentation, and scripts.
///
/// # Errors
/// Fails if a job fails, and names all that did.
pub(super) fn run_all(programs: Vec<TestBinary>, scripts: &Path) -> anyhow::Result<()> {
    let place = |program: &TestBinary| {
        let at = LONGEST
            .iter()
            .position(|source| program.source == Path::new(source));
        at.unwrap_or(LONGEST.len())
    };
    let mut programs = programs;
    programs.sort_by_key(place);
    let mut jobs: Vec<Job> = programs.into_iter().map(of_program).collect();
    // Both are long as well. The scripts mostly wait.
    jobs.insert(jobs.len().min(2), of_scripts(scripts));
    jobs.insert(jobs.len().min(LONGEST.len() + 1), of_documentation());
    let failed = run(jobs, N_WORKERS, |job| println!("{job}"))?;
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

fn of_program(program: TestBinary) -> Job {
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
        .env("CARGO_INCREMENTAL", "0")
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

/// Runs jobs in their order, `n_workers` at a time, and hands a report of each to `say`. Returns the names of those that failed.
///
/// # Errors
/// Fails if a job cannot be started.
fn run(jobs: Vec<Job>, n_workers: usize, say: impl Fn(String) + Sync) -> anyhow::Result<Vec<String>> {
    let n_jobs = jobs.len();
    let jobs: Vec<_> = jobs.into_iter().map(|job| Mutex::new(Some(job))).collect();
    let next = AtomicUsize::new(0);
    let ended = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..n_workers.min(n_jobs) {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let job = job.lock().unwrap_or_else(PoisonError::into_inner).take();
                    let Some(Job { name, mut command }) = job else {
                        continue;
                    };
                    let began = Instant::now();
                    let output = command.output();
                    let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Ok(output) = &output {
                        say(report(&name, output, began.elapsed()));
                    }
                    ended.push((name, output));
                }
            });
        }
    });
    let mut failed = Vec::new();
    for (name, output) in ended.into_inner().unwrap_or_else(PoisonError::into_inner) {
        let output = output.with_context(|| format!("cannot run {name}"))?;
        if !output.status.success() {
            failed.push(name);
        }
    }
    Ok(failed)
}

/// Formats what a job printed, between its name and its time.
fn report(name: &str, output: &Output, took: Duration) -> String {
    let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    let printed: Vec<&str> = texts.iter().map(|text| text.trim_end()).collect();
    format!(
        "== {name}\n{}\n== {name}: {:.0} s, {}",
        printed.join("\n"),
        took.as_secs_f64(),
        output.status
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_programs_are_there() {
        for source in LONGEST {
            assert!(crate::workspace_root().join(source).is_file(), "{source}");
        }
    }

    #[test]
    fn all_jobs_run_and_all_that_fail_are_named() {
        let job = |name: &str, subcommand: &str| {
            let mut command = Command::new(env!("CARGO"));
            command.arg(subcommand);
            Job {
                name: name.to_owned(),
                command,
            }
        };
        let jobs = vec![
            job("first", "no-such-command"),
            job("second", "version"),
            job("third", "no-such-command"),
            job("fourth", "version"),
        ];
        let said = Mutex::new(Vec::new());
        let mut failed = run(jobs, N_WORKERS, |text| said.lock().unwrap().push(text)).unwrap();
        failed.sort();
        assert_eq!(failed, ["first", "third"]);
        let mut said = said.into_inner().unwrap();
        said.sort();
        assert_eq!(said.len(), 4);
        assert!(
            said[1].starts_with("== fourth\ncargo ") && said[1].contains(" s, exit status: 0"),
            "{}",
            said[1]
        );
        assert!(said[0].contains("no-such-command"), "{}", said[0]);
    }
}
