//! Types of the fine seam as those of `cuda-exec`, and its errors as the seam's.
//!
//! Separate because it decides nothing. Invariant: what has no counterpart is an error that names it, never a neighbour.

use tokenmill_backend::{
    Activation, BackendError, KvLayout, KvType, Norm, NormKind, PageCopy, Rope, RopeStyle,
};

use crate as exec;

use super::{CudaBackend, DEVICE};

pub(super) fn kv_type(layout: &KvLayout) -> Result<exec::KvType, BackendError> {
    match (layout.key_type, layout.value_type) {
        (KvType::F16, KvType::F16) => Ok(exec::KvType::F16),
        (KvType::F32, KvType::F32) => Ok(exec::KvType::F32),
        (keys, values) => Err(BackendError::Unsupported {
            feature: format!("a KV store of {keys:?} keys and {values:?} values (both F16, or both F32)"),
            device: DEVICE,
        }),
    }
}

pub(super) fn kv_shapes(layout: &KvLayout) -> Vec<exec::KvShape> {
    (layout.layers.iter())
        .map(|layer| exec::KvShape {
            n_kv_heads: layer.n_kv_heads,
            dim_k: layer.head_dim_k,
            dim_v: layer.head_dim_v,
        })
        .collect()
}

pub(super) fn page_move_of(copy: PageCopy) -> exec::PageMove {
    match copy {
        PageCopy::Duplicate { from, to } => exec::PageMove::Duplicate {
            from: from as usize,
            to: to as usize,
        },
        PageCopy::Download { page, host_page } => exec::PageMove::Download {
            page: page as usize,
            host_page: host_page as usize,
        },
        PageCopy::Upload { host_page, page } => exec::PageMove::Upload {
            host_page: host_page as usize,
            page: page as usize,
        },
    }
}

pub(super) fn norm_of(norm: &Norm<CudaBackend>) -> exec::Norm<'_> {
    exec::Norm {
        kind: match norm.kind {
            NormKind::Rms => exec::NormKind::Rms,
            NormKind::Layer => exec::NormKind::Layer,
        },
        width: norm.width,
        weight: norm.weight.as_ref().map(exec::Buffer::view),
        bias: norm.bias.as_ref().map(exec::Buffer::view),
        eps: norm.eps,
    }
}

pub(super) fn rope_of(rope: &Rope<CudaBackend>) -> exec::Rope<'_> {
    exec::Rope {
        style: match rope.style {
            RopeStyle::Norm => exec::RopeStyle::Norm,
            RopeStyle::Neox => exec::RopeStyle::Neox,
        },
        n_dims: rope.n_dims,
        inv_freqs: rope.inv_freqs.view(),
        magnitude: rope.magnitude,
    }
}

pub(super) fn activation_of(activation: Activation) -> exec::Activation {
    match activation {
        Activation::Silu => exec::Activation::Silu,
        Activation::GeluErf => exec::Activation::GeluErf,
        Activation::GeluTanh => exec::Activation::GeluTanh,
        Activation::Relu => exec::Activation::Relu,
        Activation::ReluSquared => exec::Activation::ReluSquared,
    }
}

impl From<exec::CudaExecError> for BackendError {
    fn from(error: exec::CudaExecError) -> Self {
        match error {
            exec::CudaExecError::OutOfMemory {
                purpose,
                needed_bytes,
                free_bytes,
            } => Self::OutOfMemory {
                purpose,
                needed_bytes,
                free_bytes,
                device: DEVICE,
            },
            exec::CudaExecError::Lost { operation, reason } => Self::Lost { operation, reason },
            exec::CudaExecError::Failed { operation, reason } => Self::Failed { operation, reason },
            exec::CudaExecError::Unsupported { feature } => Self::Unsupported {
                feature,
                device: DEVICE,
            },
            source @ (exec::CudaExecError::NoDriver
            | exec::CudaExecError::NoDevice { .. }
            | exec::CudaExecError::NoSuchDevice { .. }
            | exec::CudaExecError::ComputeCapability { .. }
            | exec::CudaExecError::DriverTooOld { .. }) => Self::Unavailable {
                source: Box::new(source),
            },
            other => Self::Failed {
                operation: "a CUDA operation",
                reason: other.to_string(),
            },
        }
    }
}
