//! The driver layer: the CUDA functions that this crate needs. A simulated driver provides functions of the same names, see
//! [`Api::from_symbols`].
//!
//! All of the crate's `unsafe` is in this folder. Invariant: nothing outside it sees a raw address or handle; [`Device`]
//! and the buffers turn them into typed, bounds-checked values.
//!
//! Why launching is a safe function: kernels access only device memory, where every bit pattern is a value of the
//! plain types that buffers hold, and no Rust reference ever points there. A wrong kernel can spoil results, never the
//! memory of the process.

mod api;
mod codes;
mod cuda;
mod device;
mod extents;
mod graph;
mod jit;
mod launch;
mod memory;
mod nccl;
mod notes;
mod page_rows;
mod pinned;
mod probe;
mod recording;
mod switch;

use std::sync::OnceLock;

pub(crate) use crate::modules::EARLY_CAPABILITY;
use crate::{
    CudaExecError,
    error::Result,
    modules::{Cubins, ModuleTexts},
};

pub use api::Api;
pub use device::{Device, Fence};
pub use graph::{Capture, Graph};
pub(crate) use launch::MAX_COUNT;
pub use launch::{Args, Kernel, LaunchShape};
pub use memory::{Buffer, SharedView, View, ViewMut, buffer_bytes};
pub use nccl::{NcclApi, NcclRank};
pub use notes::NotedLaunch;
pub use page_rows::PageRows;
pub use pinned::{Pinned, PinnedCopies};
pub use probe::{Availability, DeviceReport, has_driver, probe, probe_with};
pub use recording::{RecordedArgument, RecordedBuffer, RecordedLaunch, Recording, Snapshot};

/// The CUDA version whose PTX the kernels are written in.
pub(crate) const NEEDED_CUDA: (u32, u32) = (11, 4);
/// The oldest GPUs that the kernels run on.
pub(crate) const NEEDED_CAPABILITY: (u32, u32) = (8, 0);

/// First CUDA version that can capture launches which begin before earlier ones are done.
pub(crate) const EARLY_CUDA: (u32, u32) = (12, 3);

/// Shared memory that a kernel may use by default, including static shared memory, in bytes.
pub(crate) const UNASKED_SHARED_BYTES: usize = 48 << 10;

/// Names a work queue of a device. A device has a copy engine for each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Kernels, and the copies that a step depends on.
    Compute,
    /// Weights, and KV pages from the host, in parallel with the computation.
    ToDevice,
    /// KV pages to the host and within the device, in parallel with both.
    ToHost,
}

impl Stream {
    pub(crate) const ALL: [Self; 3] = [Self::Compute, Self::ToDevice, Self::ToHost];
}

/// Selects how a GPU is opened.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// Layout of buffers in its memory.
    pub buffers: Buffers,
    /// Kernels compiled ahead, for a driver that compiles none. Their launches follow each other in order.
    pub cubins: Option<Cubins>,
    /// When launches begin.
    pub launches: Launches,
    /// Whether matrix operations of warpgroups are used.
    pub wide: WideProducts,
    /// Whether each row of a decode step reads shared pages separately, instead of one read for all rows.
    pub reads_apart: bool,
    /// Split of a multiprocessor's memory between shared memory and L1 cache.
    pub carveout: Carveout,
    /// Whether decode steps are queued launch by launch, without CUDA graphs.
    pub runs_eagerly: bool,
    /// Whether launches can be recorded, for tools that look for a wrong kernel.
    pub recording: Recording,
    /// Texts of modules that this device shares with others of the process; by default, it unpacks its own.
    pub texts: Option<ModuleTexts>,
}

/// Selects the split of a multiprocessor's memory between shared memory and L1 cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carveout {
    /// The most shared memory for every kernel. A launch with another split than the previous one waits until the multiprocessor is idle,
    /// which would defeat early launches.
    #[default]
    Shared,
    /// The driver's choice for each kernel.
    OfDriver,
}

/// Whether products by many rows use the matrix operations of warpgroups that compute capability 9.0 has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WideProducts {
    /// If the device has them and its driver is for CUDA 12.0 or newer.
    #[default]
    WhereThere,
    /// Never: all products use the kernels of other GPUs.
    Never,
}

/// Selects when the launches of a device begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Launches {
    /// Before earlier ones are done, if kernels wait for their inputs and the device supports it: from compute capability 9.0 on, with a
    /// driver for CUDA 12.3 or newer.
    #[default]
    Early,
    /// When earlier ones are done.
    InOrder,
}

/// Holds a kernel's resources on a multiprocessor, as the driver compiled it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelResources {
    /// Registers of a thread.
    pub n_registers: u32,
    /// Local memory of a thread: spilled registers and arrays.
    pub local_bytes: u32,
    /// Shared memory that it declares.
    pub shared_bytes: u32,
    /// Threads of a thread block at most.
    pub max_threads: u32,
    /// Compute capability that it was compiled for, times 10.
    pub binary_version: u32,
}

/// Describes a GPU or a simulated one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// Identifies the device among others of its kind, if the driver reports it.
    pub uuid: Option<[u8; 16]>,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub n_multiprocessors: u32,
    /// Shared memory of a multiprocessor, in bytes.
    pub multiprocessor_shared_bytes: u32,
    /// All its memory.
    pub total_bytes: u64,
    /// CUDA version that the driver supports.
    pub cuda_version: (u32, u32),
}

/// A handle of a driver; its meaning is the driver's.
type Handle = u64;

/// Selects how buffers are placed in a device's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Buffers {
    /// In one reservation, side by side.
    #[default]
    Together,
    /// Each in a separate allocation that ends where the buffer ends. A simulated device and `compute-sanitizer` see an access
    /// beyond a buffer only then.
    Apart,
}

/// Remembers that a device is lost.
#[derive(Debug, Default)]
struct Poison(OnceLock<CudaExecError>);

impl Poison {
    fn check(&self) -> Result<()> {
        self.0.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    fn set(&self, operation: &'static str, reason: String) -> CudaExecError {
        self.0
            .get_or_init(|| CudaExecError::Lost { operation, reason })
            .clone()
    }
}

/// Returns a device of the simulated driver for unit tests. `tokenmill-sim-driver` is compiled against the library without its tests.
#[cfg(test)]
pub(crate) fn simulated(simulator: &tokenmill_sim_driver::Simulator) -> Device {
    simulated_with(simulator, Recording::Off)
}

/// Returns the same device; `Recording::On` lets it record launches.
#[cfg(test)]
fn simulated_with(simulator: &tokenmill_sim_driver::Simulator, recording: Recording) -> Device {
    // SAFETY: the simulated driver keeps the contract of the real one's functions.
    let api = unsafe { Api::from_symbols(&tokenmill_sim_driver::symbol) };
    Device::open_with(
        &api.expect("it has every function"),
        simulator.ordinal(),
        DeviceOptions {
            buffers: Buffers::Apart,
            recording,
            ..DeviceOptions::default()
        },
    )
    .expect("the simulated driver opens its GPU")
}
