//! Phi 1, 1.5 and 2: layer norms, both halves side by side, biases everywhere, rope over a part of each head.
//!
//! Source: transformers, `models/phi/modeling_phi.py`; llama.cpp, `src/models/phi2.cpp`.

use tokenmill_backend::{Activation, NormKind, RopeStyle};

use crate::{Descriptor, LoadError, Presence, Residual};

use super::{Architecture, GgufKeys, HfLayout};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "phi2",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        finish(&mut descriptor);
        for layer in &mut descriptor.layers {
            layer.dense_mut().activation = Activation::GeluTanh;
        }
        Ok(descriptor)
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
    rule,
};

fn finish(descriptor: &mut Descriptor) {
    descriptor.norm.kind = NormKind::Layer;
    descriptor.norm.bias = Presence::Required;
    descriptor.head_bias = Presence::Required;
    for layer in &mut descriptor.layers {
        layer.residual = Residual::Parallel;
        layer.attention_mut().qkv_bias = Presence::Required;
        layer.attention_mut().output_bias = Presence::Required;
        let dense = layer.dense_mut();
        dense.is_gated = false;
        dense.bias = Presence::Required;
    }
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    if keys.config.is("qk_layernorm")? {
        return Err(keys.config.wrong("qk_layernorm", "false"));
    }
    keys.sizes()?;
    keys.rope_width()?;
    keys.heads()?;
    keys.unusual_rope_base();
    keys.norm_eps()
}
