//! `device-pack`: everything that a machine with a GPU needs to check and to measure this project, in one folder, in one call.
//!
//! Such machines are met for minutes, without a compiler or a network. The folder has the binaries without symbols and the PTX for
//! other tools (each an archive, since they make up most of it and compress to a third), the kernels as code of one GPU generation for
//! drivers without a compiler, a few fixtures, and a script that runs every part, the most telling first, within the seconds that it is
//! given. Invariant: a part that cannot run says why in its result; the folder stays below 48 MiB.

mod rehearsal;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

use tokenmill_cuda_exec::modules;

use crate::parity::fixtures_folder;

/// Build the folder that a GPU machine runs in one call: binaries, PTX, fixtures, and a script that writes JSON
#[derive(clap::Args)]
pub struct Args {
    /// Folder to make; its contents are replaced.
    #[arg(long, default_value = "target/device-pack")]
    out: PathBuf,
    /// Folder of the fixtures, as `parity` takes it, or the one around it that tests take.
    #[arg(long)]
    data: PathBuf,
    /// Take the binaries as they are, without building them.
    #[arg(long)]
    no_build: bool,
    /// Folder of the binaries.
    #[arg(long, default_value = "target/release")]
    binaries: PathBuf,
    /// The GPU that kernels are compiled for ahead.
    #[arg(long, default_value = "sm_90")]
    cubins: String,
    /// Then run all of it over the simulated driver, with small models and within so many seconds, and check what it leaves; nothing is
    /// measured.
    #[arg(long, value_name = "SECONDS")]
    rehearse: Option<u64>,
    /// Let a rehearsal pass though the seconds did not suffice for all parts; it says for which.
    #[arg(long, requires = "rehearse")]
    allow_late: bool,
}

/// What the folder may have.
const MAX_BYTES: u64 = 48 << 20;
/// The script.
const SCRIPT: &str = include_str!("device_pack/run.sh");
/// The binaries: package, name.
const BINARIES: [(&str, &str); 2] = [("tokenmill-cli", "tokenmill"), ("xtask", "xtask")];
/// Fixtures and the types of each: exact ones, where greedy tokens are compared, and each way that quantized weights lie.
const FIXTURES: [(&str, &[&str]); 5] = [
    (
        "llama",
        &[
            "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K_M", "Q4_K_M",
            "Q5_K_M", "Q6_K",
        ],
    ),
    ("llama3_rope", &["F32"]),
    ("mistral", &["F32"]),
    ("qwen2", &["F32", "Q4_K_M"]),
    ("qwen3", &["F32", "Q4_K_M"]),
];

/// Makes the folder.
///
/// # Errors
/// A build that fails, a file that cannot be copied, a folder that is too large, or a rehearsal that leaves something wrong.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let root = crate::workspace_root();
    let out = root.join(&args.out);
    // What is missing is said before minutes of building.
    let fixtures = fixtures_folder(&args.data);
    for (fixture, _) in FIXTURES {
        let reference = fixtures.join(fixture).join("ref.json");
        ensure!(
            reference.is_file(),
            "{} is not there; --data names the fixtures",
            reference.display()
        );
    }
    if !args.no_build {
        for (package, binary) in BINARIES {
            build(root, package, binary)?;
        }
    }
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| format!("cannot empty {}", out.display()))?;
    }
    for folder in ["bin", "ptx", "fixtures"] {
        let folder = out.join(folder);
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    for (_, binary) in BINARIES {
        let packed = out.join("bin").join(binary);
        copy(&root.join(&args.binaries).join(binary), &packed)?;
        strip(&packed)?;
    }
    for name in modules::names() {
        let ptx = modules::ptx(name).with_context(|| format!("the archive has no PTX of {name}"))?;
        let path = out.join("ptx").join(format!("{name}.ptx"));
        fs::write(&path, ptx).with_context(|| format!("cannot write {}", path.display()))?;
    }
    for folder in ["bin", "ptx"] {
        archive(&out, folder)?;
    }
    copy_fixtures(&fixtures, &out.join("fixtures"))?;
    match crate::ptx::cubins(&args.cubins) {
        Ok(cubins) => fs::write(out.join("cubins.z"), cubins).context("cannot write the cubins")?,
        Err(reason) => println!("device-pack: without cubins, the assembler cannot be had: {reason:#}"),
    }
    fs::write(out.join("pack.json"), about(root, &args.cubins, &out)?).context("cannot write pack.json")?;
    let script = out.join("run.sh");
    fs::write(&script, SCRIPT).with_context(|| format!("cannot write {}", script.display()))?;
    make_executable(&script)?;
    if let Some(seconds) = args.rehearse {
        let late = if args.allow_late {
            rehearsal::Late::Allowed
        } else {
            rehearsal::Late::Refused
        };
        rehearsal::run(&out, &root.join(&args.binaries), seconds, late)?;
    }
    let n_bytes = size_of(&out)?;
    let mib = n_bytes as f64 / f64::from(1 << 20);
    println!("device-pack: {mib:.1} MiB in {}", out.display());
    println!("on a GPU machine: ./run.sh [RESULTS_FOLDER [SECONDS]]");
    ensure!(
        n_bytes <= MAX_BYTES,
        "{mib:.1} MiB are more than {} MiB",
        MAX_BYTES >> 20
    );
    Ok(())
}

/// What the pack is made of: one key a line, as the script reads it.
fn about(root: &Path, cubins: &str, out: &Path) -> anyhow::Result<String> {
    let git = |args: &[&str]| -> Option<String> {
        let output = Command::new("git").args(args).current_dir(root).output().ok()?;
        (output.status.success()).then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = match (git(&["rev-parse", "HEAD"]), git(&["status", "--porcelain"])) {
        (Some(commit), Some(changes)) if changes.is_empty() => commit,
        (Some(commit), _) => format!("{commit}, with changes"),
        (None, _) => "unknown".to_owned(),
    };
    let kernels: String = modules::names().filter_map(modules::ptx).collect();
    let text = fs::read_to_string(out.join("fixtures/llama/ref.json")).context("cannot read a reference")?;
    let reference: serde_json::Value = serde_json::from_str(&text).context("a reference is no JSON")?;
    let compared = reference["types"]["Q4_K_M"]["file"]
        .as_str()
        .context("a model to compare")?;
    let about = serde_json::json!({
        "commit": commit,
        "kernels_sha256": crate::ptx::hash(&kernels),
        "cubins": cubins,
        "compared_model": compared,
    });
    Ok(format!("{about:#}\n"))
}

fn build(root: &Path, package: &str, binary: &str) -> anyhow::Result<()> {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--release", "--locked", "-p", package, "--bin", binary])
        .current_dir(root)
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "building {binary} failed");
    Ok(())
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

/// Removes the symbols of a binary, where the tool for it is there.
fn strip(binary: &Path) -> anyhow::Result<()> {
    match Command::new("strip").arg(binary).status() {
        Ok(status) => ensure!(status.success(), "stripping {} failed", binary.display()),
        Err(reason) => println!(
            "device-pack: {} keeps its symbols, `strip` cannot run: {reason}",
            binary.display()
        ),
    }
    Ok(())
}

/// Packs a folder into `FOLDER.tar.gz` in the same place.
fn archive(parent: &Path, folder: &str) -> anyhow::Result<()> {
    let status = Command::new("tar")
        .arg("-czf")
        .arg(parent.join(format!("{folder}.tar.gz")))
        .arg("-C")
        .arg(parent)
        .arg(folder)
        .status()
        .context("cannot run tar")?;
    ensure!(status.success(), "archiving {folder} failed");
    let folder = parent.join(folder);
    fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))
}

/// Copies models and references, and leaves only the types that were copied in a reference's list of files.
fn copy_fixtures(data: &Path, out: &Path) -> anyhow::Result<()> {
    for (fixture, types) in FIXTURES {
        let (from, to) = (data.join(fixture), out.join(fixture));
        fs::create_dir_all(&to).with_context(|| format!("cannot create {}", to.display()))?;
        copy(&from.join("ref.safetensors"), &to.join("ref.safetensors"))?;
        let path = from.join("ref.json");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut reference: serde_json::Value =
            serde_json::from_str(&text).with_context(|| format!("{} is no JSON", path.display()))?;
        let listed = reference["types"]
            .as_object_mut()
            .context("a reference lists its files")?;
        listed.retain(|ty, _| types.contains(&ty.as_str()));
        for (ty, file) in listed.iter() {
            let name = file["file"]
                .as_str()
                .with_context(|| format!("{fixture} {ty} has no file"))?;
            copy(&from.join(name), &to.join(name))?;
        }
        fs::write(to.join("ref.json"), reference.to_string()).context("cannot write a reference")?;
    }
    Ok(())
}

#[cfg(unix)]
fn make_executable(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot make {} executable", path.display()))
}

#[cfg(not(unix))]
fn make_executable(_: &Path) -> anyhow::Result<()> {
    Ok(())
}

fn size_of(folder: &Path) -> anyhow::Result<u64> {
    let mut n_bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        n_bytes += if metadata.is_dir() {
            size_of(&entry.path())?
        } else {
            metadata.len()
        };
    }
    Ok(n_bytes)
}
