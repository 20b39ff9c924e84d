//! [`Loaded`]: a module of a context, whose kernels are decoded at load or at their first use.
//!
//! A program in its own process uses few kernels of each module, and decoding all of them would take most of a short run. Invariant: a
//! kernel is the same either way, with the lines of the whole text.

use std::{collections::HashMap, ops::Range, sync::OnceLock};

use tokenmill_ptx_sim::{DeviceMemory, Kernel, LoadError, Module};

use crate::decoded;

/// The first words of an entry function, at the beginning of a line.
const ENTRY: &str = "\n.visible .entry ";

/// A module of a context.
#[derive(Debug)]
pub(crate) enum Loaded {
    /// All of it is decoded.
    Whole(Module),
    /// Kernels are decoded at their first use.
    ByKernel(ByKernel),
}

/// A text, and its kernels that were used so far.
#[derive(Debug)]
pub(crate) struct ByKernel {
    text: String,
    /// The text outside of kernels.
    rest: Module,
    kernels: HashMap<String, (Range<usize>, OnceLock<Option<Module>>)>,
}

impl Loaded {
    /// Loads a text with this hash, and decodes all of it.
    pub(crate) fn whole(ptx: &str, hash: u64, memory: &mut DeviceMemory) -> Result<Self, LoadError> {
        decoded::load(ptx, hash, memory).map(Self::Whole)
    }

    /// Loads a text whose kernels are decoded at their first use; `None` if it does not have the form that `nvcc` writes, or has global
    /// variables.
    pub(crate) fn by_kernel(ptx: &str) -> Option<Self> {
        let mut kernels = HashMap::new();
        let mut end = 0;
        while let Some(found) = ptx[end..].find(ENTRY) {
            let start = end + found + 1;
            end = start + ptx[start..].find("\n}\n")? + "\n}\n".len();
            let name = ptx[start..end].strip_prefix(&ENTRY[1..])?.split_once('(')?.0;
            kernels.insert(name.to_owned(), (start..end, OnceLock::new()));
        }
        let rest = Module::load(&without(ptx, kernels.values(), None), &mut DeviceMemory::new()).ok()?;
        rest.share()?;
        Some(Self::ByKernel(ByKernel {
            text: ptx.to_owned(),
            rest,
            kernels,
        }))
    }

    /// Returns the module of the text outside of its kernels.
    pub(crate) fn module(&self) -> &Module {
        match self {
            Self::Whole(module) => module,
            Self::ByKernel(by_kernel) => &by_kernel.rest,
        }
    }

    /// Returns the kernel of this name; `None` if there is none, or the simulator does not support it.
    pub(crate) fn kernel(&self, name: &str) -> Option<&Kernel> {
        match self {
            Self::Whole(module) => module.kernel(name).ok(),
            Self::ByKernel(ByKernel { text, kernels, .. }) => {
                let (range, decoded) = kernels.get(name)?;
                let module = decoded.get_or_init(|| {
                    let text = without(text, kernels.values(), Some(range));
                    let loaded = Module::load(&text, &mut DeviceMemory::new());
                    loaded
                        .inspect_err(|error| eprintln!("simulated driver: {error}"))
                        .ok()
                });
                module.as_ref()?.kernel(name).ok()
            }
        }
    }
}

/// Returns the text with empty lines in place of all kernels but one.
fn without<'a, T: 'a>(
    text: &str,
    kernels: impl Iterator<Item = &'a (Range<usize>, T)>,
    kept: Option<&Range<usize>>,
) -> String {
    let mut ranges: Vec<&Range<usize>> = kernels.map(|(range, _)| range).collect();
    ranges.sort_by_key(|range| range.start);
    let (mut found, mut at) = (String::new(), 0);
    for range in ranges {
        found.push_str(&text[at..range.start]);
        let of_kernel = &text[range.clone()];
        if Some(range) == kept {
            found.push_str(of_kernel);
        } else {
            found.extend(of_kernel.matches('\n'));
        }
        at = range.end;
    }
    found.push_str(&text[at..]);
    found
}

#[cfg(test)]
mod tests {
    use tokenmill_cuda_exec::modules;

    use super::*;

    #[test]
    fn a_kernel_alone_is_that_of_the_whole() {
        for name in ["norm", "matvec_q4_k", "route"] {
            let text = modules::ptx(name).unwrap();
            let whole = Module::load(&text, &mut DeviceMemory::new()).unwrap();
            let loaded = Loaded::by_kernel(&text).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(loaded.module().target(), whole.target());
            for kernel in whole.kernels() {
                let alone = loaded.kernel(kernel.name()).unwrap();
                assert_eq!(format!("{alone:?}"), format!("{kernel:?}"), "{name}");
            }
            assert!(loaded.kernel("nothing").is_none());
        }
        // It has a table in global memory.
        let text = modules::ptx("attention_decode").unwrap();
        assert!(Loaded::by_kernel(&text).is_none());
    }

    #[test]
    fn what_is_written_otherwise_is_loaded_as_a_whole() {
        let entry = ".visible .entry a()\n{\n\tret;\n}\n";
        let header = ".version 7.4\n.target sm_80\n.address_size 64\n";
        assert!(Loaded::by_kernel(&format!("{header}{entry}")).is_some());
        assert!(Loaded::by_kernel(&format!("{header}.global .align 4 .u32 x;\n{entry}")).is_none());
        assert!(Loaded::by_kernel(&format!("{header}.visible .entry a() {{ ret; }}\n")).is_none());
        assert!(Loaded::by_kernel("nonsense").is_none());
    }
}
