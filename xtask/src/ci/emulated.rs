//! The host's kernels on emulated ARM processors: their tests, built once for 64-bit ARM and run by QEMU's user mode.
//!
//! Emulation shows that results are right, never how fast.

use std::{path::Path, process::Command};

use anyhow::{Context, ensure};

use super::{
    binaries::{TestBinary, test_binaries},
    needs::Need,
};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64-static";
/// Where Debian's `libc6-arm64-cross` has the C library.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// The tools that this step needs.
pub(super) const NEEDS: &[Need] = &[
    Need::Target(TARGET),
    Need::Program(LINKER, "gcc-aarch64-linux-gnu"),
    Need::Program(EMULATOR, "qemu-user-static"),
    Need::File("/usr/aarch64-linux-gnu/lib/libc.so", "libc6-dev-arm64-cross"),
];

/// Processors, and which paths their kernels have: all, dot products without those of matrices, neither.
const PROCESSORS: [(&str, &str); 3] = [
    ("max", "scalar neon dotprod i8mm"),
    ("cortex-a76", "scalar neon dotprod"),
    ("cortex-a72", "scalar neon"),
];

/// Crates with kernels for processors. All of their tests run, those that compare paths with each other and with naive twins among them.
const CRATES: [&str; 3] = ["quant", "cpu-kernels", "cpu-exec"];

/// Runs the tests on each of [`PROCESSORS`].
///
/// # Errors
/// A build or a test that failed.
pub(super) fn run() -> anyhow::Result<()> {
    let packages = CRATES.map(|name| format!("tokenmill-{name}"));
    let mut args = vec!["--target", TARGET, "--test", "all"];
    for package in &packages {
        args.extend(["--package", package]);
    }
    let env = [
        ("RUSTFLAGS", "-D warnings"),
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER),
    ];
    let binaries = test_binaries(&args, &env)?;
    for (processor, paths) in PROCESSORS {
        for name in CRATES {
            let folder = Path::new("crates").join(name);
            let binary = binaries.iter().find(|binary| binary.source.starts_with(&folder));
            let binary = binary.with_context(|| format!("cargo built no tests of {}", folder.display()))?;
            test_on(processor, paths, binary)?;
        }
    }
    super::remove_build(TARGET);
    Ok(())
}

/// Runs tests on one processor, whose paths they check.
fn test_on(processor: &str, paths: &str, binary: &TestBinary) -> anyhow::Result<()> {
    println!("{} on {processor}", binary.source.display());
    let status = Command::new(EMULATOR)
        .args(["-L", LIBRARIES, "-cpu", processor])
        .arg(&binary.path)
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
