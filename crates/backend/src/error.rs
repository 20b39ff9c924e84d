//! [`BackendError`]: the reason why an operation of a backend failed.
//!
//! Both seams and the memory return it. Invariant: the device's own error is kept as the source.

use std::error::Error;

/// The reason why an operation of a backend failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// There is no kernel for a tensor's type.
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
        /// The I/O error, which names the file.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A tensor read from its file on demand has changed since the load; every later operation fails too.
    #[error("{source} (tensor `{tensor}` is read from it)")]
    WeightsChanged {
        /// The tensor.
        tensor: String,
        /// The error, which names the file.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The model needs another feature that the backend does not have.
    #[error("{device} does not support {feature}")]
    Unsupported {
        /// The feature.
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
        /// Bytes of the plan, including the driver's reserve.
        needed_bytes: u64,
        /// Bytes free.
        free_bytes: u64,
        /// Bytes of the weights alone.
        weights_bytes: u64,
        /// Bytes of the recurrent states of all sequences, snapshots included.
        states_bytes: u64,
        /// Number of tokens to store keys and values for.
        kv_tokens: usize,
        /// Number of tokens that would fit.
        fitting_kv_tokens: usize,
    },
    /// Memory ran out at load.
    #[error(
        "{device} is out of memory: {needed_bytes} bytes are needed for {purpose}, {free_bytes} are free; use a smaller context or a smaller type"
    )]
    OutOfMemory {
        /// The purpose of the memory.
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
        /// The device's error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The device is gone.
    #[error("the device is lost ({operation}: {source})")]
    Lost {
        /// The operation that detected it.
        operation: &'static str,
        /// The device's error.
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
