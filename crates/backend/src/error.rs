//! [`BackendError`]: why an operation of a backend failed.
//!
//! Separate from the traits because both seams and the memory give it. Invariant: what a device says is kept as the source.

use std::error::Error;

/// Why an operation of a backend failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// No kernel for a tensor's type.
    #[error(
        "tensor `{tensor}` has type {ty}, which {device} cannot compute; convert the model to another type"
    )]
    UnsupportedType {
        /// The tensor.
        tensor: String,
        /// Name of its type.
        ty: &'static str,
        /// The device.
        device: &'static str,
    },
    /// The bytes of a tensor could not be read.
    #[error("cannot read tensor `{tensor}`: {source}")]
    ReadTensor {
        /// The tensor.
        tensor: String,
        /// What the system said, and of which file.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A tensor that stays in its file is not there any more as it was loaded; nothing will work any more.
    #[error("{source} (tensor `{tensor}` is read from it)")]
    WeightsChanged {
        /// The tensor.
        tensor: String,
        /// What happened to which file.
        source: Box<dyn Error + Send + Sync>,
    },
    /// Something else that the model needs and the backend has not.
    #[error("{device} does not support {feature}")]
    Unsupported {
        /// What is needed.
        feature: String,
        /// The device.
        device: &'static str,
    },
    /// The device cannot be opened.
    #[error("{source}")]
    Unavailable {
        /// The device's own error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The device has less memory than the plan of the load.
    #[error(
        "it has {} MiB free and the model needs {} MiB, {} MiB of them for weights: {} MiB are missing; {}",
        free_bytes >> 20,
        needed_bytes.div_ceil(1 << 20),
        weights_bytes.div_ceil(1 << 20),
        needed_bytes.div_ceil(1 << 20).saturating_sub(free_bytes >> 20),
        what_fits([*needed_bytes, *free_bytes, *states_bytes], *kv_tokens, *fitting_kv_tokens)
    )]
    DoesNotFit {
        /// Bytes of the plan, and what the driver needs in addition.
        needed_bytes: u64,
        /// Bytes free.
        free_bytes: u64,
        /// Bytes of the weights alone.
        weights_bytes: u64,
        /// Bytes of the recurrent states of all sequences, snapshots included.
        states_bytes: u64,
        /// Tokens whose keys and values were to be stored.
        kv_tokens: usize,
        /// Tokens for which there would be room.
        fitting_kv_tokens: usize,
    },
    /// Memory ran out at load.
    #[error(
        "{device} is out of memory: {needed_bytes} bytes are needed for {purpose}, {free_bytes} are free; use a smaller context or a smaller type"
    )]
    OutOfMemory {
        /// What the memory was for.
        purpose: &'static str,
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes free.
        free_bytes: u64,
        /// The device.
        device: &'static str,
    },
    /// This step failed; the device remains usable.
    #[error("{operation} failed: {source}")]
    Failed {
        /// The operation.
        operation: &'static str,
        /// What the device said.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The device is gone.
    #[error("the device is lost ({operation}: {source})")]
    Lost {
        /// The operation that noticed.
        operation: &'static str,
        /// What the device said.
        source: Box<dyn Error + Send + Sync>,
    },
}

fn what_fits(
    [needed_bytes, free_bytes, states_bytes]: [u64; 3],
    kv_tokens: usize,
    fitting_kv_tokens: usize,
) -> String {
    if fitting_kv_tokens > 0 {
        format!("keys and values of {fitting_kv_tokens} tokens would fit instead of {kv_tokens}")
    } else if states_bytes > needed_bytes.saturating_sub(free_bytes) {
        format!(
            "{} MiB are for the recurrent states of the sequences; run fewer of them at a time",
            states_bytes >> 20
        )
    } else {
        "no context would fit; use a file with smaller weights".to_owned()
    }
}
