//! [`CudaExecError`]: why a device cannot be used, or an operation on it failed.
//!
//! One enum for the crate. Invariant: [`CudaExecError::Lost`] is final; every later call on that device gives it again.

use std::ops::Range;

use crate::LayoutError;

/// Why a device cannot be used, or an operation on it failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaExecError {
    /// The machine has no CUDA driver.
    #[error("no NVIDIA driver found; install one, or use the CPU")]
    NoDriver,
    /// There is a driver, but it shows no GPU.
    #[error(
        "the NVIDIA driver shows no GPU ({reason}); check `nvidia-smi` and the variable CUDA_VISIBLE_DEVICES"
    )]
    NoDevice {
        /// The driver's message.
        reason: String,
    },
    /// There are GPUs, but not this one.
    #[error("there is no GPU {ordinal}; the driver shows {n_devices}, counted from 0")]
    NoSuchDevice {
        /// The requested one.
        ordinal: usize,
        /// How many there are.
        n_devices: usize,
    },
    /// The GPU is older than the oldest that the kernels are built for.
    #[error("{name} has compute capability {}.{}, at least 8.0 is needed", found.0, found.1)]
    ComputeCapability {
        /// The GPU.
        name: String,
        /// Its compute capability.
        found: (u32, u32),
    },
    /// The driver does not take the kernels.
    #[error(
        "the driver supports CUDA {}.{} and does not load the kernels ({reason}); CUDA {}.{} or newer is needed",
        found.0, found.1, needed.0, needed.1
    )]
    DriverTooOld {
        /// CUDA version of the driver.
        found: (u32, u32),
        /// CUDA version of the kernels.
        needed: (u32, u32),
        /// The driver's message.
        reason: String,
    },
    /// The driver has no compiler for the kernels, or may not use it.
    #[error(
        "the driver cannot compile the kernels ({reason}); install libnvidia-ptxjitcompiler.so.1 of the driver's version, and unset \
         CUDA_DISABLE_PTX_JIT"
    )]
    NoJitCompiler {
        /// The driver's message.
        reason: String,
    },
    /// A file of kernels that were compiled ahead cannot be used.
    #[error(
        "the file of kernels compiled ahead cannot be used: {reason}; `cargo xtask device-pack` makes one"
    )]
    Cubins {
        /// Why.
        reason: String,
    },
    /// Device or pinned memory ran out.
    #[error(
        "{purpose} needs {needed_bytes} bytes, {free_bytes} are free: {} are missing",
        needed_bytes.saturating_sub(*free_bytes)
    )]
    OutOfMemory {
        /// The purpose of the memory.
        purpose: &'static str,
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes free.
        free_bytes: u64,
    },
    /// The device is gone: a kernel faulted, or the hardware did.
    #[error("the device is lost ({operation}: {reason})")]
    Lost {
        /// The operation that noticed.
        operation: &'static str,
        /// The driver's message.
        reason: String,
    },
    /// An operation failed; the device remains usable.
    #[error("{operation} failed: {reason}")]
    Failed {
        /// The operation.
        operation: &'static str,
        /// The driver's message.
        reason: String,
    },
    /// Weights that no kernel supports, or whose bytes do not match their shape.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The weights could not be read.
    #[error("{reason}")]
    ReadWeights {
        /// The system's message, with the name of the file.
        reason: String,
    },
    /// No kernel has this feature.
    #[error("the CUDA kernels have no {feature}")]
    Unsupported {
        /// The missing feature.
        feature: String,
    },
    /// A module lacks a kernel, so the sources and this crate do not belong together.
    #[error("module `{module}` has no kernel `{kernel}`")]
    NoKernel {
        /// The module.
        module: String,
        /// The kernel.
        kernel: String,
    },
    /// A range outside a buffer.
    #[error("elements {}..{} are outside a buffer of {len}", range.start, range.end)]
    Bounds {
        /// The range.
        range: Range<usize>,
        /// Length of the buffer.
        len: usize,
    },
    /// A buffer of a snapshot whose memory is no longer allocated.
    #[error("a buffer of {n_bytes} bytes of {element} was freed; its contents cannot be written back")]
    Freed {
        /// Type of its elements.
        element: &'static str,
        /// Bytes of the buffer.
        n_bytes: usize,
    },
    /// Sizes that do not fit together or that no kernel takes.
    #[error("{what} is {found}, expected {expected}")]
    Shape {
        /// The name of the size.
        what: &'static str,
        /// Its value.
        found: usize,
        /// The values that would be valid.
        expected: String,
    },
}

/// The result of this crate's operations.
pub(crate) type Result<T, E = CudaExecError> = std::result::Result<T, E>;
