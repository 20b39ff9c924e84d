//! HunYuan, dense: Llama with each head of q and k normed after rope.
//!
//! Source: transformers, `models/hunyuan_v1_dense/modeling_hunyuan_v1_dense.py`; llama.cpp, `src/models/hunyuan-dense.cpp`.

use tokenmill_backend::RopeStyle;

use crate::{Descriptor, LoadError, QkNorm};

use super::{Architecture, GgufKeys, HfLayout};

/// The context that the scaled base supports.
const LONG_CONTEXT: u32 = 256 * 1024;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "hunyuan-dense",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        finish(&mut descriptor);
        Ok(descriptor)
    },
    hf_classes: &["HunYuanDenseV1ForCausalLM"],
    hf_layout: HfLayout {
        layer: &[
            ("self_attn.query_layernorm", "attn_q_norm"),
            ("self_attn.key_layernorm", "attn_k_norm"),
        ],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.find_attention_bias("attention_bias")?;
        keys.usual()?;
        keys.set_own_head_width()?;
        long_context(keys)
    },
};

/// Applies the structure that dense and expert models share.
pub(super) fn finish(descriptor: &mut Descriptor) {
    for layer in &mut descriptor.layers {
        layer.attention_mut().qk_norm = Some(QkNorm::Head);
        layer.attention_mut().is_normed_after_rope = true;
    }
}

/// Collects the keys of the scaled rope base, if there is one.
pub(super) fn long_context(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let rope = keys.config.rope_parameters()?;
    if rope.get("alpha").is_some() {
        keys.set("rope.freq_base", keys.sizes.rope.base);
        keys.set("rope.scaling.type", "none");
        keys.set("rope.scaling.factor", 1.0_f32);
        keys.set("rope.scaling.original_context_length", LONG_CONTEXT);
        keys.set("context_length", LONG_CONTEXT);
    }
    Ok(())
}
