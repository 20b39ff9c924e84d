//! [`Lock`]: the contents of the archive of PTX, as a text for readers and reviews.
//!
//! ```text
//! source norm.cu 77aa...
//! pending rope.cu 01bc...
//! module norm 15131 8c1f...
//!   add_norm 40 40 38 40 40 shared 144 code 4864 4864 5120 5120 5248
//! ```
//!
//! A source has the hash with which the modules were built. A pending one has its present hash, for which they were not built yet (see
//! `sources`). A module has the bytes and the SHA-256 of its PTX. A kernel has its registers on each of [`ARCHITECTURES`], its static
//! shared memory and the bytes of its code on each; `-` marks a GPU that the module is not for. Invariant: reading a written lock gives
//! the same text.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

use sha2::{Digest as _, Sha256};

/// GPU generations that the PTX must assemble for: Ampere, Ada, Hopper, two Blackwells.
pub(super) const ARCHITECTURES: [&str; 5] = ["sm_80", "sm_89", "sm_90a", "sm_100", "sm_120"];

/// The one that [`Target::Hopper`](tokenmill_cuda_exec::modules::Target::Hopper) is for.
pub(super) const HOPPER: &str = "sm_90a";

/// Holds the assembler's report about a kernel on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Resources {
    pub(super) registers: u32,
    pub(super) shared_bytes: u32,
    pub(super) spilled_bytes: u32,
    /// Bytes of the machine code.
    pub(super) code_bytes: u32,
}

/// A module of the archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LockedModule {
    pub(super) name: String,
    pub(super) ptx_bytes: usize,
    pub(super) sha256: String,
    /// By name, with the resources on each architecture that it is for.
    pub(super) kernels: Vec<(String, Vec<Option<Resources>>)>,
}

/// Replaces the registers on an architecture that a module is not for.
const NOWHERE: &str = "-";

/// Hashes of source files, by their paths in the folder of kernels.
pub(super) type Hashes = BTreeMap<String, String>;

/// All modules, in the order of the archive, and their sources.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Lock {
    /// Sources that the modules were built from.
    pub(super) sources: Hashes,
    /// Sources that have changed since, to be built later.
    pub(super) pending: Hashes,
    pub(super) modules: Vec<LockedModule>,
}

/// Returns the hash of a text, as the lock has it.
pub(super) fn sha256(text: &str) -> String {
    hex(&Sha256::digest(text))
}

/// Writes bytes as lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Lock {
    /// Reads a lock; `None` if a line has another form.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut lock = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split_whitespace();
            let name = words.next()?;
            let files = match name {
                "source" => Some(&mut lock.sources),
                "pending" => Some(&mut lock.pending),
                _ => None,
            };
            if let Some(files) = files.filter(|_| !line.starts_with(' ')) {
                files.insert(words.next()?.to_owned(), words.next()?.to_owned());
                continue;
            }
            if name == "module" {
                lock.modules.push(LockedModule {
                    name: words.next()?.to_owned(),
                    ptx_bytes: words.next()?.parse().ok()?,
                    sha256: words.next()?.to_owned(),
                    kernels: Vec::new(),
                });
                continue;
            }
            let (registers, rest) = line.split_once(" shared ")?;
            let (shared, code) = rest.split_once(" code ")?;
            let shared_bytes = shared.parse().ok()?;
            let registers = registers.split_whitespace().skip(1);
            let resources = registers.zip(code.split_whitespace()).map(|one| {
                if one == (NOWHERE, NOWHERE) {
                    return Some(None);
                }
                let (registers, code_bytes) = one;
                Some(Some(Resources {
                    registers: registers.parse().ok()?,
                    shared_bytes,
                    spilled_bytes: 0,
                    code_bytes: code_bytes.parse().ok()?,
                }))
            });
            let resources: Option<Vec<_>> = resources.collect();
            lock.modules
                .last_mut()?
                .kernels
                .push((name.to_owned(), resources?));
        }
        Some(lock)
    }
}

impl fmt::Display for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# Written by `cargo lab ptx`; `cargo lab ptx --print MODULE` prints the PTX."
        )?;
        writeln!(
            f,
            "# source FILE SHA-256, pending FILE SHA-256, module NAME BYTES SHA-256"
        )?;
        writeln!(
            f,
            "#   KERNEL registers on {} shared BYTES code BYTES on each",
            ARCHITECTURES.join(", ")
        )?;
        for (kind, files) in [("source", &self.sources), ("pending", &self.pending)] {
            for (file, hash) in files {
                writeln!(f, "{kind} {file} {hash}")?;
            }
        }
        for module in &self.modules {
            writeln!(f, "module {} {} {}", module.name, module.ptx_bytes, module.sha256)?;
            for (kernel, resources) in &module.kernels {
                let each = |number: fn(&Resources) -> u32| -> String {
                    let number = |one: &Option<Resources>| {
                        let number = one.as_ref().map(|one| number(one).to_string());
                        number.unwrap_or_else(|| NOWHERE.to_owned())
                    };
                    resources.iter().map(number).collect::<Vec<_>>().join(" ")
                };
                let shared_bytes = (resources.iter().flatten())
                    .map(|one| one.shared_bytes)
                    .max()
                    .unwrap_or(0);
                let (registers, code) = (each(|one| one.registers), each(|one| one.code_bytes));
                writeln!(f, "  {kernel} {registers} shared {shared_bytes} code {code}")?;
            }
        }
        Ok(())
    }
}
