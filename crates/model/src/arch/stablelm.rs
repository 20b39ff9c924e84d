//! StableLM: layer norms, rope over a part of each head; in the larger versions both halves side by side.
//!
//! Source: transformers, `models/stablelm/modeling_stablelm.py`; llama.cpp, `src/models/stablelm.cpp`.

use tokenmill_backend::{NormKind, RopeStyle};

use crate::{Descriptor, Presence, Residual};

use super::{Architecture, HfLayout};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "stablelm",
    from_gguf: |config| {
        if config.has_tensor("blk.0.attn_q_norm.weight") {
            return Err(config.unsupported("a norm of q and k with weights for each head"));
        }
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        let is_parallel = config.opt_bool("use_parallel_residual")?.unwrap_or(false);
        finish(&mut descriptor, is_parallel, Presence::Optional);
        Ok(descriptor)
    },
    hf_classes: &["StableLmForCausalLM"],
    hf_layout: HfLayout::LLAMA,
    from_hf: |config| {
        if config.is("qk_layernorm")? {
            return Err(config.wrong(
                "qk_layernorm",
                "false; norms with weights for each head are not supported",
            ));
        }
        let mut descriptor = config.decoder()?;
        let is_parallel = config.is("use_parallel_residual")?;
        finish(&mut descriptor, is_parallel, config.presence("use_qkv_bias")?);
        Ok(descriptor)
    },
};

fn finish(descriptor: &mut Descriptor, is_parallel: bool, qkv_bias: Presence) {
    descriptor.norm.kind = NormKind::Layer;
    descriptor.norm.bias = Presence::Required;
    for layer in &mut descriptor.layers {
        layer.attention_mut().qkv_bias = qkv_bias;
        if is_parallel {
            layer.residual = Residual::Parallel;
        }
    }
}
