//! Runs the random grids in full: the kernels on the simulator, and the networks of conformance.
//!
//! Every other run tries a slice of them that the commit chooses. If the code under test changed, all cases run.

use std::process::Command;

use anyhow::{Context, ensure};

use super::binaries::{WORKSPACE, test_binaries};

/// Source files of test binaries, and filters of their tests with random grids.
const TESTS: [(&str, &[&str]); 5] = [
    (
        "crates/cuda-exec/tests/all/main.rs",
        &["checks::", "kernels::", "prefill::", "products::"],
    ),
    (
        "crates/testkit/tests/all/main.rs",
        &[
            "conformance::",
            "cuda::",
            "cuda_contract::capture::every_batch_size",
            "engine_on_the_simulator::batched_greedy",
            "hf_folder::mutated",
        ],
    ),
    (
        "crates/sched/tests/all/main.rs",
        &["speculation::drafts_change_no_bit"],
    ),
    (
        "crates/text/src/lib.rs",
        &["constraint::compiler::hostile::references_within_the_limits"],
    ),
    ("crates/text/tests/all/main.rs", &["robustness::mutated"]),
];

/// Runs the tests with all cases, on the binaries that `cargo test --workspace` has built.
///
/// # Errors
/// Fails if a test fails.
pub(super) fn run() -> anyhow::Result<()> {
    let binaries = test_binaries(&WORKSPACE, &[])?;
    for (source, filter) in TESTS {
        let binary = binaries.iter().find(|binary| binary.source.ends_with(source));
        let binary = binary.with_context(|| format!("cargo built no tests of {source}"))?;
        for name in filter {
            let listed = Command::new(&binary.path).args([*name, "--list"]).output();
            let listed = listed.context("cannot list the tests")?;
            ensure!(
                String::from_utf8_lossy(&listed.stdout).contains(": test"),
                "{source} has no test `{name}`"
            );
        }
        let status = Command::new(&binary.path)
            .args(filter)
            .env("TOKENMILL_TESTS", "all")
            .current_dir(binary.folder())
            .status()
            .context("cannot run the tests")?;
        ensure!(status.success(), "{source} failed with all cases");
    }
    Ok(())
}
