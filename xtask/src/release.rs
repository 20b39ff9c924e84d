//! `release`: archives of the program for other machines, one for each target.
//!
//! (`ci` proves the code; this builds the downloads.) Before it builds anything, it checks that the machine
//! has everything for an archive (the target's standard library, a C compiler). Invariants: an archive is
//! written only after its program has run, if this machine can run it; the same sources, versions and time
//! give the same archive.

mod licenses;
mod links;
mod program;
mod texts;

use std::{
    env,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail, ensure};
use clap::{Arg, ArgAction, ArgMatches};
use sha2::{Digest, Sha256};

use self::program::Linkage;

/// Returns the options of this command.
pub fn command() -> clap::Command {
    clap::Command::new("release")
        .about("Builds archives with the program, the manual's pages, completions and licences, and their checksums")
        .arg(
            Arg::new("target")
                .long("target")
                .value_name("TARGET")
                .action(ArgAction::Append)
                .help("A Rust target; may be repeated [default: all in the list that this machine has the tools for]"),
        )
        .arg(
            Arg::new("out")
                .long("out")
                .value_name("DIR")
                .default_value("target/archives")
                .help("Folder of the archives"),
        )
        .arg(
            Arg::new("profile")
                .long("profile")
                .default_value("release")
                .help("Build profile; `dev` tries the archives in less time"),
        )
        .arg(
            Arg::new("list")
                .long("list")
                .action(ArgAction::SetTrue)
                .help("Say what can be built here, and build nothing"),
        )
}

/// Describes how a target is built on Linux.
struct Platform {
    target: &'static str,
    /// The archive's name for users.
    label: &'static str,
    /// Whether the program can load the GPU's driver. A static program cannot, so it computes on the CPU
    /// alone.
    has_gpu: bool,
    /// The C compiler for the parts that are not Rust, and the Debian package that has it.
    c_compiler: (&'static str, &'static str),
    /// The linker, if it is not the C compiler.
    linker: Option<&'static str>,
    /// The emulator that runs the program on other processors.
    emulator: &'static str,
}

const PLATFORMS: [Platform; 3] = [
    Platform {
        target: "x86_64-unknown-linux-musl",
        label: "linux-x86_64-static",
        has_gpu: false,
        c_compiler: ("musl-gcc", "musl-tools"),
        linker: None,
        emulator: "qemu-x86_64-static",
    },
    Platform {
        target: "x86_64-unknown-linux-gnu",
        label: "linux-x86_64",
        has_gpu: true,
        c_compiler: ("cc", "gcc"),
        linker: None,
        emulator: "qemu-x86_64-static",
    },
    Platform {
        target: "aarch64-unknown-linux-musl",
        label: "linux-arm64-static",
        has_gpu: false,
        c_compiler: (
            "aarch64-linux-gnu-gcc",
            "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
        ),
        linker: Some("rust-lld"),
        emulator: "qemu-aarch64-static",
    },
];

/// Builds the archives.
///
/// # Errors
/// Fails if this machine lacks a part, if a build fails, or if a program does not run.
pub fn run(args: &ArgMatches) -> anyhow::Result<()> {
    let targets: Vec<String> = args.get_many("target").into_iter().flatten().cloned().collect();
    let is_list = args.get_flag("list");
    let option = |name| args.get_one::<String>(name).expect("it has a default");
    let chosen = chosen(&targets)?;
    let mut ready = Vec::new();
    for platform in chosen {
        match platform.missing() {
            None => {
                println!("{}: can be built here", platform.target);
                ready.push(platform);
            }
            Some(missing) if targets.is_empty() || is_list => {
                println!("{}: left out; {missing}", platform.target);
            }
            Some(missing) => bail!("{}: {missing}", platform.target),
        }
    }
    if is_list {
        return Ok(());
    }
    ensure!(!ready.is_empty(), "nothing can be built here");
    let lock = fs::read_to_string(crate::workspace_root().join(PTX_LOCK));
    let pending = pending(&lock.with_context(|| format!("cannot read {PTX_LOCK}"))?);
    ensure!(
        pending.is_empty(),
        "the kernels are not of these sources yet: {}; `cargo lab ptx` builds them",
        pending.join(", ")
    );
    let out = crate::workspace_root().join(option("out"));
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let mut built = Vec::new();
    for platform in ready {
        built.push((platform, platform.build(option("profile"))?));
    }
    let (runner, program) = (built.iter().find(|(platform, _)| platform.runner().is_some()))
        .context("none of these programs runs here, so none can write the manual; add a target of this machine or install qemu-user-static")?;
    let manual = Manual::write(runner, program, &out)?;
    let mut sums = String::new();
    for (platform, program) in &built {
        let archive = pack(platform, program, &manual, &out)?;
        let bytes = fs::read(&archive)?;
        let name = archive
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        println!("{name}: {} bytes", bytes.len());
        let _ = writeln!(sums, "{}  {name}", hex(&Sha256::digest(&bytes)));
    }
    fs::remove_dir_all(&manual.folder)?;
    fs::write(out.join("SHA256SUMS"), sums)?;
    Ok(())
}

/// Says what the archive of kernels was built from.
const PTX_LOCK: &str = "kernels/ptx.lock";

/// Lists the sources of kernels that a lock marks as pending.
fn pending(lock: &str) -> Vec<String> {
    let files = lock.lines().filter_map(|line| line.strip_prefix("pending "));
    files
        .map(|file| file.split(' ').next().unwrap_or(file).to_owned())
        .collect()
}

/// Returns the requested platforms, or all.
fn chosen(targets: &[String]) -> anyhow::Result<Vec<&'static Platform>> {
    if targets.is_empty() {
        return Ok(PLATFORMS.iter().collect());
    }
    let find = |target: &String| {
        let known = || PLATFORMS.map(|platform| platform.target).join(", ");
        (PLATFORMS.iter().find(|platform| platform.target == target))
            .with_context(|| format!("`{target}` is none of {}", known()))
    };
    targets.iter().map(find).collect()
}

impl Platform {
    /// Returns the platform for the same processors whose programs use GPUs.
    fn with_gpu(&self) -> Option<&'static Self> {
        let processor = |platform: &Self| platform.target.split('-').next();
        (PLATFORMS.iter()).find(|other| other.has_gpu && processor(other) == processor(self))
    }

    /// Returns the missing part of this machine, with a hint on how to install it.
    fn missing(&self) -> Option<String> {
        let printed = Command::new("rustc")
            .args(["--print", "target-libdir", "--target", self.target])
            .output();
        let folder = printed.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        if !folder.is_ok_and(|folder| Path::new(&folder).is_dir()) {
            return Some(format!("run `rustup target add {}`", self.target));
        }
        let (compiler, package) = self.c_compiler;
        let is_there = Command::new(compiler).arg("--version").output().is_ok();
        (!is_there).then(|| format!("there is no {compiler}; on Debian `apt-get install {package}`"))
    }

    /// Builds the program; returns its path.
    fn build(&self, profile: &str) -> anyhow::Result<PathBuf> {
        println!("== {}", self.target);
        let root = crate::workspace_root();
        let mut command = Command::new(env!("CARGO"));
        command.current_dir(root);
        command.args(["build", "--locked", "--package", "tokenmill-cli"]);
        command.args(["--target", self.target, "--profile", profile]);
        if !self.has_gpu {
            command.arg("--no-default-features");
        }
        let names = self.target.replace('-', "_");
        command.env(format!("CC_{names}"), self.c_compiler.0);
        if let Some(linker) = self.linker {
            let upper = names.to_uppercase();
            command.env(format!("CARGO_TARGET_{upper}_LINKER"), linker);
        }
        let status = command.status().context("cannot run cargo")?;
        ensure!(status.success(), "the build for {} failed", self.target);
        let folder = if profile == "dev" { "debug" } else { profile };
        Ok(crate::target_dir()
            .join(self.target)
            .join(folder)
            .join("tokenmill"))
    }

    /// Returns the way to run its programs here, if there is one.
    fn runner(&self) -> Option<Runner> {
        if self.target.starts_with(env::consts::ARCH) && env::consts::OS == "linux" {
            return Some(Runner::Machine);
        }
        let is_there = Command::new(self.emulator).arg("--version").output().is_ok();
        is_there.then_some(Runner::Emulator(self.emulator))
    }

    /// Runs its program; `None` if this machine cannot run it.
    fn run(&self, program: &Path, args: &[&str]) -> anyhow::Result<Option<String>> {
        let Some(runner) = self.runner() else {
            return Ok(None);
        };
        let mut command = match runner {
            Runner::Emulator(emulator) => {
                let mut command = Command::new(emulator);
                command.arg(program);
                command
            }
            Runner::Machine => Command::new(program),
        };
        let output = command.args(args).output().context("cannot run the program")?;
        ensure!(
            output.status.success(),
            "`tokenmill {}` of {} failed: {}",
            args.join(" "),
            self.target,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(Some(String::from_utf8(output.stdout)?))
    }
}

/// A way to run a program here.
#[derive(Clone, Copy)]
enum Runner {
    /// The machine itself.
    Machine,
    /// This emulator.
    Emulator(&'static str),
}

/// The files that are the same in all archives.
struct Manual {
    folder: PathBuf,
}

impl Manual {
    /// Lets a program write its manual and its completions.
    fn write(platform: &Platform, program: &Path, out: &Path) -> anyhow::Result<Self> {
        let folder = out.join("manual");
        let man = folder.join("man");
        let completions = folder.join("completions");
        fs::create_dir_all(&completions)?;
        platform.run(program, &["man", &man.to_string_lossy()])?;
        for (shell, name) in [
            ("bash", "tokenmill.bash"),
            ("zsh", "_tokenmill"),
            ("fish", "tokenmill.fish"),
        ] {
            let script = platform
                .run(program, &["completions", shell])?
                .unwrap_or_default();
            fs::write(completions.join(name), script)?;
        }
        Ok(Self { folder })
    }
}

/// Writes the archive of a platform; returns its path.
fn pack(platform: &Platform, program: &Path, manual: &Manual, out: &Path) -> anyhow::Result<PathBuf> {
    let linkage = Linkage::of(&fs::read(program)?)?;
    ensure!(
        platform.has_gpu || linkage == Linkage::Static,
        "the program for {} needs libraries: {linkage:?}",
        platform.target
    );
    let ran = platform.run(
        program,
        &[
            "run",
            "--raw",
            "demo",
            "Once upon a time",
            "-n",
            "4",
            "--temp",
            "0",
        ],
    )?;
    if ran.is_none() {
        println!("{}: not run, this machine is of another kind", platform.target);
    }
    let name = format!("tokenmill-{}-{}", env!("CARGO_PKG_VERSION"), platform.label);
    let folder = out.join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    fs::copy(program, folder.join("tokenmill"))?;
    copy_folder(&manual.folder, &folder)?;
    texts::write(&folder, &instructions(platform, &linkage))?;
    fs::write(
        folder.join("THIRD-PARTY.txt"),
        licenses::text(platform.target, platform.has_gpu)?,
    )?;
    let archive = out.join(format!("{name}.tar.gz"));
    // Sorted, without owners and times, so that it depends only on the files.
    let status = Command::new("tar")
        .args([
            "--sort=name",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            "--mtime=@0",
        ])
        .args(["--use-compress-program", "gzip -n -9", "-cf"])
        .arg(&archive)
        .arg("-C")
        .arg(out)
        .arg(&name)
        .status()
        .context("cannot run tar")?;
    ensure!(status.success(), "tar failed at {}", archive.display());
    fs::remove_dir_all(&folder)?;
    Ok(archive)
}

/// Returns the instructions in an archive, for people.
fn instructions(platform: &Platform, linkage: &Linkage) -> String {
    let needs = match linkage {
        Linkage::Static => "It needs nothing but the kernel.".to_owned(),
        Linkage::Dynamic {
            glibc: Some((major, minor)),
        } => format!("It needs glibc {major}.{minor} or newer."),
        Linkage::Dynamic { glibc: None } => "It needs the system's C library.".to_owned(),
    };
    let gpu = match platform.with_gpu() {
        Some(own) if own.target == platform.target => {
            "NVIDIA GPUs are used where their driver is installed.".to_owned()
        }
        Some(other) => format!(
            "It computes on the CPU;\nthe archive {} uses NVIDIA GPUs, too.",
            other.label
        ),
        None => "It computes on the CPU.".to_owned(),
    };
    format!(
        "tokenmill {version} for {label}\n\n\
         {needs} {gpu}\n\n\
         To try it, in this folder:\n\n\
         \x20   ./tokenmill run demo \"Once upon a time\"\n\
         \x20   ./tokenmill doctor\n\n\
         To install it for one user:\n\n\
         \x20   mkdir -p ~/.local/bin ~/.local/share/man/man1\n\
         \x20   cp tokenmill ~/.local/bin/\n\
         \x20   cp man/*.1 ~/.local/share/man/man1/\n\n\
         Where the shell does not find it, add this to ~/.profile and log in again:\n\n\
         \x20   export PATH=\"$HOME/.local/bin:$PATH\"\n\
         \x20   export MANPATH=\"$HOME/.local/share/man:\"\n\n\
         Completions, by shell:\n\n\
         \x20   bash  completions/tokenmill.bash to ~/.local/share/bash-completion/completions/tokenmill\n\
         \x20   zsh   completions/_tokenmill to a folder of $fpath\n\
         \x20   fish  completions/tokenmill.fish to ~/.config/fish/completions/\n\n\
         Then:\n\n\
         \x20   tokenmill chat OWNER/REPOSITORY     a model of the Hugging Face Hub, downloaded at the first use\n\
         \x20   tokenmill serve OWNER/REPOSITORY    the same behind OpenAI's, Anthropic's and Ollama's APIs, and a web page\n\
         \x20   tokenmill --help                    everything else; README.md and docs/ say more\n\n\
         To remove it, delete these files. Downloaded models are in ~/.cache/huggingface; `tokenmill list` names them, `tokenmill rm` removes them.\n",
        version = env!("CARGO_PKG_VERSION"),
        label = platform.label,
    )
}

fn copy_folder(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_is_not_in_the_list_is_refused_by_name() {
        let error = chosen(&["riscv".to_owned()]).map(drop).unwrap_err().to_string();
        assert!(
            error.starts_with("`riscv` is none of x86_64-unknown-linux-musl,"),
            "{error}"
        );
        assert_eq!(chosen(&[]).unwrap().len(), PLATFORMS.len());
    }

    #[test]
    fn sources_that_are_to_be_built_later_are_named() {
        let lock =
            "# pending FILE\nsource a.cu 01\npending b.cuh 02\nmodule pending 3 04\n  pending 5 shared 6\n";
        assert_eq!(pending(lock), ["b.cuh"]);
    }

    #[test]
    fn instructions_say_what_the_program_needs() {
        let text = instructions(&PLATFORMS[1], &Linkage::Dynamic { glibc: Some((2, 34)) });
        assert!(text.contains("glibc 2.34 or newer"), "{text}");
        let text = instructions(&PLATFORMS[0], &Linkage::Static);
        assert!(
            text.contains("nothing but the kernel") && text.contains("on the CPU"),
            "{text}"
        );
        assert!(
            text.contains("the archive linux-x86_64 uses NVIDIA GPUs"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.len() <= 140), "{text}");
        let text = instructions(&PLATFORMS[2], &Linkage::Static);
        assert!(!text.contains("NVIDIA"), "{text}");
    }

    #[test]
    fn a_program_without_cuda_names_the_archive_that_has_it() {
        let said = include_str!("../../crates/tokenmill/src/gpu.rs");
        let named = |label: &str| format!("`tokenmill-*-{label}`");
        let with_gpu: Vec<_> = PLATFORMS.iter().filter(|platform| platform.has_gpu).collect();
        assert_eq!(with_gpu.len(), 1, "the message knows of one");
        assert!(said.contains(&named(with_gpu[0].label)));
        // The others have its name with this at the end.
        let without = PLATFORMS.iter().filter(|platform| !platform.has_gpu);
        assert!(
            without
                .map(|platform| platform.label)
                .all(|label| label.ends_with("-static"))
        );
    }
}
