//! Turns the model's words into those of `tokenmill-cpu-exec`: shapes, types, functions, and the sizes of a step.

use tokenmill_backend::{Activation, ExecutorLimits, KvLayout, KvType, NetworkShape, RopeStyle};

use crate as exec;

/// What the operations of the largest step need while they run.
pub(super) fn workspace_sizes(network: &NetworkShape, limits: &ExecutorLimits) -> exec::WorkspaceSizes {
    let step = exec::StepSizes {
        max_tokens: limits.max_batch_tokens,
        max_seqs: limits.max_batch_seqs,
        n_ctx: limits.n_ctx,
    };
    network.layers.iter().fold(
        exec::WorkspaceSizes::of_matrices(&step, network.n_embd),
        |sizes, layer| {
            let widest = layer.attention_width().max(layer.n_ff);
            sizes.max(exec::WorkspaceSizes::of_matrices(&step, widest)).max(
                exec::WorkspaceSizes::of_attention(
                    &step,
                    layer.n_heads,
                    layer.n_kv_heads,
                    layer.head_dim_k,
                    layer.head_dim_v,
                ),
            )
        },
    )
}

pub(super) fn stored(ty: KvType) -> exec::KvType {
    match ty {
        KvType::F32 => exec::KvType::F32,
        KvType::F16 => exec::KvType::F16,
        KvType::Q8_0 => exec::KvType::Q8_0,
    }
}

pub(super) fn kv_shapes(layout: &KvLayout) -> Vec<exec::KvLayerShape> {
    (layout.layers.iter())
        .map(|layer| exec::KvLayerShape {
            n_kv_heads: layer.n_kv_heads,
            key_dim: layer.head_dim_k,
            value_dim: layer.head_dim_v,
        })
        .collect()
}

pub(super) fn pairing(style: RopeStyle) -> exec::RopePairing {
    match style {
        RopeStyle::Norm => exec::RopePairing::Adjacent,
        RopeStyle::Neox => exec::RopePairing::Halves,
    }
}

pub(super) fn function(activation: Activation) -> exec::Activation {
    match activation {
        Activation::Silu => exec::Activation::Silu,
        Activation::GeluErf => exec::Activation::GeluErf,
        Activation::GeluTanh => exec::Activation::GeluTanh,
        Activation::Relu => exec::Activation::Relu,
        Activation::ReluSquared => exec::Activation::ReluSquared,
    }
}
