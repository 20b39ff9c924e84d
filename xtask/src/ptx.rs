//! `ptx`: builds every kernel to PTX, reports what each needs on each GPU generation, and keeps the committed PTX honest.
//!
//! The compiler comes as pinned Python wheels into a cache folder below `target`, fetched once; its output is the same on
//! every machine, so `--check` compares bytes. Users never run this: they load the committed PTX. Invariant: what is written
//! assembles for every GPU of `ARCHITECTURES`, and no kernel keeps registers in memory.

mod modules;
mod toolchain;

use std::{fmt::Write as _, fs, path::Path, process::Command};

use anyhow::{Context, bail, ensure};

use self::{
    modules::{MODULES, Module},
    toolchain::Toolchain,
};

/// Builds the kernels to PTX and reports their registers, shared memory and spills
#[derive(clap::Args)]
pub struct Args {
    /// Compare with the committed PTX instead of writing it; skipped where the compiler cannot be had.
    #[arg(long)]
    check: bool,
    /// Only modules whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
    /// Do not assemble for every GPU.
    #[arg(long)]
    no_report: bool,
}

impl Args {
    /// What `cargo xtask ci` runs: bytes only.
    pub(crate) fn check() -> Self {
        Self {
            check: true,
            filter: String::new(),
            no_report: true,
        }
    }
}

/// GPU generations that the PTX must assemble for: Ampere, Ada, Hopper, two Blackwells.
const ARCHITECTURES: [&str; 5] = ["sm_80", "sm_89", "sm_90a", "sm_100", "sm_120"];

/// The PTX version that is claimed: the oldest that has everything the kernels use, so that older drivers load it.
const PTX_VERSION: &str = "7.4";

/// What the assembler says about a kernel on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Resources {
    registers: u32,
    shared_bytes: u32,
    spilled_bytes: u32,
}

/// Builds or checks all modules.
///
/// # Errors
/// The compiler's message, a kernel that spills, or, with `--check`, PTX that differs.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let root = crate::workspace_root();
    let toolchain = match Toolchain::fetch(&root.join("target/cuda-toolchain")) {
        Ok(toolchain) => toolchain,
        Err(reason) if args.check => {
            println!("ptx: skipped, the compiler cannot be had: {reason:#}");
            return Ok(());
        }
        Err(reason) => return Err(reason),
    };
    let kernels = root.join("kernels");
    let output = kernels.join("ptx");
    fs::create_dir_all(&output).with_context(|| format!("cannot create {}", output.display()))?;
    let scratch = root.join("target/ptx");
    fs::create_dir_all(&scratch).with_context(|| format!("cannot create {}", scratch.display()))?;
    let mut n_differing = 0;
    let mut table = Vec::new();
    for module in MODULES.iter().filter(|module| module.name.contains(&args.filter)) {
        let built = compile(&toolchain, &kernels, module, &scratch)?;
        let committed = output.join(format!("{}.ptx", module.name));
        if !args.check {
            fs::write(&committed, &built).with_context(|| format!("cannot write {}", committed.display()))?;
        } else if fs::read_to_string(&committed).ok().as_deref() != Some(&built) {
            println!("ptx: {} differs from its sources", committed.display());
            n_differing += 1;
        }
        if !args.no_report {
            table.extend(assemble(&toolchain, module, &built, &scratch)?);
        }
    }
    ensure!(
        n_differing == 0,
        "{n_differing} modules differ; run `cargo xtask ptx` and commit what it writes"
    );
    print!("{}", render(&table));
    let spilling: Vec<&str> = table
        .iter()
        .filter(|(_, resources)| resources.iter().any(|resources| resources.spilled_bytes > 0))
        .map(|(name, _)| name.as_str())
        .collect();
    if !spilling.is_empty() {
        bail!("these kernels spill registers: {}", spilling.join(", "));
    }
    if args.no_report {
        println!("ptx: modules in order");
    } else {
        println!("ptx: {} kernels in order", table.len());
    }
    Ok(())
}

/// Compiles one module and lowers its version line.
fn compile(toolchain: &Toolchain, kernels: &Path, module: &Module, scratch: &Path) -> anyhow::Result<String> {
    let target = scratch.join(format!("{}.ptx", module.name));
    let mut command = Command::new(toolchain.nvcc());
    command
        .args(["-ptx", "-arch=compute_80", "-std=c++17", "-O3"])
        .args(module.flags)
        .args(module.defines().iter().map(|define| format!("-D{define}")))
        .arg(kernels.join(module.source))
        .arg("-o")
        .arg(&target);
    run_quietly(&mut command, module.name)?;
    let text = fs::read_to_string(&target).with_context(|| format!("cannot read {}", target.display()))?;
    lower_version(&text).with_context(|| format!("{}: the compiler wrote no version line", module.name))
}

fn lower_version(ptx: &str) -> Option<String> {
    let start = ptx.find("\n.version ")? + 1;
    let end = start + ptx[start..].find('\n')?;
    Some(format!("{}.version {PTX_VERSION}{}", &ptx[..start], &ptx[end..]))
}

/// Assembles a module for every GPU. Each kernel comes with its resources by architecture.
fn assemble(
    toolchain: &Toolchain,
    module: &Module,
    ptx: &str,
    scratch: &Path,
) -> anyhow::Result<Vec<(String, Vec<Resources>)>> {
    let source = scratch.join(format!("{}.lowered.ptx", module.name));
    fs::write(&source, ptx).with_context(|| format!("cannot write {}", source.display()))?;
    let mut kernels: Vec<(String, Vec<Resources>)> = Vec::new();
    for architecture in ARCHITECTURES {
        let mut command = Command::new(toolchain.ptxas());
        command
            .arg("-v")
            .arg(format!("-arch={architecture}"))
            .arg(&source)
            .args(["-o", "/dev/null"]);
        let log = run_quietly(&mut command, module.name)?;
        for (kernel, resources) in parse_log(&log) {
            let name = format!("{}/{kernel}", module.name);
            match kernels.iter_mut().find(|(known, _)| *known == name) {
                Some((_, list)) => list.push(resources),
                None => kernels.push((name, vec![resources])),
            }
        }
    }
    kernels.sort();
    Ok(kernels)
}

impl PartialOrd for Resources {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Resources {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.registers.cmp(&other.registers)
    }
}

/// Runs a tool; its standard error is the result, or the error if it failed.
fn run_quietly(command: &mut Command, what: &str) -> anyhow::Result<String> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {}", command.get_program().to_string_lossy()))?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{what}: {log}");
    Ok(log)
}

/// Reads the assembler's `-v` output: a line that names the kernel, one with its spills, one with its registers.
fn parse_log(log: &str) -> Vec<(String, Resources)> {
    let number_before = |line: &str, unit: &str| -> u32 {
        line.find(unit)
            .and_then(|at| line[..at].split_whitespace().next_back()?.parse().ok())
            .unwrap_or(0)
    };
    let mut kernels = Vec::new();
    let (mut name, mut spilled_bytes) = (None, 0);
    for line in log.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            name = rest.split('\'').next().map(str::to_owned);
        } else if line.contains("bytes spill stores") {
            spilled_bytes = number_before(line, " bytes spill stores");
        } else if line.contains(" registers")
            && let Some(name) = name.take()
        {
            let resources = Resources {
                registers: number_before(line, " registers"),
                shared_bytes: number_before(line, " bytes smem"),
                spilled_bytes,
            };
            kernels.push((name, resources));
        }
    }
    kernels
}

/// A table of registers by architecture, with static shared memory and the worst spill.
fn render(table: &[(String, Vec<Resources>)]) -> String {
    if table.is_empty() {
        return String::new();
    }
    let mut text = format!("{:<40}", "kernel");
    for architecture in ARCHITECTURES {
        let _ = write!(text, "{architecture:>8}");
    }
    text += "  shared  spills\n";
    for (name, resources) in table {
        let _ = write!(text, "{name:<40}");
        for one in resources {
            let _ = write!(text, "{:>8}", one.registers);
        }
        let shared = resources.iter().map(|one| one.shared_bytes).max().unwrap_or(0);
        let spilled = resources.iter().map(|one| one.spilled_bytes).max().unwrap_or(0);
        let _ = writeln!(text, "{shared:>8}{spilled:>8}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_line_is_lowered_and_nothing_else() {
        let ptx = "// version 9.0\n.version 9.0\n.target sm_80\n";
        assert_eq!(
            lower_version(ptx).as_deref(),
            Some("// version 9.0\n.version 7.4\n.target sm_80\n")
        );
        assert_eq!(lower_version("// nothing"), None);
    }

    #[test]
    fn the_assemblers_log_gives_each_kernels_resources() {
        let log = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'norm' for 'sm_80'\n\
            ptxas info    : Function properties for norm\n    \
            8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n\
            ptxas info    : Used 32 registers, used 1 barriers, 48 bytes smem, 400 bytes cmem[0]\n";
        let expected = Resources {
            registers: 32,
            shared_bytes: 48,
            spilled_bytes: 4,
        };
        assert_eq!(parse_log(log), [("norm".to_owned(), expected)]);
    }

    #[test]
    fn every_module_has_its_source_and_every_committed_file_its_module() {
        let kernels = crate::workspace_root().join("kernels");
        for module in MODULES {
            assert!(kernels.join(module.source).exists(), "{}", module.source);
            let committed = kernels.join("ptx").join(format!("{}.ptx", module.name));
            assert!(committed.exists(), "{}", committed.display());
        }
        for entry in fs::read_dir(kernels.join("ptx")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let is_known = MODULES
                .iter()
                .any(|module| format!("{}.ptx", module.name) == name);
            assert!(is_known, "kernels/ptx/{name} belongs to no module");
        }
    }
}
