//! Modules and kernels of a [`Context`]: loads them, and reads and sets the attributes of kernels.
//!
//! Invariant: a kernel never has more shared memory than its GPU gives a thread block.

use super::{Context, Function, handle};
use crate::{
    card::Bounds,
    code::{self, Outcome},
    loaded::Loaded,
    timing,
};

/// Shared memory that a kernel has by default, including static shared memory.
const SHARED_BYTES_UNASKED: u32 = 48 << 10;
/// First bytes of a cubin.
const ELF: &[u8] = b"\x7fELF";
/// Numbers of function attributes in the driver's header.
const MAX_THREADS_PER_BLOCK: i32 = 0;
const SHARED_SIZE_BYTES: i32 = 1;
const LOCAL_SIZE_BYTES: i32 = 3;
const NUM_REGS: i32 = 4;
const BINARY_VERSION: i32 = 6;

impl Context {
    /// Loads PTX, or the stand-in for a cubin; returns also the compiler's log.
    pub(crate) fn load_module(&mut self, image: &[u8]) -> (Outcome<u64>, String) {
        let allowed = self.check().and_then(|()| self.refuse_in_capture());
        let refused = |code, said: &str| (Err(code), said.to_owned());
        let ptx = match image.strip_prefix(ELF) {
            _ if allowed.is_err() => return (allowed.map(|()| 0), String::new()),
            Some(code) => code,
            None if !self.has_compiler => return refused(code::JIT_COMPILER_NOT_FOUND, ""),
            None if !self.takes_ptx => {
                return refused(
                    code::UNSUPPORTED_PTX_VERSION,
                    "ptxas application ptx input, line 1; fatal   : Unsupported .version",
                );
            }
            None => image,
        };
        let Ok(ptx) = std::str::from_utf8(ptx) else {
            return refused(code::INVALID_PTX, "the image is not text");
        };
        let hash = timing::hash(ptx);
        let late = if self.decodes_late {
            Loaded::by_kernel(ptx)
        } else {
            None
        };
        match late.map_or_else(|| Loaded::whole(ptx, hash, &mut self.memory), Ok) {
            Ok(loaded) if !loaded.module().is_for(self.architecture()) => {
                let said = format!(
                    "ptxas fatal   : .target sm_{} is not for the GPU",
                    loaded.module().target()
                );
                (Err(code::INVALID_PTX), said)
            }
            Ok(loaded) => {
                self.modules.push(loaded);
                self.texts.push(hash);
                (Ok(self.modules.len() as u64), "info    : simulated".to_owned())
            }
            Err(error) => {
                eprintln!("simulated driver: {error}");
                (Err(code::INVALID_PTX), error.to_string())
            }
        }
    }

    /// Returns the compute capability as PTX writes it, such as 90.
    pub(super) fn architecture(&self) -> u32 {
        (self.capability.0 * 10 + self.capability.1) as u32
    }

    pub(crate) fn function(&mut self, module: u64, name: &str) -> Outcome<u64> {
        self.check()?;
        let index = (module as usize).wrapping_sub(1);
        let module = self.modules.get(index).ok_or(code::INVALID_HANDLE)?;
        let kernel = module.kernel(name).ok_or(code::NOT_FOUND)?;
        let [max_threads, min_blocks] = kernel.launch_bounds();
        let function = handle();
        self.functions.insert(
            function,
            Function {
                module: index,
                name: name.to_owned(),
                param_bytes: kernel.param_bytes(),
                static_shared_bytes: kernel.static_shared_bytes() as u32,
                bounds: Bounds {
                    max_threads,
                    min_blocks,
                },
                max_shared_bytes: SHARED_BYTES_UNASKED.saturating_sub(kernel.static_shared_bytes() as u32),
                carveout: None,
            },
        );
        Ok(function)
    }

    /// Returns an attribute of a kernel. The simulator has no register allocation, so it does not report registers.
    pub(crate) fn function_attribute(&self, function: u64, attribute: i32) -> Outcome<i32> {
        self.check()?;
        let function = self.functions.get(&function).ok_or(code::INVALID_HANDLE)?;
        match attribute {
            MAX_THREADS_PER_BLOCK => Ok(function.bounds.max_threads as i32),
            SHARED_SIZE_BYTES => Ok(function.static_shared_bytes as i32),
            LOCAL_SIZE_BYTES | NUM_REGS => Ok(0),
            BINARY_VERSION => Ok(80),
            _ => Err(code::INVALID_VALUE),
        }
    }

    /// Computes how many thread blocks of a kernel a multiprocessor holds, for a block size and its dynamic shared memory.
    pub(crate) fn resident_blocks_of(
        &self,
        function: u64,
        n_threads: i32,
        shared_bytes: usize,
    ) -> Outcome<i32> {
        self.check()?;
        let function = self.functions.get(&function).ok_or(code::INVALID_HANDLE)?;
        let n_threads = u32::try_from(n_threads).map_err(|_| code::INVALID_VALUE)?;
        let shared_bytes = u32::try_from(shared_bytes).map_err(|_| code::INVALID_VALUE)?;
        let all_shared = function.static_shared_bytes.saturating_add(shared_bytes);
        let n_blocks = self.card.resident_blocks(function.bounds, n_threads, all_shared);
        Ok(n_blocks as i32)
    }

    pub(crate) fn allow_shared_bytes(&mut self, function: u64, n_bytes: i32) -> Outcome {
        self.check()?;
        let most = self.card.block_shared_bytes;
        let function = self.functions.get_mut(&function).ok_or(code::INVALID_HANDLE)?;
        let n_bytes = u32::try_from(n_bytes).map_err(|_| code::INVALID_VALUE)?;
        if n_bytes > most.saturating_sub(function.static_shared_bytes) {
            return Err(code::INVALID_VALUE);
        }
        function.max_shared_bytes = n_bytes;
        Ok(())
    }

    /// Records the preferred shared memory carveout of a kernel in percent; -1 is the driver's choice.
    pub(crate) fn prefer_carveout(&mut self, function: u64, percent: i32) -> Outcome {
        self.check()?;
        let function = self.functions.get_mut(&function).ok_or(code::INVALID_HANDLE)?;
        function.carveout = match percent {
            -1 => None,
            0..=100 => Some(percent),
            _ => return Err(code::INVALID_VALUE),
        };
        Ok(())
    }
}
