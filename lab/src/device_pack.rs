//! `device-pack`: everything that a machine with a GPU needs to check and to measure this project, in one folder, for two calls.
//!
//! Such machines are available for minutes, without a compiler or a network. The folder has the binaries without symbols and a few fixtures (an
//! archive, since they make up most of it), the kernels as code of one GPU generation for drivers without a compiler, the predictions of the timing
//! model, and a script that runs every part, the most informative first, within the given seconds. The binaries contain the same archive of
//! kernels, which no compressor makes smaller: the folder has it once, and the script inserts it again. Invariant: a part that cannot run reports
//! why in its result.

mod cut_off;
mod others_tools;
mod rehearsal;
mod results;
mod travel;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::{
    measure::record,
    parity::fixtures_folder,
    predictions::{self, Extent},
    ptx,
};

/// Build the folder that a GPU machine runs in one call: binaries, predictions, fixtures, and a script that writes JSON
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
    /// The GPU that kernels are compiled for ahead, or none.
    #[arg(long, default_value = "sm_90")]
    cubins: String,
    /// The GPUs whose times are predicted by the timing model, which takes minutes for kernels that are new: h100, h200, h100-pcie, a100, rtx-4090 or none.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "h100,h200",
        value_name = "GPU,.."
    )]
    predict: Vec<String>,
    /// Then run all of it over the simulated driver, with small models and within so many seconds, and check what it leaves; nothing is
    /// measured.
    #[arg(long, value_name = "SECONDS")]
    rehearse: Option<u64>,
    /// Let a rehearsal pass though the seconds did not suffice for all parts; it says for which.
    #[arg(long, requires = "rehearse")]
    allow_late: bool,
    /// How much is predicted.
    #[arg(long, value_enum, default_value_t = Extent::All, value_name = "EXTENT")]
    extent: Extent,
    /// Leave out fixtures that are not there, as in the core data.
    #[arg(long)]
    some_fixtures: bool,
}

impl Args {
    /// Returns those fixtures in `data` that the folder gets.
    fn fixtures(&self, data: &Path) -> Vec<(&'static str, &'static [&'static str])> {
        let is_there = |fixture: &str| data.join(fixture).join("ref.json").is_file();
        let wanted = FIXTURES
            .into_iter()
            .filter(|(fixture, _)| !self.some_fixtures || is_there(fixture));
        wanted.collect()
    }
}

/// Archive of `bin` and `fixtures`, and the kernels that are cut out of the binaries.
const ARCHIVE: &str = "pack.tar.gz";
const KERNELS: &str = "kernels.z";
/// The script, and the files that it reads.
const SCRIPT: &str = include_str!("device_pack/script/run.sh");
const SCRIPTS: [(&str, &str); 7] = [
    ("rows.sh", include_str!("device_pack/script/rows.sh")),
    ("limits.sh", include_str!("device_pack/script/limits.sh")),
    ("models.sh", include_str!("device_pack/script/models.sh")),
    ("serving.sh", include_str!("device_pack/script/serving.sh")),
    ("checks.sh", include_str!("device_pack/script/checks.sh")),
    ("figures.sh", include_str!("device_pack/script/figures.sh")),
    ("others.sh", include_str!("device_pack/script/others.sh")),
];
/// Script that times torch, if a machine has it.
const TORCH: &str = include_str!("device_pack/torch_baseline.py");
/// The binaries.
const BINARIES: [&str; 2] = ["tokenmill", "lab"];
/// Fixtures and the types of each: exact ones, for which greedy tokens are compared, and one for each layout of quantized weights.
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
/// A build that fails, a file that cannot be copied, a folder that is too large, or a rehearsal with wrong results.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let root = crate::workspace_root();
    let out = root.join(&args.out);
    // Missing fixtures are reported before minutes of building.
    let fixtures = fixtures_folder(&args.data);
    for (fixture, _) in args.fixtures(&fixtures) {
        let reference = fixtures.join(fixture).join("ref.json");
        ensure!(
            reference.is_file(),
            "{} is not there; --data names the fixtures",
            reference.display()
        );
    }
    if !args.no_build {
        build(root)?;
    }
    record::empty_folder(&out)?;
    for folder in ["bin", "fixtures"] {
        record::empty_folder(&out.join(folder))?;
    }
    let kernels =
        fs::read(root.join(ptx::ARCHIVE)).with_context(|| format!("cannot read {}", ptx::ARCHIVE))?;
    fs::write(out.join("bin").join(KERNELS), &kernels).context("cannot write the kernels")?;
    for binary in BINARIES {
        let packed = out.join("bin").join(binary);
        copy(&root.join(&args.binaries).join(binary), &packed)?;
        strip(&packed)?;
        cut_kernels_out(&packed, &kernels)?;
    }
    copy_fixtures(&args.fixtures(&fixtures), &fixtures, &out.join("fixtures"))?;
    if args.cubins != "none" {
        match ptx::cubins(&args.cubins) {
            Ok(cubins) => fs::write(out.join("cubins.z"), cubins).context("cannot write the cubins")?,
            Err(reason) => println!("device-pack: without cubins, the assembler cannot be had: {reason:#}"),
        }
    }
    record::write(&out.join("pack.json"), &about(&args.cubins, &out)?)?;
    archive(&out)?;
    for device in args.predict.iter().filter(|device| *device != "none") {
        let path = out.join(format!("predictions-{device}.json"));
        predictions::write(device, args.extent, &commit(), &path)?;
    }
    fs::write(out.join("torch_baseline.py"), TORCH).context("cannot write torch_baseline.py")?;
    write_scripts(&out)?;
    if let Some(load) = travel::Load::of(root, &out)? {
        println!("device-pack: {}", load.told()?);
    }
    if let Some(seconds) = args.rehearse {
        let late = if args.allow_late {
            results::Late::Allowed
        } else {
            results::Late::Refused
        };
        rehearsal::run(root, &out, &root.join(&args.binaries), seconds, late)?;
    }
    let mib = size_of(&out)? as f64 / f64::from(1 << 20);
    println!("device-pack: {mib:.1} MiB in {}", out.display());
    print!("{}", travel::how_to_run(travel::carried(root, &out)));
    println!("on a GPU machine of your own: ./run.sh [RESULTS_FOLDER [SECONDS]]");
    Ok(())
}

/// Writes the script and the files that it reads.
fn write_scripts(out: &Path) -> anyhow::Result<()> {
    let folder = out.join("script");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for (name, text) in SCRIPTS {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let script = out.join("run.sh");
    fs::write(&script, SCRIPT).with_context(|| format!("cannot write {}", script.display()))?;
    make_executable(&script)
}

/// Returns the commit that the pack is made from.
fn commit() -> String {
    record::commit(40, &[]).unwrap_or_else(|_| "unknown".to_owned())
}

/// Returns the description of the pack, whose file has one key a line, as the script reads it.
fn about(cubins: &str, out: &Path) -> anyhow::Result<Value> {
    let reference: Value = record::read(&out.join("fixtures/llama/ref.json"))?;
    let compared = reference["types"]["Q4_K_M"]["file"]
        .as_str()
        .context("a model to compare")?;
    Ok(json!({
        "commit": commit(),
        "kernels_sha256": predictions::kernels_sha256(),
        "cubins": cubins,
        "compared_model": compared,
    }))
}

fn build(root: &Path) -> anyhow::Result<()> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--release", "--locked", "--workspace"]);
    for binary in BINARIES {
        command.args(["--bin", binary]);
    }
    let status = command.current_dir(root).status().context("cannot run cargo")?;
    ensure!(status.success(), "building {} failed", BINARIES.join(" and "));
    Ok(())
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

/// Removes the symbols of a binary, if the tool for it exists.
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

/// Replaces a binary by the parts before and after its kernels, as `BINARY.head` and `BINARY.tail`.
fn cut_kernels_out(binary: &Path, kernels: &[u8]) -> anyhow::Result<()> {
    let bytes = fs::read(binary).with_context(|| format!("cannot read {}", binary.display()))?;
    let at = place_of(kernels, &bytes).with_context(|| {
        format!(
            "{} has other kernels than {}: build it of this tree",
            binary.display(),
            ptx::ARCHIVE
        )
    })?;
    for (ending, part) in [("head", &bytes[..at]), ("tail", &bytes[at + kernels.len()..])] {
        let path = binary.with_extension(ending);
        fs::write(&path, part).with_context(|| format!("cannot write {}", path.display()))?;
    }
    fs::remove_file(binary).with_context(|| format!("cannot remove {}", binary.display()))
}

/// Finds the position of bytes in others.
fn place_of(wanted: &[u8], bytes: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

/// Packs `bin` and `fixtures` into [`ARCHIVE`], in their place.
fn archive(pack: &Path) -> anyhow::Result<()> {
    let folders = ["bin", "fixtures"];
    let status = Command::new("tar")
        .arg("-czf")
        .arg(pack.join(ARCHIVE))
        .arg("-C")
        .arg(pack)
        .args(folders)
        .status()
        .context("cannot run tar")?;
    ensure!(status.success(), "archiving failed");
    for folder in folders {
        let folder = pack.join(folder);
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

/// Copies models and references, and keeps only the copied types in a reference's list of files.
fn copy_fixtures(fixtures: &[(&str, &[&str])], data: &Path, out: &Path) -> anyhow::Result<()> {
    for &(fixture, types) in fixtures {
        let (from, to) = (data.join(fixture), out.join(fixture));
        fs::create_dir_all(&to).with_context(|| format!("cannot create {}", to.display()))?;
        copy(&from.join("ref.safetensors"), &to.join("ref.safetensors"))?;
        let mut reference: Value = record::read(&from.join("ref.json"))?;
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
    let sizes = (record::files_below(folder)?.into_iter()).map(|file| Ok(fs::symlink_metadata(file)?.len()));
    sizes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binary_is_cut_around_its_kernels_and_put_together_again() {
        let folder = tempfile::tempdir().unwrap();
        let binary = folder.path().join("tokenmill");
        // Their first bytes may occur elsewhere too.
        fs::write(&binary, b"before, KERN, KERNELS, behind").unwrap();
        cut_kernels_out(&binary, b"KERNELS").unwrap();
        let parts = ["head", "tail"].map(|ending| fs::read(binary.with_extension(ending)).unwrap());
        assert_eq!(parts, [&b"before, KERN, "[..], b", behind"]);
        assert!(!binary.exists());
        fs::write(&binary, b"of another tree").unwrap();
        let error = cut_kernels_out(&binary, b"KERNELS").unwrap_err().to_string();
        assert!(error.contains("other kernels"), "{error}");
    }
}
