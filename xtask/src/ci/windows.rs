//! The program for Windows, built by MinGW and run by wine: some tests of the command line and of its server.
//!
//! The tests are those of this machine, which start the program that `TOKENMILL_TEST_PROGRAM` names. Invariant: its output, and its
//! answers over HTTP, are the bytes of Linux. Wine is not Windows: it shows that the program makes the right system calls, not how
//! fast they are.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use anyhow::{Context, ensure};

use super::{
    binaries::{WORKSPACE, test_binaries},
    needs::Need,
};

const TARGET: &str = "x86_64-pc-windows-gnu";
const COMPILER: &str = "x86_64-w64-mingw32-gcc";
/// Debian does not put it on the path.
const WINE: &str = "/usr/lib/wine/wine64";

/// The tools that this step needs.
pub(super) const NEEDS: &[Need] = &[
    Need::Target(TARGET),
    Need::Program(COMPILER, "gcc-mingw-w64-x86-64"),
    Need::File(WINE, "wine64"),
];

/// A library that wine 8 lacks.
const RANDOM: &str = include_str!("windows/bcryptprimitives.c");

/// The tests, by prefixes of their names: the output of the built-in model, and servers that answer over HTTP and end by Ctrl-C.
const TESTS: [&str; 3] = ["demo::", "embedding_model::", "several_models::models_by_name"];

/// Builds the program and runs the tests with it.
///
/// # Errors
/// A build or a test that failed.
pub(super) fn run() -> anyhow::Result<()> {
    let args = [
        "build",
        "--locked",
        "--package",
        "tokenmill-cli",
        "--target",
        TARGET,
    ];
    super::cargo(&args, Some(("RUSTFLAGS", "-D warnings")))?;
    let folder = crate::target_dir().join(TARGET).join("debug");
    add_library(&folder)?;
    let program = folder.join("tokenmill.sh");
    let prefix = folder.join("wine");
    let script = format!(
        "#!/bin/sh\nexport WINEPREFIX='{}' WINEDEBUG=-all WINEDLLOVERRIDES=mscoree,mshtml=\nexec {WINE} '{}' \"$@\"\n",
        prefix.display(),
        folder.join("tokenmill.exe").display(),
    );
    fs::write(&program, script).with_context(|| format!("cannot write {}", program.display()))?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    // The first start creates wine's folders, which would count for a test's time.
    let version = Command::new(&program)
        .arg("--version")
        .output()
        .context("cannot run wine")?;
    ensure!(
        version.status.success(),
        "the program does not start: {}",
        String::from_utf8_lossy(&version.stderr)
    );
    let binaries = test_binaries(&WORKSPACE, &[])?;
    let binary = binaries
        .iter()
        .find(|binary| binary.source.ends_with("crates/cli/tests/all/main.rs"));
    let binary = binary.context("cargo built no tests of the command line")?;
    let status = Command::new(&binary.path)
        .args(TESTS)
        .env("TOKENMILL_TEST_PROGRAM", &program)
        .current_dir(binary.folder())
        .status()
        .context("cannot run the tests")?;
    ensure!(status.success(), "tests with the program for Windows failed");
    super::remove_build(TARGET);
    Ok(())
}

/// Puts the library that wine lacks next to the program.
fn add_library(folder: &Path) -> anyhow::Result<()> {
    let source = folder.join("bcryptprimitives.c");
    fs::write(&source, RANDOM).with_context(|| format!("cannot write {}", source.display()))?;
    let status = Command::new(COMPILER)
        .args(["-shared", "-O1", "-o"])
        .arg(folder.join("bcryptprimitives.dll"))
        .arg(&source)
        .arg("-ladvapi32")
        .status()
        .with_context(|| format!("cannot run {COMPILER}"))?;
    ensure!(status.success(), "{COMPILER} failed");
    Ok(())
}
