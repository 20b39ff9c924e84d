//! [`Timing`]: launches that are estimated instead of run.
//!
//! Invariant: of two launches that are alike (kernel, grid, numbers among the arguments, sizes of the buffers, and the parts of
//! them and of the code that are in caches) one is played, and both have its time.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    sync::LazyLock,
};

use tokenmill_cuda_exec::modules;
use tokenmill_ptx_sim::{
    Arguments, Assembled, DeviceMemory, DeviceProfile, DevicePtr, Estimate, Kernel, LaunchConfig, Residency,
    Start, estimate,
};

use crate::choices;

/// The assembler's results for a device, by module and kernel.
pub type AssembledKernels = BTreeMap<(String, String), Assembled>;

/// A launch and its estimated time.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchEstimate {
    /// The module of [`modules`].
    pub module: String,
    /// The kernel.
    pub kernel: String,
    /// Thread blocks.
    pub grid: [u32; 3],
    /// Threads of a thread block.
    pub block: [u32; 3],
    /// The estimate.
    pub estimate: Estimate,
}

/// An argument, as far as the time depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Argument {
    Number(Vec<u8>),
    Buffer { bytes: u64, offset: u64, kept: u64 },
}

/// The properties that make two launches alike.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    text: u64,
    kernel: String,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    arguments: Vec<Argument>,
    cold_code_bytes: u32,
    start: [u64; 4],
}

/// Estimates launches and keeps the list.
#[derive(Debug)]
pub(crate) struct Timing {
    profile: &'static DeviceProfile,
    assembled: AssembledKernels,
    residency: Residency,
    /// By the properties of launches, with the buffers that each was played with.
    known: HashMap<Key, (Estimate, Vec<Option<DevicePtr>>)>,
    launches: Vec<LaunchEstimate>,
    /// The previous launch, if nothing else was queued since.
    last: Option<Estimate>,
}

/// Returns the hash of a module's PTX. It is computed at each load, eight bytes at a time.
pub(crate) fn hash(ptx: &str) -> u64 {
    let (words, rest) = ptx.as_bytes().as_chunks::<8>();
    let mut hasher = DefaultHasher::new();
    rest.hash(&mut hasher);
    words.iter().fold(hasher.finish(), |hash, word| {
        let mixed = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    })
}

/// Names of all modules by the hash of each of their texts.
static NAMES: LazyLock<HashMap<u64, String>> = LazyLock::new(|| {
    let mut names = HashMap::new();
    for module in modules::all() {
        let Some(ptx) = modules::ptx(&module.name) else {
            continue;
        };
        if let Some(early) = modules::early_variant(&ptx) {
            names.insert(hash(&early), module.name.clone());
        }
        names.insert(hash(&ptx), module.name);
    }
    names
});

impl Timing {
    pub(crate) fn new(profile: &'static DeviceProfile, assembled: AssembledKernels) -> Self {
        Self {
            profile,
            assembled,
            residency: Residency::new(),
            known: HashMap::new(),
            launches: Vec::new(),
            last: None,
        }
    }

    /// Notes that another operation comes before the next launch.
    pub(crate) fn forget_last(&mut self) {
        self.last = None;
    }

    /// Lets all launches be played again.
    pub(crate) fn forget_known(&mut self) {
        self.known.clear();
    }

    pub(crate) fn take(&mut self) -> Vec<LaunchEstimate> {
        std::mem::take(&mut self.launches)
    }

    /// Estimates a launch of a kernel whose module has PTX of this hash.
    pub(crate) fn launch(
        &mut self,
        text: u64,
        kernel: &Kernel,
        memory: &DeviceMemory,
        config: &LaunchConfig,
        arguments: &Arguments,
        is_early: bool,
    ) -> Result<(), String> {
        let module = NAMES
            .get(&text)
            .ok_or("a module that is none of this program's")?;
        let name = (module.clone(), kernel.name().to_owned());
        let assembled = *(self.assembled.get(&name))
            .ok_or_else(|| format!("the registers of `{}` in `{}` are not known", name.1, name.0))?;
        choices::make_up(&name.0, &name.1, memory, arguments)?;
        let buffers: Vec<Option<DevicePtr>> = arguments
            .values()
            .map(|value| Some(memory.allocation_at(address(value)?)?.0))
            .collect();
        let before = self.last.take().filter(|_| is_early);
        let start = match &before {
            Some(before) => Start::early(before, self.profile),
            None => Start::after(self.profile),
        };
        let key = Key {
            start: start.key(),
            text,
            kernel: name.1.clone(),
            grid: config.grid,
            block: config.block,
            shared_bytes: config.shared_bytes,
            arguments: (arguments.values())
                .map(|value| self.argument(memory, value))
                .collect(),
            cold_code_bytes: (self.residency).cold_code_bytes(kernel, &assembled, self.profile),
        };
        let estimate = if let Some((estimate, theirs)) = self.known.get(&key) {
            for (mine, theirs) in buffers.iter().zip(theirs) {
                if let (&Some(mine), Some(theirs)) = (mine, theirs)
                    && let Some(&bytes) = estimate.touched.get(theirs)
                {
                    self.residency.touch(mine, bytes, self.profile);
                }
            }
            self.residency.run(kernel, &assembled, self.profile);
            estimate.clone()
        } else {
            let estimate = estimate(
                kernel,
                memory,
                config,
                arguments,
                &assembled,
                self.profile,
                &mut self.residency,
                &start,
            )
            .map_err(|error| error.to_string())?;
            self.known.insert(key, (estimate.clone(), buffers));
            estimate
        };
        self.last = Some(estimate.clone());
        self.launches.push(LaunchEstimate {
            module: name.0,
            kernel: name.1,
            grid: config.grid,
            block: config.block,
            estimate,
        });
        Ok(())
    }

    fn argument(&self, memory: &DeviceMemory, value: &[u8]) -> Argument {
        let found = address(value).and_then(|address| Some((address, memory.allocation_at(address)?)));
        match found {
            Some((address, (allocation, bytes))) => Argument::Buffer {
                bytes,
                offset: address.0 - allocation.0,
                kept: self.residency.kept(allocation, self.profile),
            },
            None => Argument::Number(value.to_vec()),
        }
    }
}

/// Returns an argument that may be an address.
fn address(value: &[u8]) -> Option<DevicePtr> {
    Some(DevicePtr(u64::from_le_bytes(value.try_into().ok()?)))
}
