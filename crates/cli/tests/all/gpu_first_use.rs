//! Tests the program's first use of a GPU: it is checked once, failed features are turned off and reported, and `doctor` shows the result.

use std::process::Command;

use crate::{
    gpu::{run, with_driver},
    support::tokenmill,
};

/// Runs on a simulated GPU that is checked, with a cache of its own.
fn checked(machine: &str, cache: &std::path::Path, args: &[&str]) -> Command {
    let mut command = with_driver(machine, args);
    command
        .env("XDG_CACHE_HOME", cache)
        .env_remove("TOKENMILL_CUDA_NO_CHECK");
    command
}

/// The arguments of a run without its device. A step of this network takes the simulator a tenth of the time of one of the built-in model.
const RUN: [&str; 11] = [
    "run",
    "--raw",
    concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/parity/llama/model-Q8_0.gguf"
    ),
    "Once",
    "-n",
    "8",
    "--temp",
    "0",
    "-c",
    "256",
    "--device",
];

#[test]
fn a_gpu_is_checked_once_and_what_fails_is_given_up() {
    let expected = tokenmill([&RUN[..], &["cpu"]].concat()).ok();
    // One order of addition has kernels of its own, which are checked as well.
    let invariant = [&RUN[..], &["auto", "--batch-invariant"]].concat();
    let cache = tempfile::tempdir().unwrap();
    let first = run(checked("", cache.path(), &invariant));
    let said = first.stderr.clone();
    assert!(
        said.contains("first use of GPU 0: checking its kernels"),
        "{said}"
    );
    assert!(!said.contains("from now on"), "{said}");
    assert_eq!(first.ok(), expected);
    // The GPU passed, so it is not checked again.
    let second = run(checked("", cache.path(), &invariant));
    assert!(!second.stderr.contains("first use"), "{}", second.stderr);
    assert_eq!(second.ok(), expected);

    // Replays are wrong, so steps are not captured any more, and `doctor` reports it.
    let folder = tempfile::tempdir().unwrap();
    let machine = "capability=8.0,wrong_replayed=matvec";
    let eager = [&RUN[..], &["auto"]].concat();
    let first = run(checked(machine, folder.path(), &eager));
    let said = first.stderr.clone();
    assert!(said.contains("from now on steps are not captured"), "{said}");
    assert_eq!(first.ok(), expected);
    let doctor = run(checked(machine, folder.path(), &["doctor", "--json"])).ok();
    let found: serde_json::Value = serde_json::from_str(&doctor).unwrap();
    assert_eq!(
        found["gpu_check"]["given_up"],
        serde_json::json!(["eager"]),
        "{found}"
    );
    let models = found["gpu_check"]["models"].as_array().unwrap();
    assert_eq!(models.len(), 1, "{found}");
    let second = run(checked(machine, folder.path(), &eager));
    assert!(!second.stderr.contains("first use"), "{}", second.stderr);
    assert_eq!(second.ok(), expected);
}

#[test]
fn a_gpu_that_does_not_pass_is_not_used() {
    let expected = tokenmill([&RUN[..], &["cpu"]].concat()).ok();
    let folder = tempfile::tempdir().unwrap();
    let machine = "capability=8.0,wrong=add_norm";
    let auto = run(checked(machine, folder.path(), &[&RUN[..], &["auto"]].concat()));
    let said = auto.stderr.clone();
    assert!(said.contains("the norm of rows of 512 (norm/add_norm"), "{said}");
    assert!(said.contains("computing on the CPU"), "{said}");
    assert_eq!(auto.ok(), expected);
    // An explicitly requested GPU is refused without another check.
    let asked = run(checked(machine, folder.path(), &[&RUN[..], &["cuda"]].concat()));
    assert!(
        asked.stderr.contains("norm/add_norm") && !asked.stderr.contains("checking"),
        "{}",
        asked.stderr
    );
    asked.failed(5);
    let doctor = run(checked(machine, folder.path(), &["doctor"])).ok();
    assert!(
        doctor.contains("first use  problem  the norm of rows of 512"),
        "{doctor}"
    );
}
