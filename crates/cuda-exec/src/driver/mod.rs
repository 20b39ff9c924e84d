//! The driver seam: what this crate needs of a CUDA driver, implemented by the real one and by the simulator.
//!
//! All of the crate's `unsafe` is in this folder. Invariant: nothing outside it sees a raw address or handle; [`Device`]
//! and the buffers turn them into typed, bounds-checked values.
//!
//! Why launching is a safe function: kernels work on device memory alone, where every bit pattern is a value of the
//! plain types that buffers hold, and no Rust reference ever points there. A wrong kernel can spoil results, never the
//! memory of the process.

mod cuda;
mod device;
mod graph;
mod launch;
mod memory;
mod pinned;
mod probe;
#[cfg(feature = "sim")]
mod sim;

use std::{fmt, ptr::NonNull, sync::OnceLock};

use crate::{CudaExecError, error::Result};

pub use device::{Device, Fence};
pub use graph::{Capture, Graph};
pub use launch::{Args, Kernel, LaunchShape};
pub use memory::{Buffer, SharedView, View, ViewMut, buffer_bytes};
pub use pinned::Pinned;
pub use probe::{Availability, DeviceReport, has_driver, probe};
#[cfg(feature = "sim")]
pub use sim::{Fault, SimOptions, Simulator};

/// The CUDA version whose PTX the kernels are written in.
pub(crate) const NEEDED_CUDA: (u32, u32) = (11, 4);
/// The oldest GPUs that the kernels run on.
pub(crate) const NEEDED_CAPABILITY: (u32, u32) = (8, 0);

/// Dynamic shared memory that every kernel may have.
pub(crate) const SHARED_BYTES_UNASKED: usize = 48 << 10;

/// One of the two queues of work that a device has here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Kernels, and the copies that a step depends on.
    Compute,
    /// Weights and KV pages, in parallel with the computation.
    Transfer,
}

impl Stream {
    pub(crate) const ALL: [Self; 2] = [Self::Compute, Self::Transfer];
}

/// A GPU, or what stands for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub n_multiprocessors: u32,
    /// All its memory.
    pub total_bytes: u64,
    /// CUDA version that the driver supports.
    pub cuda_version: (u32, u32),
}

/// A handle of a driver; its meaning is the driver's.
type Handle = u64;

/// A driver with one device. Handles and addresses passed in are its own and not yet destroyed.
///
/// Everything but memory, modules and events is queued on a stream and in order there.
trait Driver: Send + Sync + fmt::Debug {
    fn info(&self) -> &DeviceInfo;

    fn free_bytes(&self) -> Result<u64>;

    /// Whether each buffer is to be an allocation of its own, so that leaving one is seen.
    fn allocates_apart(&self) -> bool;

    fn alloc(&self, n_bytes: usize) -> Result<u64>;

    fn free(&self, address: u64);

    /// Host memory that the device copies from and to by itself; zeroed.
    fn alloc_pinned(&self, n_bytes: usize) -> Result<NonNull<u8>>;

    /// # Safety
    /// `memory` came from [`Self::alloc_pinned`] with the same length, no queued copy uses it, and none will again.
    unsafe fn free_pinned(&self, memory: NonNull<u8>, n_bytes: usize);

    fn load_module(&self, name: &'static str, ptx: &str) -> Result<Handle>;

    /// The kernel with this name, `None` where the module has none.
    fn function(&self, module: Handle, name: &str) -> Result<Option<Handle>>;

    /// Lets a kernel be launched with more dynamic shared memory than [`SHARED_BYTES_UNASKED`].
    fn allow_shared_bytes(&self, function: Handle, n_bytes: usize) -> Result<()>;

    fn launch(&self, stream: Stream, function: Handle, shape: LaunchShape, args: &Args<'_>) -> Result<()>;

    /// # Safety
    /// `from` is pinned memory of this driver, valid for `n_bytes` and not written before the copy is done.
    unsafe fn upload(&self, stream: Stream, from: NonNull<u8>, to: u64, n_bytes: usize) -> Result<()>;

    /// # Safety
    /// `to` is pinned memory of this driver, valid for `n_bytes` and not touched before the copy is done.
    unsafe fn download(&self, stream: Stream, from: u64, to: NonNull<u8>, n_bytes: usize) -> Result<()>;

    fn copy(&self, stream: Stream, from: u64, to: u64, n_bytes: usize) -> Result<()>;

    fn fill(&self, stream: Stream, address: u64, byte: u8, n_bytes: usize) -> Result<()>;

    fn create_event(&self) -> Result<Handle>;

    fn destroy_event(&self, event: Handle);

    fn record(&self, stream: Stream, event: Handle) -> Result<()>;

    /// Makes `stream` wait for the work before the last recording of `event`.
    fn wait(&self, stream: Stream, event: Handle) -> Result<()>;

    /// Blocks until the work that `event` was last recorded behind is done.
    fn synchronize(&self, event: Handle) -> Result<()>;

    /// Milliseconds between two events that have happened.
    fn elapsed_ms(&self, start: Handle, end: Handle) -> Result<f32>;

    fn begin_capture(&self, stream: Stream) -> Result<()>;

    fn end_capture(&self, stream: Stream) -> Result<Handle>;

    fn launch_graph(&self, stream: Stream, graph: Handle) -> Result<()>;

    fn destroy_graph(&self, graph: Handle);
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
