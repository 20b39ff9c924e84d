//! [`Compute`]: the resources that a model computes with; and [`Device`]: the place.
//!
//! The choice of the device and the load on a GPU both read it. Invariant: a text that names no device is
//! refused.

use std::{str::FromStr, sync::Arc};

use tokenmill_backend::NetworkShape;
use tokenmill_cpu_exec::{CpuBackend, Places, Pool};
use tokenmill_model::LoadError;
use tokenmill_placed::PlacementRequest;
use tokenmill_quant::CpuFeatures;

use crate::{
    all_reduce::AllReduce,
    load_plan::LoadPlan,
    low_priority::at_low_priority,
    measurements::Measurements,
    observers::{GpuCheckObserver, PlanObserver, SplitObserver},
};

/// Where a model computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The CPU.
    Cpu,
    /// A GPU, by its number among those that the driver shows; an error where it cannot be used.
    Cuda {
        /// The number.
        ordinal: usize,
    },
    /// The first GPU if it can be used for the model, else the CPU.
    #[default]
    Auto,
}

/// Reports a text that names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is not a device; use `auto`, `cpu`, `cuda` or `cuda:N`")]
pub struct DeviceError {
    found: String,
}

impl FromStr for Device {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let error = || DeviceError {
            found: text.to_owned(),
        };
        match text {
            // llama.cpp's word for no GPU.
            "cpu" | "none" => Ok(Self::Cpu),
            "auto" => Ok(Self::Auto),
            "cuda" => Ok(Self::Cuda { ordinal: 0 }),
            _ => {
                let number = text.strip_prefix("cuda:").ok_or_else(error)?;
                let ordinal = number.parse().map_err(|_| error())?;
                Ok(Self::Cuda { ordinal })
            }
        }
    }
}

/// Selects how a GPU is used.
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are switches that have nothing to do with each other"
)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuOptions {
    /// Whether a sequence's results have the same bits whatever other sequences are in its steps. A GPU is slower with it; the CPU always
    /// behaves this way.
    pub is_batch_invariant: bool,
    /// Whether each buffer is an allocation of its own, so that tools such as `compute-sanitizer` see an access beyond it.
    pub has_buffers_apart: bool,
    /// Kernels that were compiled ahead, an archive of them, for a driver that compiles none.
    pub cubins: Option<Arc<[u8]>>,
    /// Whether each kernel begins only when the one before it is done, where newer GPUs could let it begin before and wait.
    pub launches_in_order: bool,
    /// When products by many rows use the matrix operations of warpgroups.
    pub warpgroup_products: WarpgroupProducts,
    /// Whether, in decode steps, each sequence reads the shared pages of its prefix separately, instead of
    /// one read for all.
    pub reads_apart: bool,
    /// Whether decode steps are queued launch by launch, without CUDA graphs.
    pub without_graphs: bool,
    /// Whether the driver splits a multiprocessor's memory between shared memory and L1 cache for each kernel.
    pub driver_divides_memory: bool,
    /// Whether the check at the first use is skipped. The check runs once for each GPU, driver and program if there is a
    /// [folder](Measurements::folder) for the result.
    pub is_unchecked: bool,
}

/// When products by many rows use the matrix operations of warpgroups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WarpgroupProducts {
    /// On GPUs that have them: those of compute capability 9.0.
    #[default]
    WhereThere,
    /// Never.
    Never,
}

/// Selects the devices that compute a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compute {
    /// Where.
    pub device: Device,
    /// Threads of the CPU; `None` takes one for each processor.
    pub n_threads: Option<usize>,
    /// Threads of the CPU in steps that compute prompts; `None` takes as many as for generating.
    pub n_prefill_threads: Option<usize>,
    /// Where the threads of the CPU run.
    pub places: Places,
    /// Whether a GPU measures the parts of its steps' time, for [`Executor::trace`](tokenmill_backend::Executor::trace).
    pub is_traced: bool,
    /// Use of the GPU.
    pub gpu: GpuOptions,
    /// Tokens that a step has at most where one GPU computes all of the model and has room for them, if that is more than the options of the
    /// model say; an eighth of its memory stays free, and a step has no more tokens than the KV cache. `None` keeps to the options. A GPU
    /// computes a long prompt faster in larger steps.
    pub roomy_step_tokens: Option<usize>,
    /// Number of GPUs that compute the model together, each a part of every layer: the one that `device` names and the next ones. If there
    /// are fewer, the load is refused, also with [`Device::Auto`].
    pub n_gpus: usize,
    /// How they sum their partial results.
    pub all_reduce: AllReduce,
    /// Instruction sets of the CPU; narrowing them forces a path, and changes no result.
    pub cpu_features: CpuFeatures,
    /// Parts of the model for the GPU, if there is one; the CPU computes the rest.
    pub placement: PlacementRequest,
    /// The measurements of this machine and their folder: bandwidths, by which a placement is chosen, and
    /// [`BatchThreshold::Measured`](crate::placement::BatchThreshold::Measured).
    pub measurements: Measurements,
    /// Receives the plan of a load that is not split, before anything is loaded.
    pub on_plan: Option<PlanObserver>,
    /// Is shown the plan of a load that is split, before anything is loaded.
    pub on_split: Option<SplitObserver>,
    /// Receives a line for the start of a GPU's check at first use, and one for each finding.
    pub on_gpu_check: Option<GpuCheckObserver>,
    /// Whether a load leaves the processors to other computations of this process: it reads and packs weights on one thread of low priority,
    /// and takes longer. The threads that compute afterwards have the usual priority.
    pub is_quiet: bool,
    /// Whether the CPU keeps large tables of token embeddings in memory, too. If not, a table of 64 MiB or
    /// more that is only looked up stays in its file, and each step reads its rows there; the file must not
    /// change while the model is in use.
    pub is_all_in_memory: bool,
}

/// The smallest table of embeddings, in bytes, that stays in its file.
const TABLE_BYTES_IN_FILE: usize = 64 << 20;

impl Default for Compute {
    fn default() -> Self {
        Self {
            device: Device::default(),
            n_threads: None,
            n_prefill_threads: None,
            places: Places::default(),
            is_traced: false,
            gpu: GpuOptions::default(),
            roomy_step_tokens: None,
            n_gpus: 1,
            all_reduce: AllReduce::default(),
            cpu_features: CpuFeatures::detect(),
            placement: PlacementRequest::default(),
            measurements: Measurements::default(),
            on_plan: None,
            on_split: None,
            on_gpu_check: None,
            is_quiet: false,
            is_all_in_memory: false,
        }
    }
}

impl Compute {
    /// Reports the plan of a load on one device.
    pub(crate) fn show_plan(&self, plan: &LoadPlan<'_>) {
        if let Some(observer) = self.on_plan {
            (observer.0)(plan);
        }
    }

    /// Does a part of a load, in the manner that was requested.
    pub(crate) fn work<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        if self.is_quiet {
            at_low_priority(work)
        } else {
            work()
        }
    }

    /// Whether the CPU or one GPU may have all of a network, as far as that is known before it is loaded.
    pub(crate) fn may_be_whole(&self, network: &NetworkShape) -> bool {
        let is_one_device = match self.device {
            Device::Cpu => true,
            Device::Auto | Device::Cuda { .. } => self.placement.may_be_all_on_device(network),
        };
        self.n_gpus <= 1 && is_one_device
    }

    /// The CPU backend that these options describe.
    ///
    /// # Errors
    /// [`LoadError::Backend`] where the threads cannot be started.
    pub fn cpu_backend(&self) -> Result<CpuBackend, LoadError> {
        let mut backend = CpuBackend::placed(self.n_threads, self.cpu_features, self.places.clone())?;
        if let Some(n_threads) = self.n_prefill_threads {
            backend.set_prefill_threads(n_threads)?;
        }
        backend.leave_tables_in_files((!self.is_all_in_memory).then_some(TABLE_BYTES_IN_FILE));
        Ok(backend)
    }
}

/// Processors for threads with these places; `None` where the process may use none of them.
pub fn n_processors(places: &Places) -> Option<usize> {
    Pool::n_available_in(places).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_named_or_refused() {
        let check = |text: &str, expected| assert_eq!(text.parse().ok(), expected, "{text}");
        check("cpu", Some(Device::Cpu));
        check("auto", Some(Device::Auto));
        check("cuda", Some(Device::Cuda { ordinal: 0 }));
        check("cuda:3", Some(Device::Cuda { ordinal: 3 }));
        for wrong in ["", "gpu", "cuda:", "cuda:-1", "CUDA", "cuda:1x"] {
            check(wrong, None);
        }
    }
}
