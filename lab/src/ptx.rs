//! `ptx`: builds every kernel to PTX, and keeps the committed archive and its lock consistent.
//!
//! The compiler comes as pinned Python wheels into a cache folder below `target`, fetched once; its output is the same on
//! every machine, so `--check` compares bytes. Users never run this: the archive is compiled into the program. A module that
//! did not change keeps its compressed bytes and its lines of the lock. Between rebuilds sources may be pending (`sources`). Invariant: what is written assembles for every GPU of
//! `ARCHITECTURES`, and no kernel keeps registers in memory.

mod audit;
mod code;
mod lock;
mod rounding;
mod sources;
mod toolchain;

use std::{borrow::Cow, fs, path::Path, process::Command};

use anyhow::{Context, ensure};
use tokenmill_cuda_exec::{
    Cubins,
    modules::{self, Entry, KernelModule, Target},
};
use tokenmill_gguf::TensorType;
use tokenmill_ptx_sim::Assembled;
use tokenmill_sim_driver::AssembledKernels;

pub(crate) use self::lock::hex;
use self::{
    code::Code,
    lock::{ARCHITECTURES, HOPPER, Lock, LockedModule, Resources, sha256},
    rounding::with_roundings,
    toolchain::{Disassembler, Toolchain},
};

/// Builds the kernels to PTX and reports their registers, shared memory and spills
#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "options of a command")]
pub struct Args {
    /// Compare with the committed PTX instead of writing it; skipped where the compiler cannot be had.
    #[arg(long)]
    check: bool,
    /// Assemble the committed PTX and check the code: nothing is fused that the PTX rounds separately, and matrix and copy instructions are
    /// there.
    #[arg(long, conflicts_with = "check")]
    audit: bool,
    /// With `--check`: refuse sources that are pending.
    #[arg(long = "final", requires = "check")]
    is_final: bool,
    /// Note in the lock which sources the committed PTX is not of, and build nothing: it is built in the commit that ends a piece of
    /// work.
    #[arg(long, conflicts_with_all = ["check", "audit", "filter"])]
    pending: bool,
    /// Only modules whose name contains this.
    #[arg(long, default_value = "")]
    filter: String,
    /// Print the committed PTX of a module, and do nothing else.
    #[arg(long, value_name = "MODULE", conflicts_with_all = ["check", "audit", "filter", "pending"])]
    print: Option<String>,
}

/// The archive, in the crate that loads it, so that its package has it.
pub(crate) const ARCHIVE: &str = "crates/cuda-exec/kernels.ptx.z";
/// Lists the contents of the archive for reviews.
const LOCK: &str = "kernels/ptx.lock";

/// GPUs without launches that begin before earlier ones are done.
const FIRST_ARCHITECTURES: [&str; 2] = ["sm_80", "sm_89"];

/// Name of [`HOPPER`]'s generation in an archive of code.
const HOPPER_CODE: &str = "sm_90";

/// Builds or checks all modules.
///
/// # Errors
/// The compiler's message, a kernel that spills, or, with `--check`, PTX that differs.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let root = crate::workspace_root();
    let archive = fs::read(root.join(ARCHIVE)).with_context(|| format!("cannot read {ARCHIVE}"))?;
    let committed: Vec<Entry<'_>> = Entry::all(&archive).collect();
    if let Some(name) = &args.print {
        let entry = committed.iter().find(|entry| entry.name == *name);
        let ptx = entry.and_then(Entry::ptx);
        print!(
            "{}",
            ptx.with_context(|| format!("no module {name}; {LOCK} lists them"))?
        );
        return Ok(());
    }
    // Selecting no module is not a success.
    ensure!(
        (modules::all().iter()).any(|module| module.name.contains(&args.filter)),
        "no module's name contains `{}`; {LOCK} lists them",
        args.filter
    );
    let text = fs::read_to_string(root.join(LOCK)).with_context(|| format!("cannot read {LOCK}"))?;
    let mut lock = Lock::parse(&text).with_context(|| format!("{LOCK} is not as this command writes it"))?;
    let sources = sources::hashes(&root.join("kernels"))?;
    if args.pending {
        lock.pending = sources::differing(&lock.sources, &sources);
        fs::write(root.join(LOCK), lock.to_string()).with_context(|| format!("cannot write {LOCK}"))?;
        println!("ptx: {} sources are pending", lock.pending.len());
        return Ok(());
    }
    if args.check {
        sources::check(&lock, &sources)?;
        let pending: Vec<&str> = lock.pending.keys().map(String::as_str).collect();
        if !pending.is_empty() {
            println!(
                "ptx: pending, to be built by `cargo lab ptx`: {}",
                pending.join(", ")
            );
        }
        ensure!(
            pending.is_empty() || !args.is_final,
            "{} sources are pending",
            pending.len()
        );
    }
    let toolchain = match Toolchain::fetch(&root.join("target/cuda-toolchain")) {
        Ok(toolchain) => toolchain,
        Err(reason) if args.check => {
            println!("ptx: skipped, the compiler cannot be had: {reason:#}");
            return Ok(());
        }
        Err(reason) => return Err(reason),
    };
    let scratch = root.join("target/ptx");
    fs::create_dir_all(&scratch).with_context(|| format!("cannot create {}", scratch.display()))?;
    if args.audit {
        let disassembler = Disassembler::fetch(&root.join("target/cuda-disassembler"))?;
        let named = |module: KernelModule| {
            let locked = lock.modules.iter().find(|locked| locked.name == module.name);
            let locked = locked.with_context(|| format!("{LOCK} has no module {}", module.name))?;
            anyhow::Ok((module, locked))
        };
        let audited: anyhow::Result<Vec<_>> = (modules::all().into_iter())
            .filter(|module| module.name.contains(&args.filter))
            .map(named)
            .collect();
        return audit::run(&toolchain, &disassembler, &audited?, &scratch);
    }
    let (mut new_archive, mut new_lock) = (Vec::new(), Lock::default());
    let mut differing = Vec::new();
    for module in modules::all() {
        let entry = committed.iter().find(|entry| entry.name == module.name);
        let locked = lock.modules.iter().find(|locked| locked.name == module.name);
        let known = entry.zip(locked);
        if !module.name.contains(&args.filter) {
            let (entry, locked) = known.with_context(|| format!("{} was never built", module.name))?;
            entry.append_to(&mut new_archive);
            new_lock.modules.push(locked.clone());
            continue;
        }
        let ptx = compile(&toolchain, &root.join("kernels"), &module, &scratch)?;
        let same = known.filter(|(entry, locked)| {
            locked.sha256 == sha256(&ptx) && entry.ptx().as_deref() == Some(ptx.as_str())
        });
        if let Some((entry, locked)) = same {
            entry.append_to(&mut new_archive);
            new_lock.modules.push(locked.clone());
            continue;
        }
        println!("ptx: {} differs from what is committed", module.name);
        differing.push(module.name.clone());
        if args.check {
            continue;
        }
        Entry::append(&mut new_archive, &module.name, ptx.as_bytes());
        let locked = LockedModule {
            sha256: sha256(&ptx),
            ptx_bytes: ptx.len(),
            kernels: assemble(&toolchain, &module, &ptx, &scratch)?,
            name: module.name,
        };
        for (kernel, resources) in &locked.kernels {
            let spilled_bytes = (resources.iter().flatten())
                .map(|one| one.spilled_bytes)
                .max()
                .unwrap_or(0);
            ensure!(
                spilled_bytes == 0,
                "{}: {kernel} spills {spilled_bytes} bytes",
                locked.name
            );
        }
        new_lock.modules.push(locked);
    }
    if args.check {
        ensure!(
            !lock.pending.is_empty()
                || differing.is_empty() && new_archive == archive && new_lock.modules == lock.modules,
            "{} modules differ; run `cargo lab ptx` and commit what it writes",
            differing.len()
        );
        match (lock.pending.len(), new_lock.modules.len()) {
            (0, n_modules) => println!("ptx: {n_modules} modules in order"),
            (_, n_modules) => println!(
                "ptx: {} of {} modules differ until then",
                differing.len(),
                n_modules + differing.len()
            ),
        }
        return Ok(());
    }
    if args.filter.is_empty() {
        new_lock.sources = sources;
    } else {
        // Other modules may be built from the earlier sources.
        new_lock.pending = sources::differing(&lock.sources, &sources);
        new_lock.sources = lock.sources;
    }
    fs::write(root.join(ARCHIVE), new_archive).with_context(|| format!("cannot write {ARCHIVE}"))?;
    fs::write(root.join(LOCK), new_lock.to_string()).with_context(|| format!("cannot write {LOCK}"))?;
    println!(
        "ptx: {} of {} modules written",
        differing.len(),
        new_lock.modules.len()
    );
    Ok(())
}

/// Returns the hash of a text, in the form of the lock.
pub(crate) fn hash(text: &str) -> String {
    sha256(text)
}

/// Returns an archive of all kernels as the code of one GPU generation, such as `sm_90`, for drivers without a compiler.
///
/// # Errors
/// No assembler, or its message.
pub(crate) fn cubins(architecture: &str) -> anyhow::Result<Vec<u8>> {
    let root = crate::workspace_root();
    let toolchain = Toolchain::fetch(&root.join("target/cuda-toolchain"))?;
    let scratch = root.join("target/ptx");
    fs::create_dir_all(&scratch).with_context(|| format!("cannot create {}", scratch.display()))?;
    let (source, target) = (scratch.join("module.ptx"), scratch.join("module.cubin"));
    let mut archive = Cubins::header();
    for module in modules::all() {
        // Code of only one generation has a name of its own.
        let exact = match module.target {
            Target::All => architecture,
            Target::Hopper if architecture == HOPPER_CODE => HOPPER,
            Target::Hopper => continue,
        };
        let name = module.name.as_str();
        let ptx = modules::ptx(name).with_context(|| format!("the archive has no PTX of {name}"))?;
        // Newer GPUs support early launches with code compiled ahead, too.
        let text = text_for(&module, &ptx, exact).with_context(|| format!("{name} is not for {exact}"))?;
        fs::write(&source, &*text).with_context(|| format!("cannot write {}", source.display()))?;
        let mut command = Command::new(toolchain.ptxas());
        command
            .arg(format!("-arch={exact}"))
            .arg(&source)
            .arg("-o")
            .arg(&target);
        run_quietly(&mut command, name)?;
        let code = fs::read(&target).with_context(|| format!("cannot read {}", target.display()))?;
        Entry::append(&mut archive, &format!("{architecture}/{name}"), &code);
    }
    Ok(archive)
}

/// Returns the registers and the bytes of code of every kernel on an architecture, from the lock; `None` for an architecture that it lacks.
pub(crate) fn assembled(architecture: &str) -> Option<AssembledKernels> {
    let column = ARCHITECTURES.iter().position(|name| *name == architecture)?;
    let lock = Lock::parse(&fs::read_to_string(crate::workspace_root().join(LOCK)).ok()?)?;
    let mut assembled = AssembledKernels::new();
    for module in lock.modules {
        for (kernel, resources) in module.kernels {
            if let Some(resources) = resources.get(column)? {
                let one = Assembled {
                    n_registers: resources.registers,
                    code_bytes: resources.code_bytes,
                };
                assembled.insert((module.name.clone(), kernel), one);
            }
        }
    }
    Some(assembled)
}

/// Returns the preprocessor definitions of a module: the types it is compiled for and the headers that define them.
fn defines(module: &KernelModule) -> Vec<String> {
    let names = [("FORMAT", "HEADER"), ("SECOND", "SECOND_HEADER")];
    let types = module.types.iter().zip(names);
    let define = |(ty, (format, header)): (&TensorType, (&str, &str))| {
        let file = match modules::type_suffix(*ty) {
            Some(suffix) if ty.block_len() > 1 => suffix,
            _ => "float",
        };
        [
            format!("-D{format}={}", ty.name()),
            format!("-D{header}=\"formats/{file}.cuh\""),
        ]
    };
    types.flat_map(define).collect()
}

/// Compiles one module, lowers its PTX version, removes the folder from its names and makes its roundings explicit.
fn compile(
    toolchain: &Toolchain,
    kernels: &Path,
    module: &KernelModule,
    scratch: &Path,
) -> anyhow::Result<String> {
    let target = scratch.join(format!("{}.ptx", module.name));
    let mut command = Command::new(toolchain.nvcc());
    command
        .args(["-ptx", "-std=c++17", "-O3"])
        .arg(format!("-arch=compute_{}", module.target.architecture()))
        .args(module.flags)
        .args(defines(module))
        .arg(kernels.join(module.source))
        .arg("-o")
        .arg(&target);
    run_quietly(&mut command, &module.name)?;
    let text = fs::read_to_string(&target).with_context(|| format!("cannot read {}", target.display()))?;
    let text = lower_version(&text, module.target.ptx_version())
        .with_context(|| format!("{}: the compiler wrote no version line", module.name))?;
    Ok(with_roundings(&without_folder(&text)))
}

fn lower_version(ptx: &str, version: &str) -> Option<String> {
    let start = ptx.find("\n.version ")? + 1;
    let end = start + ptx[start..].find('\n')?;
    Some(format!("{}.version {version}{}", &ptx[..start], &ptx[end..]))
}

/// Replaces the hash of the source's path, which the compiler puts into the names of shared memory, so that every folder
/// gives the same bytes.
fn without_folder(ptx: &str) -> String {
    const MARK: &str = "_INTERNAL_";
    const HASH_LEN: usize = 8;
    let mut parts = ptx.split(MARK);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_hash =
            part.len() > HASH_LEN && part.bytes().take(HASH_LEN).all(|byte| byte.is_ascii_hexdigit());
        text += MARK;
        if is_hash {
            text += &"0".repeat(HASH_LEN);
            text += &part[HASH_LEN..];
        } else {
            text += part;
        }
    }
    text
}

/// Assembles a module for every GPU, in the form that the GPU gets. Each kernel comes with its resources by architecture.
fn assemble(
    toolchain: &Toolchain,
    module: &KernelModule,
    ptx: &str,
    scratch: &Path,
) -> anyhow::Result<Vec<(String, Vec<Option<Resources>>)>> {
    let (source, target) = (
        scratch.join(format!("{}.lowered.ptx", module.name)),
        scratch.join(format!("{}.cubin", module.name)),
    );
    let mut kernels: Vec<(String, Vec<Option<Resources>>)> = Vec::new();
    for (column, architecture) in ARCHITECTURES.into_iter().enumerate() {
        let Some(text) = text_for(module, ptx, architecture) else {
            continue;
        };
        fs::write(&source, &*text).with_context(|| format!("cannot write {}", source.display()))?;
        let mut command = Command::new(toolchain.ptxas());
        command
            .arg("-v")
            .arg(format!("-arch={architecture}"))
            .arg(&source)
            .arg("-o")
            .arg(&target);
        let log = run_quietly(&mut command, &module.name)?;
        // The assembler then waits for each matrix operation before the next.
        ensure!(!log.contains("serialized"), "{}: {log}", module.name);
        let file = fs::read(&target).with_context(|| format!("cannot read {}", target.display()))?;
        let code = Code::read(&file).with_context(|| format!("{}: no code", module.name))?;
        for (name, mut resources) in parse_log(&log) {
            let code = code.kernels.get(name.as_str());
            let code = code.with_context(|| format!("{}: {name} has no code", module.name))?;
            resources.code_bytes = code.len().try_into()?;
            let index = kernels.iter().position(|(known, _)| *known == name);
            let index = index.unwrap_or_else(|| {
                kernels.push((name, vec![None; ARCHITECTURES.len()]));
                kernels.len() - 1
            });
            kernels[index].1[column] = Some(resources);
        }
    }
    kernels.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(kernels)
}

/// Returns the PTX of a module for a GPU; `None` if the module is not for it.
pub(crate) fn text_for<'a>(module: &KernelModule, ptx: &'a str, architecture: &str) -> Option<Cow<'a, str>> {
    if module.target == Target::Hopper && architecture != HOPPER {
        return None;
    }
    let begins_early = !FIRST_ARCHITECTURES.contains(&architecture);
    let early = begins_early.then(|| modules::early_variant(ptx)).flatten();
    Some(early.map_or(Cow::Borrowed(ptx), Cow::Owned))
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
                code_bytes: 0,
            };
            kernels.push((name, resources));
        }
    }
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_filter_that_no_module_matches_is_an_error() {
        for words in [&["--audit"][..], &["--check"], &["--check", "--final"], &[]] {
            let words = ["ptx", "--filter", "matvec_q9_z"].iter().chain(words);
            let line = <Line as clap::Parser>::try_parse_from(words).unwrap();
            let error = run(&line.args).unwrap_err().to_string();
            assert_eq!(
                error,
                "no module's name contains `matvec_q9_z`; kernels/ptx.lock lists them"
            );
        }
    }

    #[test]
    fn the_version_line_is_lowered_and_nothing_else() {
        let ptx = "// version 9.0\n.version 9.0\n.target sm_80\n";
        assert_eq!(
            lower_version(ptx, "7.4").as_deref(),
            Some("// version 9.0\n.version 7.4\n.target sm_80\n")
        );
        assert_eq!(lower_version("// nothing", "7.4"), None);
    }

    #[test]
    fn names_do_not_tell_the_folder() {
        let check = |ptx: &str, expected: &str| assert_eq!(without_folder(ptx), expected);
        check(
            ".shared _ZZN39_INTERNAL_6057c617_9_a_cu_0c;\nld _ZZN39_INTERNAL_6057c617_9_a_cu_0c;",
            ".shared _ZZN39_INTERNAL_00000000_9_a_cu_0c;\nld _ZZN39_INTERNAL_00000000_9_a_cu_0c;",
        );
        check("_INTERNAL_xyz, _INTERNAL_", "_INTERNAL_xyz, _INTERNAL_");
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
            code_bytes: 0,
        };
        assert_eq!(parse_log(log), [("norm".to_owned(), expected)]);
    }

    #[test]
    fn every_module_has_its_source() {
        let kernels = crate::workspace_root().join("kernels");
        for module in modules::all() {
            assert!(kernels.join(module.source).exists(), "{}", module.source);
            for define in defines(&module).iter().filter(|define| define.ends_with("cuh\"")) {
                let header = define.split('"').nth(1).unwrap();
                assert!(kernels.join(header).exists(), "{header}");
            }
        }
    }

    /// Without explicit roundings, results could depend on the driver and on the kernel.
    #[test]
    fn every_sum_and_product_of_the_archive_names_its_rounding() {
        for name in modules::names() {
            let ptx = modules::ptx(name).unwrap();
            assert_eq!(rounding::n_unrounded(&ptx), 0, "{name}");
        }
    }

    #[test]
    fn every_source_is_as_it_was_built_or_pending() {
        let root = crate::workspace_root();
        let lock = Lock::parse(&fs::read_to_string(root.join(LOCK)).unwrap()).unwrap();
        sources::check(&lock, &sources::hashes(&root.join("kernels")).unwrap()).unwrap();
    }

    #[test]
    fn the_lock_says_what_is_in_the_archive() {
        let text = fs::read_to_string(crate::workspace_root().join(LOCK)).unwrap();
        let lock = Lock::parse(&text).unwrap();
        assert_eq!(lock.to_string(), text);
        let names: Vec<&str> = lock.modules.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(names, modules::names().collect::<Vec<_>>());
        for module in &lock.modules {
            let ptx = modules::ptx(&module.name).unwrap();
            assert_eq!(
                (module.ptx_bytes, module.sha256.as_str()),
                (ptx.len(), sha256(&ptx).as_str())
            );
            let mut kernels: Vec<&str> = (ptx.split(".entry ").skip(1))
                .filter_map(|rest| rest.split('(').next())
                .map(str::trim)
                .collect();
            kernels.sort_unstable();
            let locked: Vec<&str> = module.kernels.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(locked, kernels, "{}", module.name);
        }
    }
}
