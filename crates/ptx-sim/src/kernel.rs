//! [`Module`] and [`Kernel`]: loaded PTX, ready to launch.
//!
//! Loading decodes every instruction once; a loaded kernel contains only instructions that are executed exactly as PTX defines them.

use std::{collections::HashMap, sync::Arc};

use crate::{
    DeviceMemory, LaunchError, LoadError, decode,
    op::{Instruction, Pred, Reg},
    parse::{self, VariableSpace},
    read_first::ReadFirst,
    types::Ty,
};

/// PTX text, loaded into a simulated device.
#[derive(Debug)]
pub struct Module {
    kernels: Arc<[Kernel]>,
    target: u32,
    is_specific: bool,
    has_globals: bool,
}

impl Module {
    /// Parses and decodes `ptx`, and allocates its global variables in `memory`.
    ///
    /// # Errors
    /// Anything that is not supported, with its line: nothing is ever skipped.
    pub fn load(ptx: &str, memory: &mut DeviceMemory) -> Result<Self, LoadError> {
        let source = parse::parse(ptx)?;
        let mut globals = HashMap::new();
        for variable in &source.variables {
            if !matches!(variable.space, VariableSpace::Global | VariableSpace::Const) {
                continue;
            }
            let bytes = variable.bytes.unwrap_or(0).max(1);
            let too_large = |_| LoadError::TooLarge {
                kernel: variable.name.clone(),
            };
            let address = memory.alloc(u64::from(bytes)).map_err(too_large)?;
            let mut data = variable.init.clone();
            data.resize(bytes as usize, 0);
            memory
                .write(address, &data)
                .expect("the allocation was made with this size");
            globals.insert(variable.name.clone(), address.0);
        }
        let kernels = source
            .functions
            .iter()
            .filter(|function| function.is_entry)
            .filter_map(|function| function.body.as_ref().map(|body| (function, body)))
            .map(|(function, body)| decode::kernel(&source, &globals, function, body))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            kernels,
            target: source.target,
            is_specific: source.is_specific,
            has_globals: !globals.is_empty(),
        })
    }

    /// Returns the same module for any device, decoded once. `None` if it has global variables, whose addresses are in its code.
    pub fn share(&self) -> Option<Self> {
        (!self.has_globals).then(|| Self {
            kernels: Arc::clone(&self.kernels),
            target: self.target,
            is_specific: self.is_specific,
            has_globals: false,
        })
    }

    /// Returns the oldest architecture that the text is for, such as 80; 0 if it names none.
    pub fn target(&self) -> u32 {
        self.target
    }

    /// Returns whether a GPU of this architecture, such as 90, accepts the PTX: one of the named architecture or newer, or only the named one
    /// for names like `sm_90a`.
    pub fn is_for(&self, architecture: u32) -> bool {
        if self.is_specific {
            self.target == architecture
        } else {
            self.target <= architecture
        }
    }

    /// Returns all kernels, in the order of the text.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// Returns the kernel of this name.
    ///
    /// # Errors
    /// [`LaunchError::UnknownKernel`].
    pub fn kernel(&self, name: &str) -> Result<&Kernel, LaunchError> {
        self.kernels
            .iter()
            .find(|kernel| kernel.name == name)
            .ok_or_else(|| LaunchError::UnknownKernel {
                name: name.to_owned(),
            })
    }
}

/// A decoded entry function.
#[derive(Debug)]
pub struct Kernel {
    pub(crate) name: String,
    pub(crate) params: Vec<Param>,
    pub(crate) code: Vec<Instruction>,
    pub(crate) places: Vec<Place>,
    pub(crate) n_regs32: usize,
    pub(crate) n_regs64: usize,
    pub(crate) n_preds: usize,
    pub(crate) constants32: Vec<(Reg, Constant)>,
    pub(crate) constants64: Vec<(u16, Constant)>,
    /// A predicate that is always true, if one was needed.
    pub(crate) constant_preds: Vec<(Pred, bool)>,
    /// State that each thread block starts with as zeros.
    pub(crate) read_first: ReadFirst,
    pub(crate) shared_bytes: u32,
    pub(crate) local_bytes: u32,
    pub(crate) max_threads: u32,
    pub(crate) min_blocks: u32,
    /// Whether thread blocks must run one after the other, so that the result does not vary.
    pub(crate) is_order_dependent: bool,
}

impl Kernel {
    /// Returns the name of the entry function.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the bytes of each parameter.
    pub fn param_bytes(&self) -> Vec<usize> {
        self.params.iter().map(|param| param.bytes as usize).collect()
    }

    /// Returns the number of decoded instructions.
    pub fn n_instructions(&self) -> usize {
        self.code.len()
    }

    /// Returns the static shared memory of a thread block, in bytes.
    pub fn static_shared_bytes(&self) -> usize {
        self.shared_bytes as usize
    }

    /// Returns the launch bounds: the most threads of a block, and the blocks that must fit on a multiprocessor.
    pub fn launch_bounds(&self) -> [u32; 2] {
        [self.max_threads, self.min_blocks]
    }

    /// Counts the registers of 32 and of 64 bits that a thread may read before it has written them. They are zero here at first; PTX
    /// leaves their value undefined.
    pub fn n_read_first(&self) -> [usize; 2] {
        [self.read_first.regs32.len(), self.read_first.regs64.len()]
    }

    /// Returns the local memory of a thread, in bytes.
    pub fn local_bytes(&self) -> usize {
        self.local_bytes as usize
    }

    /// Returns whether thread blocks run one after the other, in index order, because the kernel uses the result of an atomic on global
    /// memory or adds floats atomically there.
    pub fn runs_blocks_in_order(&self) -> bool {
        self.is_order_dependent
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Param {
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
}

/// The place of an instruction in the PTX text and in the source it was compiled from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    pub(crate) line: u32,
    pub(crate) mnemonic: String,
    pub(crate) source: Option<(String, u32)>,
}

/// Selects the value of a constant register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    Immediate(u64),
    Special(Special),
    /// A value within the kernel's parameters.
    Param {
        offset: u32,
        ty: Ty,
    },
    /// The offset at which dynamic shared memory starts.
    DynamicShared,
}

/// A special register. All are constant for a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    LaneMaskEq,
    LaneMaskLt,
    LaneMaskLe,
    LaneMaskGt,
    LaneMaskGe,
    DynamicSharedBytes,
}

impl Special {
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let axis = |rest: &str| match rest {
            ".x" => Some(0),
            ".y" => Some(1),
            ".z" => Some(2),
            _ => None,
        };
        Some(match name {
            "%laneid" => Self::LaneId,
            "%warpid" => Self::WarpId,
            "%lanemask_eq" => Self::LaneMaskEq,
            "%lanemask_lt" => Self::LaneMaskLt,
            "%lanemask_le" => Self::LaneMaskLe,
            "%lanemask_gt" => Self::LaneMaskGt,
            "%lanemask_ge" => Self::LaneMaskGe,
            "%dynamic_smem_size" => Self::DynamicSharedBytes,
            _ => {
                let (base, rest) = name.split_at(name.find('.')?);
                let axis = axis(rest)?;
                match base {
                    "%tid" => Self::Tid(axis),
                    "%ntid" => Self::Ntid(axis),
                    "%ctaid" => Self::Ctaid(axis),
                    "%nctaid" => Self::Nctaid(axis),
                    _ => return None,
                }
            }
        })
    }
}

impl Special {
    /// Returns the register in each lane of a warp; `None` if it is the same for the whole launch.
    pub(crate) fn of_warp(
        self,
        block: [u32; 3],
        block_index: [u32; 3],
        first_thread: u32,
    ) -> Option<[u32; 32]> {
        let lanes: [u32; 32] = std::array::from_fn(|lane| lane as u32);
        Some(match self {
            Self::Tid(axis) => lanes.map(|lane| {
                let thread = first_thread + lane;
                match axis {
                    0 => thread % block[0],
                    1 => thread / block[0] % block[1],
                    _ => thread / (block[0] * block[1]),
                }
            }),
            Self::Ctaid(axis) => [block_index[usize::from(axis)]; 32],
            Self::LaneId => lanes,
            Self::WarpId => [first_thread / 32; 32],
            Self::LaneMaskEq => lanes.map(|lane| 1 << lane),
            Self::LaneMaskLt => lanes.map(|lane| (1 << lane) - 1),
            Self::LaneMaskLe => lanes.map(|lane| u32::MAX >> (31 - lane)),
            Self::LaneMaskGt => lanes.map(|lane| !(u32::MAX >> (31 - lane))),
            Self::LaneMaskGe => lanes.map(|lane| u32::MAX << lane),
            Self::Ntid(_) | Self::Nctaid(_) | Self::DynamicSharedBytes => return None,
        })
    }
}
