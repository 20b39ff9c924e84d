//! Granite 3 with experts: the multipliers of Granite, softmax experts, and in some models a shared network.
//!
//! Source: transformers, `models/granitemoe/modeling_granitemoe.py`; llama.cpp, `src/models/granite.cpp`.

use tokenmill_backend::RopeStyle;

use crate::{DenseDescriptor, Descriptor, GateUpOrder, LoadError, MoeDescriptor, Presence, SharedDescriptor};

use super::{
    Architecture, GgufConfig, HfLayout,
    gguf_experts::{MoeDefaults, set_experts},
    granite::{self, set_gguf_multipliers},
    hf_layout::Names,
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "granitemoe",
    from_gguf,
    hf_classes: &["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
    hf_layout: HfLayout {
        layer: GRANITE_EXPERTS,
        recasts: granite::RECASTS,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.find_router(true)?;
        (granite::ARCHITECTURE.rule)(keys)
    },
};

/// Tensor names of the family's experts and shared network.
pub(super) const GRANITE_EXPERTS: Names = &[
    ("block_sparse_moe.router.layer", "ffn_gate_inp"),
    ("block_sparse_moe.input_linear", "ffn_gate_up_exps"),
    ("block_sparse_moe.output_linear", "ffn_down_exps"),
    ("shared_mlp.input_linear", "ffn_up_shexp"),
    ("shared_mlp.output_linear", "ffn_down_shexp"),
];

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Norm)?;
    set_gguf_multipliers(config, &mut descriptor)?;
    if config.n_experts()? > 0 {
        let n_shared = config.opt_usize("expert_shared_feed_forward_length")?;
        let moe = with_shared(config.moe(MoeDefaults::NORMALIZED)?, n_shared);
        set_experts(&mut descriptor, &moe, |_| true);
    }
    Ok(descriptor)
}

/// Adds a shared network of width `n_ff`, unless that is 0.
pub(super) fn with_shared(mut moe: MoeDescriptor, n_ff: Option<usize>) -> MoeDescriptor {
    moe.shared = n_ff.filter(|&n_ff| n_ff > 0).map(|n_ff| SharedDescriptor {
        dense: DenseDescriptor {
            n_ff,
            activation: moe.activation,
            xielu: None,
            cutoff: None,
            joined: GateUpOrder::GateFirst,
            is_gated: true,
            bias: Presence::Absent,
        },
        has_gate: false,
    });
    moe
}
