//! Qwen 1.5 and 2 with experts: their weights are not normalized, and the shared network has a gate.

use tokenmill_backend::RopeStyle;

use crate::{DenseDescriptor, GateUpOrder, MoeDescriptor, Presence, SharedDescriptor};

use super::{Architecture, HfLayout, gguf_experts::MoeDefaults, hf_experts::EXPERTS};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen2moe",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        let n_ff = config.opt_count("expert_shared_feed_forward_length")?;
        let n_ff = n_ff.map_or_else(|| config.usize("feed_forward_length"), Ok)?;
        let mut moe = config.moe(MoeDefaults::PLAIN)?;
        // The first files give the total width of a token's experts.
        if config.facts.is_none() && config.opt_count("expert_feed_forward_length")?.is_none() {
            moe.n_ff /= moe.router.n_used.max(1);
        }
        let moe = with_gated_network(moe, n_ff);
        config.set_experts(&mut descriptor, &moe)?;
        Ok(descriptor)
    },
    hf_classes: &["Qwen2MoeForCausalLM"],
    hf_layout: HfLayout {
        layer: EXPERTS,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.facts.qkv_bias = Some(match keys.config.get("qkv_bias") {
            Some(_) => keys.config.presence("qkv_bias")?,
            None => Presence::Required,
        });
        let n_layers = keys.sizes.n_layers;
        if keys.config.uses_windows(n_layers)? {
            let n_with_window = keys.config.opt_usize("max_window_layers")?.unwrap_or(0);
            keys.find_windows(|layer_idx| layer_idx.is_multiple_of(2) && layer_idx < n_with_window)?;
        }
        keys.find_router(false)?;
        (keys.config).first_usize(&["shared_expert_intermediate_size"])?;
        keys.facts.expert_layers = Some(keys.config.expert_layers_by_step(n_layers)?);
        keys.usual()?;
        keys.expert_widths()
    },
};

/// Adds a shared network with a gate, of width `n_ff`.
pub(super) fn with_gated_network(mut moe: MoeDescriptor, n_ff: usize) -> MoeDescriptor {
    moe.shared = Some(SharedDescriptor {
        dense: DenseDescriptor {
            n_ff,
            activation: moe.activation,
            xielu: None,
            cutoff: None,
            joined: GateUpOrder::GateFirst,
            is_gated: true,
            bias: Presence::Absent,
        },
        has_gate: true,
    });
    moe
}
