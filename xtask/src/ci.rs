//! `ci`: everything that must pass before a change lands, what fails fastest first.
//!
//! Tidy is one of the tests. What this machine lacks (the CUDA compiler, the standard library of another system) is
//! skipped with a line that says so; for other systems it is said once more at the end. A machine of CI builds once and has little room: nothing incremental is kept, and what
//! another system's check leaves is removed.

mod emulated;

use std::{fs, path::Path, process::Command, time::Instant};

use anyhow::{Context, bail, ensure};

/// Runs format check, lints, tests, documentation, parity on the core data, the comparison of the kernels with their PTX, a rehearsal of the device pack,
/// the packages of all crates, a check of the code for other operating systems, warnings denied, and the tests of the
/// host's kernels on emulated ARM processors
#[derive(clap::Args)]
pub struct Args {}

/// A step that cargo runs.
struct Step {
    name: &'static str,
    args: &'static [&'static str],
    env: Option<(&'static str, &'static str)>,
}

const STEPS: [Step; 5] = [
    Step {
        name: "format",
        args: &["fmt", "--all", "--check"],
        env: None,
    },
    Step {
        name: "lints",
        args: &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ],
        env: None,
    },
    Step {
        name: "lints without features",
        args: &[
            "clippy",
            "--package",
            "tokenmill-cli",
            "--package",
            "tokenmill",
            "--no-default-features",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ],
        env: None,
    },
    Step {
        name: "tests",
        args: &["test", "--workspace", "--locked"],
        env: None,
    },
    Step {
        name: "docs",
        args: &["doc", "--workspace", "--no-deps", "--locked"],
        env: Some(("RUSTDOCFLAGS", "-D warnings")),
    },
];

/// Other systems that the code should compile for: target, what to check, and the C compiler that its dependencies need, if any.
/// For ARM that is what has code of its own there. On macOS it is the library, since the server's TLS needs Apple's compiler.
const OTHER_SYSTEMS: [(&str, &str, Option<&str>); 3] = [
    (emulated::TARGET, "tokenmill-cpu-exec", None),
    (
        "x86_64-pc-windows-gnu",
        "tokenmill-cli",
        Some("x86_64-w64-mingw32-gcc"),
    ),
    ("aarch64-apple-darwin", "tokenmill", Some("cc")),
];

/// What a rehearsal of the device pack may take. Parts that do not fit into it are named.
const REHEARSAL_S: u64 = 120;

/// Folders of modules that a macro declares, one for each weight format: `cargo fmt` does not find them.
const LISTED: [&str; 2] = ["crates/quant/src/formats", "crates/cpu-kernels/src/tiles"];

/// Runs all steps and stops at the first that fails.
///
/// # Errors
/// The step that failed.
pub fn run(_: &Args) -> anyhow::Result<()> {
    timed("format of listed files", check_listed_files)?;
    for Step { name, args, env } in STEPS {
        timed(name, || cargo(args, env))?;
    }
    let core = crate::workspace_root().join("tests/data");
    timed("parity on the CPU", || {
        crate::parity::run(&crate::parity::Args::cpu(&core))
    })?;
    timed("parity on the simulator", || {
        crate::parity::run(&crate::parity::Args::simulator(&core))
    })?;
    timed("kernels", || crate::ptx::run(&crate::ptx::Args::check()))?;
    timed("device pack", || {
        let binaries = Path::new("target/debug");
        crate::device_pack::run(&crate::device_pack::Args::ci(&core, binaries, REHEARSAL_S))
    })?;
    timed("packages", check_packages)?;
    let mut skipped = Vec::new();
    for (target, package, compiler) in OTHER_SYSTEMS {
        skipped.extend(timed(target, || check_target(target, package, compiler))?);
    }
    skipped.extend(timed("kernels on ARM", emulated::test_kernels)?);
    for line in skipped {
        println!("== skipped: {line}");
    }
    Ok(())
}

/// Why nothing can be built for a target here, if so. The compiler is that of the cargo that builds.
fn missing_target(target: &str) -> anyhow::Result<Option<String>> {
    let rustc = Path::new(env!("CARGO")).with_file_name(format!("rustc{}", std::env::consts::EXE_SUFFIX));
    let output = Command::new(rustc)
        .args(["--print", "target-libdir", "--target", target])
        .output()
        .context("cannot run rustc")?;
    let is_there = Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir();
    Ok((!is_there).then(|| format!("`rustup target add {target}` was not run here")))
}

/// Prints why a check is skipped, and returns it.
fn skip(line: String) -> String {
    println!("{line}");
    line
}

/// Runs a step between its name and its time.
fn timed<T>(name: &str, step: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    println!("== {name}");
    let began = Instant::now();
    let result = step().with_context(|| format!("{name} failed"))?;
    println!("== {name}: {:.0} s", began.elapsed().as_secs_f64());
    Ok(result)
}

fn cargo(args: &[&str], env: Option<(&str, &str)>) -> anyhow::Result<()> {
    let status = Command::new(env!("CARGO"))
        .args(args)
        .env("CARGO_INCREMENTAL", "0")
        .envs(env)
        .current_dir(crate::workspace_root())
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("cargo {} failed", args.join(" "));
    }
    Ok(())
}

/// Packages every crate that can be published, as `cargo publish` would, and keeps nothing of it.
fn check_packages() -> anyhow::Result<()> {
    let folder = crate::workspace_root().join("target/packages");
    let target_dir = folder.to_string_lossy().into_owned();
    let mut args = vec!["package", "--workspace", "--no-verify", "--allow-dirty"];
    args.extend(["--target-dir", &target_dir]);
    for private in [
        "xtask",
        "tokenmill-python",
        "tokenmill-testkit",
        "tokenmill-sim-driver",
    ] {
        args.extend(["--exclude", private]);
    }
    let result = cargo(&args, None);
    // A folder that cannot be removed costs room only.
    let _ = fs::remove_dir_all(folder);
    result
}

/// Checks a package for another system, or says what is missing: its standard library or the C compiler.
fn check_target(target: &str, package: &str, compiler: Option<&str>) -> anyhow::Result<Option<String>> {
    if let Some(missing) = missing_target(target)? {
        return Ok(Some(skip(format!("{target}: not checked, {missing}"))));
    }
    let has_compiler = |compiler: &str| Command::new(compiler).arg("--version").output().is_ok();
    if let Some(compiler) = compiler.filter(|compiler| !has_compiler(compiler)) {
        return Ok(Some(skip(format!(
            "{target}: not checked, there is no {compiler} here"
        ))));
    }
    let folder = crate::workspace_root().join("target/other-systems");
    let result = cargo(
        &[
            "check",
            "--locked",
            "--package",
            package,
            "--target",
            target,
            "--target-dir",
            &folder.to_string_lossy(),
        ],
        Some(("RUSTFLAGS", "-D warnings")),
    );
    // A folder that cannot be removed costs room only.
    let _ = fs::remove_dir_all(folder);
    result.map(|()| None)
}

/// Checks the format of [`LISTED`] folders.
fn check_listed_files() -> anyhow::Result<()> {
    let mut command = Command::new("rustfmt");
    command.args(["--check", "--edition", "2024"]);
    for folder in LISTED {
        let folder = crate::workspace_root().join(folder);
        let files = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for file in files {
            command.arg(file?.path());
        }
    }
    let status = command.status().context("cannot run rustfmt")?;
    ensure!(status.success(), "rustfmt found files to format");
    Ok(())
}
