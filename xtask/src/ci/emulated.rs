//! The host's kernels on emulated ARM processors: their tests, built for 64-bit ARM and run by QEMU's user mode.
//!
//! Separate from the check of other systems, which runs nothing. Emulation shows that results are right, never how fast.
//! A machine that lacks a part of this skips it with a line that says what.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, ensure};

pub(super) const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64-static";
/// Where Debian's `libc6-arm64-cross` has the C library.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// Processors, and which paths their kernels have: all, dot products without those of matrices, neither.
const PROCESSORS: [(&str, &str); 3] = [
    ("max", "scalar neon dotprod i8mm"),
    ("cortex-a76", "scalar neon dotprod"),
    ("cortex-a72", "scalar neon"),
];

/// Packages, and which of their tests: those that compare paths with each other and with naive twins. A filter behind `--`
/// holds for each binary of a run, so that a library's tests are a run of their own.
const TESTS: [(&str, &[&str]); 4] = [
    ("tokenmill-quant", &["--lib"]),
    ("tokenmill-quant", &["--test", "all", "--", "cpu_paths::"]),
    ("tokenmill-cpu-kernels", &["--lib"]),
    ("tokenmill-cpu-exec", &["--test", "all"]),
];

/// Runs the tests on each of [`PROCESSORS`], or says what is missing.
///
/// # Errors
/// A build or a test that failed.
pub(super) fn test_kernels() -> anyhow::Result<Option<String>> {
    if let Some(missing) = missing()? {
        return Ok(Some(super::skip(format!("{TARGET}: not run, {missing}"))));
    }
    let folder = crate::workspace_root().join("target/other-systems");
    let result = PROCESSORS
        .into_iter()
        .try_for_each(|(processor, paths)| test_on(processor, paths, &folder));
    // A folder that cannot be removed costs room only.
    let _ = fs::remove_dir_all(folder);
    result.map(|()| None)
}

/// Runs the tests on one processor, whose paths they check.
fn test_on(processor: &str, paths: &str, folder: &Path) -> anyhow::Result<()> {
    for (package, tests) in TESTS {
        println!("{package} on {processor}");
        let runner = format!("{EMULATOR} -L {LIBRARIES} -cpu {processor}");
        let status = Command::new(env!("CARGO"))
            .args(["test", "--locked", "--target", TARGET, "--package", package])
            .arg("--target-dir")
            .arg(folder)
            .args(tests)
            .env("CARGO_INCREMENTAL", "0")
            .env("RUSTFLAGS", "-D warnings")
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner)
            .env("TOKENMILL_TEST_PATHS", paths)
            .current_dir(crate::workspace_root())
            .status()
            .context("cannot run cargo")?;
        ensure!(status.success(), "tests of {package} failed on {processor}");
    }
    Ok(())
}

/// What this machine lacks for it, and how it gets it.
fn missing() -> anyhow::Result<Option<String>> {
    if let Some(missing) = super::missing_target(TARGET)? {
        return Ok(Some(missing));
    }
    for (program, package) in [(LINKER, "gcc-aarch64-linux-gnu"), (EMULATOR, "qemu-user-static")] {
        if Command::new(program).arg("--version").output().is_err() {
            return Ok(Some(format!(
                "there is no {program} here; on Debian `apt-get install {package}`"
            )));
        }
    }
    let is_there = Path::new(LIBRARIES).join("lib").is_dir();
    Ok((!is_there).then(|| {
        format!("there is no C library in {LIBRARIES}; on Debian `apt-get install libc6-dev-arm64-cross`")
    }))
}
