//! The random grids whole: of the kernels over the simulator, and of the networks of conformance.
//!
//! The tests of every run try a slice of them that the commit chooses. Where the code that they try changed, all cases run.

use std::process::Command;

use anyhow::{Context, ensure};

use super::binaries::test_binaries;

/// The file that a binary is made of, and which of its tests have random grids.
const TESTS: [(&str, &[&str]); 2] = [
    (
        "crates/cuda-exec/tests/all/main.rs",
        &["checks::", "kernels::", "prefill::", "products::"],
    ),
    ("crates/testkit/tests/all/main.rs", &["conformance::", "cuda::"]),
];

/// Runs the tests with all cases, on the binaries that `cargo test --workspace` has built.
///
/// # Errors
/// A test that failed.
pub(super) fn run() -> anyhow::Result<()> {
    let binaries = test_binaries(&["--workspace"], &[])?;
    for (source, filter) in TESTS {
        let binary = binaries.iter().find(|binary| binary.source.ends_with(source));
        let binary = binary.with_context(|| format!("cargo built no tests of {source}"))?;
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
