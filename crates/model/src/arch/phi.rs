//! Phi 1, 1.5 and 2: layer norms, both halves side by side, biases everywhere, rope over a part of each head. Phi 3, 3.5 and 4:
//! q, k and v in one tensor, gate and up in another, and factors for each frequency in the versions with a long context.
//!
//! Source: transformers, `models/phi/modeling_phi.py`, `models/phi3/modeling_phi3.py`; llama.cpp, `src/models/{phi2,phi3}.cpp`.

use tokenmill_backend::{Activation, RopeStyle};

use crate::{Presence, Residual, RopeScaling};

use super::{Architecture, HfLayout};

pub(super) const PHI_2: Architecture = Architecture {
    name: "phi2",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        descriptor.head_bias = Presence::Required;
        Ok((descriptor.with_layer_norms(Presence::Required))
            .with_residual(Residual::Parallel)
            .with_biases(Presence::Required)
            .without_gate(Activation::GeluTanh))
    },
    hf_classes: &["PhiForCausalLM"],
    hf_layout: HfLayout {
        layer: &[
            ("self_attn.dense", "attn_output"),
            ("mlp.fc1", "ffn_up"),
            ("mlp.fc2", "ffn_down"),
        ],
        network: &[("final_layernorm", "output_norm")],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        if keys.config.is("qk_layernorm")? {
            return Err(keys.config.wrong("qk_layernorm", "false"));
        }
        keys.sizes()?;
        keys.rope_width()?;
        keys.heads()?;
        keys.unusual_rope_base();
        keys.norm_eps()
    },
};

pub(super) const PHI_3: Architecture = Architecture {
    name: "phi3",
    from_gguf: |config| config.decoder(RopeStyle::Neox),
    hf_classes: &["Phi3ForCausalLM"],
    hf_layout: HfLayout::LLAMA,
    rule: |keys| {
        keys.find_windows(|_| true)?;
        keys.sizes()?;
        keys.heads()?;
        keys.rope_width()?;
        keys.set("rope.freq_base", keys.sizes.rope.base);
        if let RopeScaling::LongRope { magnitude, .. } = keys.sizes.rope.scaling {
            keys.set("rope.scaling.attn_factor", magnitude);
        }
        keys.norm_eps()?;
        keys.copy_count(
            "rope.scaling.original_context_length",
            &["original_max_position_embeddings", "max_position_embeddings"],
        )?;
        let window = keys.config.opt_usize("sliding_window")?.unwrap_or(0);
        keys.set_count("attention.sliding_window", window)
    },
};
