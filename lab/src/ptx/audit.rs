//! `ptx --audit` checks that the assembler's output matches the PTX of the archive.
//!
//! The build does not audit: an audit takes two assemblies and a disassembly of each module for each GPU. It replaces a run on GPUs that
//! are not available: products and sums are fused only where the PTX fuses them, the fast instructions exist, and the lock records the
//! length of the code. Invariant: a finding names module, kernel and GPU.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use rayon::prelude::*;
use tokenmill_cuda_exec::modules::{self, KernelModule};

use super::{
    code::Code,
    lock::{ARCHITECTURES, LockedModule},
    run_quietly, text_for,
    toolchain::{Disassembler, Toolchain},
};

/// Prefixes of PTX instructions, with the GPU instructions of which at least one must be there.
const KEPT: [(&str, &[&str]); 7] = [
    ("wgmma.mma_async", &["HGMMA", "IGMMA"]),
    ("mma.sync", &["HMMA", "IMMA", "QMMA"]),
    ("ldmatrix", &["LDSM"]),
    ("cp.async.ca", &["LDGSTS"]),
    ("cp.async.cg", &["LDGSTS"]),
    ("cp.async.bulk.shared", &["UBLKCP"]),
    ("dp4a", &["IDP"]),
];
/// Fused multiply-adds, in PTX and in GPU code.
const FUSED: [(&str, &str); 3] = [
    ("fma.rn.f32", "FFMA"),
    ("fma.rn.f64", "DFMA"),
    ("fma.rn.f16x2", "HFMA2"),
];

/// Number of each instruction of a kernel.
type OfKernel = BTreeMap<String, usize>;
/// The same of each kernel.
type Counts = BTreeMap<String, OfKernel>;

static NONE: OfKernel = OfKernel::new();

/// Holds a module's report: a line for each GPU, and what is wrong.
#[derive(Default)]
struct Audited {
    lines: String,
    findings: Vec<String>,
}

/// Audits modules, and prints a line for each module and GPU and one for each finding.
///
/// # Errors
/// Returns a tool's message, or the number of findings.
pub(super) fn run(
    toolchain: &Toolchain,
    disassembler: &Disassembler,
    modules_of: &[(KernelModule, &LockedModule)],
    scratch: &Path,
) -> anyhow::Result<()> {
    let audited: anyhow::Result<Vec<Audited>> = (modules_of.par_iter())
        .map(|(module, locked)| audit(toolchain, disassembler, module, locked, scratch))
        .collect();
    let audited = audited?;
    let mut n_findings = 0;
    for module in &audited {
        print!("{}", module.lines);
        for finding in &module.findings {
            println!("ptx: {finding}");
        }
        n_findings += module.findings.len();
    }
    ensure!(
        n_findings == 0,
        "{n_findings} findings in {} modules",
        audited.len()
    );
    println!("ptx: {} modules match their PTX", audited.len());
    Ok(())
}

fn audit(
    toolchain: &Toolchain,
    disassembler: &Disassembler,
    module: &KernelModule,
    locked: &LockedModule,
    scratch: &Path,
) -> anyhow::Result<Audited> {
    let name = module.name.as_str();
    let ptx = modules::ptx(name).with_context(|| format!("the archive has no PTX of {name}"))?;
    let written = counts(ptx.lines().map(str::trim_start), |line| {
        Some(line.split_once(".entry ")?.1.split('(').next()?.trim())
    });
    let mut audited = Audited::default();
    for (column, architecture) in ARCHITECTURES.into_iter().enumerate() {
        let Some(text) = text_for(module, &ptx, architecture) else {
            continue;
        };
        let source = scratch.join(format!("{name}.{architecture}.audit.ptx"));
        fs::write(&source, &*text).with_context(|| format!("cannot write {}", source.display()))?;
        let assembled = |fuses: bool| -> anyhow::Result<(PathBuf, Vec<u8>)> {
            let target = scratch.join(format!("{name}.{architecture}.{fuses}.cubin"));
            let mut command = Command::new(toolchain.ptxas());
            command
                .arg(format!("-arch={architecture}"))
                .arg(format!("--fmad={fuses}"))
                .arg(&source)
                .arg("-o")
                .arg(&target);
            run_quietly(&mut command, name)?;
            let file = fs::read(&target).with_context(|| format!("cannot read {}", target.display()))?;
            Ok((target, file))
        };
        let ((target, file), (apart_target, apart)) = (assembled(true)?, assembled(false)?);
        let log = disassembler.run(&target)?;
        let made = counts(log.lines(), section_of);
        for path in [&source, &target, &apart_target] {
            fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        let code = Code::read(&file).with_context(|| format!("{name}: the assembler's file has no code"))?;
        let apart =
            Code::read(&apart).with_context(|| format!("{name}: the assembler's file has no code"))?;
        let mut n_bytes = 0;
        for (kernel, resources) in &locked.kernels {
            let place = format!("{name}: {kernel} on {architecture}");
            let Some(bytes) = code.kernels.get(kernel.as_str()) else {
                audited.findings.push(format!("{place}: no code"));
                continue;
            };
            n_bytes += bytes.len();
            if apart.kernels.get(kernel.as_str()) != Some(bytes) {
                let finding = "products and sums are fused that the PTX rounds separately";
                audited.findings.push(format!("{place}: {finding}"));
            }
            let said = resources[column].as_ref().map(|one| one.code_bytes as usize);
            if said != Some(bytes.len()) {
                let finding = format!("{said:?} bytes of code in the lock, {}", bytes.len());
                audited.findings.push(format!("{place}: {finding}"));
            }
            for (mnemonic, wanted) in lost(
                written.get(kernel).unwrap_or(&NONE),
                made.get(kernel).unwrap_or(&NONE),
            ) {
                let finding = format!("{mnemonic} without {}", wanted.join(" or "));
                audited.findings.push(format!("{place}: {finding}"));
            }
        }
        // A kernel without a line in the lock would go unaudited.
        for kernel in code.kernels.keys() {
            if !locked.kernels.iter().any(|(known, _)| known == kernel) {
                let finding = format!("{name}: {kernel} on {architecture}: not in the lock");
                audited.findings.push(finding);
            }
        }
        let sums = FUSED.map(|(mnemonic, made_of_it)| {
            let of = |counts: &Counts, mnemonic: &str| -> usize {
                counts.values().map(|of_kernel| count(of_kernel, mnemonic)).sum()
            };
            format!(
                "{made_of_it} {} of {}",
                of(&made, made_of_it),
                of(&written, mnemonic)
            )
        });
        let sums = sums.join(", ");
        writeln!(
            audited.lines,
            "{name} {architecture}: {n_bytes} bytes of code, {sums}"
        )
        .expect("a string takes all");
    }
    Ok(audited)
}

/// Returns the PTX instructions of a kernel that none of the GPU instructions in [`KEPT`] carries out, with those.
fn lost(written: &OfKernel, made: &OfKernel) -> Vec<(&'static str, &'static [&'static str])> {
    (KEPT.into_iter())
        .filter(|(mnemonic, wanted)| {
            count(written, mnemonic) > 0 && wanted.iter().all(|mnemonic| count(made, mnemonic) == 0)
        })
        .collect()
}

/// Counts the instructions whose mnemonic has a prefix.
fn count(of_kernel: &OfKernel, mnemonic: &str) -> usize {
    (of_kernel.iter())
        .filter(|(name, _)| name.starts_with(mnemonic))
        .map(|(_, n)| n)
        .sum()
}

/// Counts the mnemonics of each kernel. `kernel_of` returns the name of the kernel that a line begins.
fn counts<'a>(
    lines: impl Iterator<Item = &'a str>,
    kernel_of: impl Fn(&'a str) -> Option<&'a str>,
) -> Counts {
    let mut counts = Counts::new();
    let mut kernel = None;
    for line in lines {
        if let Some(name) = kernel_of(line) {
            kernel = Some(name);
        } else if let (Some(kernel), Some(mnemonic)) = (kernel, mnemonic_of(line)) {
            let of_kernel = counts.entry(kernel.to_owned()).or_default();
            *of_kernel.entry(mnemonic.to_owned()).or_default() += 1;
        }
    }
    counts
}

/// Returns the kernel whose code a line of the disassembly begins.
fn section_of(line: &str) -> Option<&str> {
    line.trim().strip_prefix(".text.")?.strip_suffix(':')
}

/// Returns the mnemonic of an instruction in either language, without its address, brace and predicate.
fn mnemonic_of(line: &str) -> Option<&str> {
    let line = match line.trim_start().strip_prefix("/*") {
        Some(rest) => rest.split_once("*/")?.1,
        None => line,
    };
    let line = line.trim_start_matches(|c: char| c.is_whitespace() || c == '{');
    let line = if line.starts_with('@') {
        line.split_once(char::is_whitespace)?.1
    } else {
        line
    };
    let mnemonic = line
        .split(|c: char| c.is_whitespace() || c == ';')
        .find(|word| !word.is_empty())?;
    mnemonic
        .starts_with(|c: char| c.is_ascii_alphabetic())
        .then_some(mnemonic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_that_nothing_carries_out_is_lost() {
        let of = |mnemonics: &[&str]| -> OfKernel {
            mnemonics
                .iter()
                .map(|mnemonic| ((*mnemonic).to_owned(), 1))
                .collect()
        };
        let check = |written: &[&str], made: &[&str], expected: &[&str]| {
            let found: Vec<&str> = (lost(&of(written), &of(made)).into_iter())
                .map(|(mnemonic, _)| mnemonic)
                .collect();
            assert_eq!(found, expected);
        };
        let product = "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32";
        check(&[product], &["IMMA.16832.S8.S8"], &[]);
        check(&[product, "fma.rn.f32"], &["FFMA"], &["mma.sync"]);
        check(
            &["cp.async.cg.shared.global", "ldmatrix.sync"],
            &["LDSM.16.M88.4"],
            &["cp.async.cg"],
        );
        check(&[], &["HMMA.16816.F32"], &[]);
    }

    #[test]
    fn instructions_are_counted_by_kernel_in_both_languages() {
        let disassembly = "\t.section\t.text.norm,\"ax\"\n.text.norm:\n        /*0000*/                   LDC R1, c[0x0][0x28] ;\n\
             \x20       /*0010*/              @!P0 FFMA R2, R3, R4, R5 ;\n        /*0020*/                   HMMA.16816.F32 R2, R3, R4, R5 ;\n\
             .L_x_1:\n.text.rope:\n        /*0000*/                   FFMA.FTZ R2, R3, R4, R5 ;\n";
        let made = counts(disassembly.lines(), section_of);
        assert_eq!(count(&made["norm"], "FFMA"), 1);
        assert_eq!(count(&made["norm"], "HMMA"), 1);
        assert_eq!(count(&made["rope"], "FFMA"), 1);
        let ptx = [
            "@%p1 fma.rn.f32 %f1, %f2, %f3, %f4;",
            "{mul.rn.f16x2 %r1,%r2,%r3;",
            "bra $L;",
            "}",
            "//",
        ];
        assert_eq!(
            ptx.map(mnemonic_of),
            [Some("fma.rn.f32"), Some("mul.rn.f16x2"), Some("bra"), None, None]
        );
    }
}
