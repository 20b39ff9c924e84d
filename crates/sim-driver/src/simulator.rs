//! [`Simulator`]: a simulated GPU of a test's own, with its faults and counters.
//!
//! Everything else goes through the C interface. Invariant: simulators of one process do not affect each other; each is a separate GPU.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use tokenmill_cuda_exec::{
    Api, Buffers, Cubins, Device, DeviceOptions, Launches, ModuleTexts, NcclApi, WideProducts,
};
use tokenmill_ptx_sim::{Counters, DeviceProfile};

use crate::{
    api,
    card::Card,
    fault::{Defect, Fault},
    gpu::{self, Gpu},
    machine::GpuSpec,
    timing::{AssembledKernels, LaunchEstimate, Timing},
};

/// Describes a simulated GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimOptions {
    /// Its memory.
    pub total_bytes: u64,
    /// Compute capability, which determines the limits of its multiprocessors. From 9.0 on, launches begin before earlier ones are done, with all
    /// checks.
    pub capability: (i32, i32),
    /// Whether its driver finds the compiler for PTX.
    pub has_compiler: bool,
}

impl Default for SimOptions {
    fn default() -> Self {
        Self {
            total_bytes: GpuSpec::default().total_bytes,
            capability: (9, 0),
            has_compiler: true,
        }
    }
}

/// The test's handle of a simulated GPU.
#[derive(Debug)]
pub struct Simulator {
    gpu: Arc<Gpu>,
    ordinal: usize,
}

impl Simulator {
    /// The name of every simulated GPU, by which tools recognize that times are meaningless.
    pub const DEVICE_NAME: &str = "simulated GPU";

    /// Adds a GPU to the process.
    pub fn new(options: &SimOptions) -> Self {
        let (ordinal, gpu) = gpu::add(GpuSpec {
            total_bytes: options.total_bytes,
            capability: options.capability,
            has_compiler: options.has_compiler,
            is_added: true,
            ..GpuSpec::default()
        });
        Self { gpu, ordinal }
    }

    /// Adds a GPU that estimates how long launches take instead of running them. It takes host memory only where a value other than zero is
    /// written, and has no results of launches.
    pub fn estimating(profile: &'static DeviceProfile, assembled: AssembledKernels) -> Self {
        let (ordinal, gpu) = gpu::add(GpuSpec {
            total_bytes: profile.memory_bytes,
            capability: capability_of(profile.architecture),
            card: Some(Card {
                n_multiprocessors: profile.n_multiprocessors,
                shared_bytes: profile.shared_bytes,
                max_warps: profile.max_warps,
                max_blocks: profile.max_blocks,
                ..Card::of(capability_of(profile.architecture))
            }),
            is_added: true,
            is_sparse: true,
            ..GpuSpec::default()
        });
        gpu.lock().timing = Some(Timing::new(profile, assembled));
        Self { gpu, ordinal }
    }

    /// Opens a GPU that [estimates](Self::estimating), so that launches begin early if its capability allows it, or in order.
    ///
    /// # Panics
    /// As [`Self::device`].
    pub fn device_with_launches(&self, launches: Launches) -> Device {
        self.device_as(DeviceOptions {
            launches,
            ..DeviceOptions::default()
        })
    }

    /// Opens the GPU so that products by many rows do or do not use the matrix operations of warpgroups.
    ///
    /// # Panics
    /// As [`Self::device`].
    pub fn device_with_wide(&self, wide: WideProducts) -> Device {
        self.device_as(DeviceOptions {
            wide,
            ..DeviceOptions::default()
        })
    }

    /// Returns the bytes of allocated pinned host memory.
    pub fn pinned_bytes(&self) -> usize {
        self.gpu.lock().context.pinned_bytes()
    }

    /// Returns the launches since the last call, if they are estimated.
    pub fn take_estimates(&self) -> Vec<LaunchEstimate> {
        let mut state = self.gpu.lock();
        state.timing.as_mut().map(Timing::take).unwrap_or_default()
    }

    /// Lets estimated launches be played again that are alike to earlier ones. A launch that is not played computes nothing, so call this when
    /// launches of the same kernels, grids and sizes are to read memory that has changed.
    pub fn forget_launches(&self) {
        if let Some(timing) = self.gpu.lock().timing.as_mut() {
            timing.forget_known();
        }
    }

    /// Returns its number among the GPUs of the process.
    pub fn ordinal(&self) -> usize {
        self.ordinal
    }

    /// Opens the GPU.
    ///
    /// # Panics
    /// If it cannot be opened, for instance after a fault while it is still open elsewhere.
    pub fn device(&self) -> Device {
        self.device_with(None)
    }

    /// Opens the GPU with kernels that were compiled ahead.
    ///
    /// # Panics
    /// As [`Self::device`].
    pub fn device_with(&self, cubins: Option<Cubins>) -> Device {
        self.device_as(DeviceOptions {
            cubins,
            ..DeviceOptions::default()
        })
    }

    /// Opens the GPU with options, but with each buffer in a separate allocation and with the [texts](Self::texts) of the process.
    ///
    /// # Panics
    /// As [`Self::device`].
    pub fn device_as(&self, options: DeviceOptions) -> Device {
        let options = DeviceOptions {
            buffers: Buffers::Apart,
            texts: Some(Self::texts()),
            ..options
        };
        Device::open_with(&api::functions(), self.ordinal, options)
            .expect("a simulated GPU without a fault opens")
    }

    /// Returns the texts of modules that all simulated GPUs of the process share, since tests open many.
    pub fn texts() -> ModuleTexts {
        static TEXTS: LazyLock<ModuleTexts> = LazyLock::new(ModuleTexts::default);
        TEXTS.clone()
    }

    /// Returns the functions of the driver of all simulated GPUs of the process.
    pub fn api() -> Api {
        api::functions()
    }

    /// Returns the same functions for a driver of CUDA 13.0.
    pub fn api_for_cuda_13() -> Api {
        api::functions_for_cuda_13()
    }

    /// Returns how often the GPU was opened.
    pub fn n_opened(&self) -> u64 {
        self.gpu.lock().counts.n_opened
    }

    /// Returns the number of events recorded so far.
    pub fn n_recorded(&self) -> u64 {
        self.gpu.lock().counts.n_recorded
    }

    /// Injects a fault that happens once.
    pub fn inject(&self, fault: Fault) {
        self.gpu.lock().fault = Some(fault);
    }

    /// Injects a fault from now on.
    pub fn plant(&self, defect: Defect) {
        self.gpu.lock().defects.push(defect);
    }

    /// Returns whether a stream is being captured.
    pub fn is_capturing(&self) -> bool {
        self.gpu.lock().context.is_capturing()
    }

    /// Returns the launches and counters of each kernel so far, including replays.
    pub fn counters(&self) -> BTreeMap<String, (u64, Counters)> {
        self.gpu.lock().counts.kernels.clone()
    }

    /// Returns the number of launches so far that could begin before earlier ones were done, including replays.
    pub fn n_early_launches(&self) -> u64 {
        self.gpu.lock().counts.n_early
    }

    /// Counts the launches that wanted another carveout than the previous launch; each waits until the multiprocessors are idle. Replays
    /// count too.
    pub fn n_divisions(&self) -> u64 {
        self.gpu.lock().counts.n_divisions
    }

    /// Returns the functions of an NCCL that joins simulated GPUs.
    pub fn nccl() -> NcclApi {
        api::nccl_functions()
    }

    /// Returns the number of completed sums over the ranks of a communicator, including those of replays.
    pub fn n_sums(&self) -> u64 {
        self.gpu.lock().counts.n_sums
    }

    /// Returns the numbers of graphs made and replayed so far.
    pub fn graph_counts(&self) -> (u64, u64) {
        let counts = &self.gpu.lock().counts;
        (counts.n_captured, counts.n_replayed)
    }

    /// Returns the numbers of copies queued so far: to the device, and to the host.
    pub fn copy_counts(&self) -> (u64, u64) {
        let counts = &self.gpu.lock().counts;
        (counts.n_uploads, counts.n_downloads)
    }

    /// Returns the bytes copied to the host so far.
    pub fn downloaded_bytes(&self) -> u64 {
        self.gpu.lock().counts.n_downloaded_bytes
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        // If it is still open, it is removed when it is closed.
        gpu::remove_if_unused(self.ordinal);
    }
}

/// Returns the compute capability of an architecture: (9, 0) for `sm_90a`.
fn capability_of(architecture: &str) -> (i32, i32) {
    let number = architecture
        .trim_start_matches("sm_")
        .trim_end_matches(char::is_alphabetic);
    let number: i32 = number.parse().expect("profiles name an architecture");
    (number / 10, number % 10)
}
