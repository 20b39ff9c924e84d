//! The host's kernels on emulated ARM processors: their tests, built once for 64-bit ARM and run by QEMU's user mode.
//!
//! Emulation shows that results are right, never how fast.

use std::process::Command;

use anyhow::{Context, ensure};

use super::{
    binaries::{TestBinary, test_binaries},
    needs::Need,
};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64-static";
/// Location of the C library in Debian's `libc6-arm64-cross`.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// The tools that this step needs.
pub(super) const NEEDS: &[Need] = &[
    Need::Target(TARGET),
    Need::Program(LINKER, "gcc-aarch64-linux-gnu"),
    Need::Program(EMULATOR, "qemu-user-static"),
    Need::File("/usr/aarch64-linux-gnu/lib/libc.so", "libc6-dev-arm64-cross"),
];

/// Processors, and the paths that their kernels have: all, dot products without matrix products, neither.
const PROCESSORS: [(&str, &str); 3] = [
    ("max", "scalar neon dotprod i8mm"),
    ("cortex-a76", "scalar neon dotprod"),
    ("cortex-a72", "scalar neon"),
];

/// Tests that compare paths with each other and with naive twins: the source file of a binary, and a selection of its tests.
const TESTS: [(&str, &[&str]); 3] = [
    (
        "crates/quant/tests/all/main.rs",
        &[
            "codebook::",
            "cpu_features::",
            "cpu_paths::",
            "e4m3::",
            "formats::",
            "grids::",
            "k_scales::",
            "scales::",
        ],
    ),
    ("crates/cpu-kernels/tests/all/main.rs", &[]),
    ("crates/cpu-exec/tests/all/main.rs", &[]),
];

/// Runs the tests on each of [`PROCESSORS`].
///
/// # Errors
/// A build or a test that failed.
pub(super) fn run() -> anyhow::Result<()> {
    let mut args = vec!["--target", TARGET, "--test", "all"];
    for package in ["tokenmill-quant", "tokenmill-cpu-kernels", "tokenmill-cpu-exec"] {
        args.extend(["--package", package]);
    }
    let env = [
        ("RUSTFLAGS", "-D warnings"),
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER),
    ];
    let binaries = test_binaries(&args, &env)?;
    for (processor, paths) in PROCESSORS {
        for (source, filter) in TESTS {
            let binary = binaries.iter().find(|binary| binary.source.ends_with(source));
            let binary = binary.with_context(|| format!("cargo built no tests of {source}"))?;
            test_on(processor, paths, binary, filter)?;
        }
    }
    super::remove_build(TARGET);
    Ok(())
}

/// Runs tests on one processor, whose paths they check.
fn test_on(processor: &str, paths: &str, binary: &TestBinary, filter: &[&str]) -> anyhow::Result<()> {
    println!("{} on {processor}", binary.source.display());
    let status = Command::new(EMULATOR)
        .args(["-L", LIBRARIES, "-cpu", processor])
        .arg(&binary.path)
        .args(filter)
        .env("TOKENMILL_TEST_PATHS", paths)
        .current_dir(binary.folder())
        .status()
        .context("cannot run the emulator")?;
    ensure!(
        status.success(),
        "{} failed on {processor}",
        binary.source.display()
    );
    Ok(())
}
