//! [`Loaded`]: the result of a load.
//!
//! Loads on all devices return it. Invariant: it states where the model computes.

use std::{fmt, time::Duration};

use tokenmill_backend::{Executor, MemoryPlan};

use crate::{Error, draft_facts::LoadedGuesser, gpu_steps::GpuSteps, measurements::MeasuredWhen};

/// A loaded model and where it computes.
pub struct Loaded {
    /// Computes the steps.
    pub executor: Box<dyn Executor + Send>,
    /// The device that computes them.
    pub device: LoadedDevice,
    /// The memory that the model takes.
    pub plan: MemoryPlan,
    /// The draft model or MTP layer, if one was loaded.
    pub guesser: Option<LoadedGuesser>,
}

/// Where a loaded model computes.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadedDevice {
    /// On the CPU.
    Cpu {
        /// Why not on the GPU, where [`Device::Auto`](crate::Device::Auto) would have preferred it.
        passed_over: Option<Error>,
    },
    /// On a GPU.
    Cuda {
        /// Its number.
        ordinal: usize,
        /// Its name.
        name: String,
        /// The time in which the driver loaded the kernels. It compiles them the first time a machine loads
        /// them.
        kernels_took: Duration,
    },
    /// On several GPUs, each with a part of every layer.
    Group {
        /// The first one's number; the others follow it.
        first: usize,
        /// How many there are.
        n_gpus: usize,
        /// The first one's name.
        name: String,
        /// The time in which the drivers loaded the kernels, in total.
        kernels_took: Duration,
        /// Why they add up in the host's memory, where NCCL was not excluded.
        without_nccl: Option<String>,
    },
    /// On a GPU and the CPU.
    Split {
        /// The GPU's number.
        ordinal: usize,
        /// Its name.
        name: String,
        /// The time in which the driver loaded the kernels.
        kernels_took: Duration,
        /// Layers that the GPU has, whole or in part.
        n_gpu_layers: usize,
        /// Layers there are.
        n_layers: usize,
        /// The steps in which the GPU computes its feed-forward networks.
        gpu_steps: GpuSteps,
        /// When these steps were determined.
        steps_known: MeasuredWhen,
        /// When the bandwidths for the choice were measured; `None` if the placement was requested.
        bandwidths_known: Option<MeasuredWhen>,
    },
    /// On a backend of the caller's own.
    Own,
}

impl fmt::Display for LoadedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu { .. } => f.write_str("CPU"),
            Self::Own => f.write_str("a backend of the caller's own"),
            Self::Split {
                ordinal,
                name,
                n_gpu_layers,
                n_layers,
                ..
            } => write!(
                f,
                "GPU {ordinal} ({name}) with all or parts of {n_gpu_layers} of {n_layers} layers, and CPU"
            ),
            Self::Group {
                first, n_gpus, name, ..
            } => write!(f, "GPUs {first} to {} ({name})", first + n_gpus - 1),
            Self::Cuda { ordinal, name, .. } => write!(f, "GPU {ordinal} ({name})"),
        }
    }
}
