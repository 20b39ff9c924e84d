//! OLMo 2 and 3: norms after each half instead of before, and norms of whole rows of q and k. In OLMo 3,
//! three of four layers have a window.
//!
//! Source: llama.cpp, `src/models/olmo2.cpp`; transformers, `models/olmo3/modeling_olmo3.py`.

use tokenmill_backend::RopeStyle;

use crate::{Descriptor, NormPlacement, QkNorm, RopeScaling};

use super::{Architecture, HfLayout};

/// Default period of the layers with full attention.
const PERIOD: usize = 4;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "olmo2",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        config.set_windows(&mut descriptor, PERIOD)?;
        finish(&mut descriptor);
        config.set_window_rope(&mut descriptor)?;
        Ok(descriptor)
    },
    hf_classes: &["Olmo2ForCausalLM", "Olmo3ForCausalLM"],
    hf_layout: HfLayout {
        layer: &[
            ("post_attention_layernorm", "post_attention_norm"),
            ("post_feedforward_layernorm", "post_ffw_norm"),
        ],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.find_attention_bias("attention_bias")?;
        if keys.config.class()? == "Olmo3ForCausalLM" {
            keys.find_windows(|layer_idx| !(layer_idx + 1).is_multiple_of(PERIOD))?;
        }
        keys.usual()?;
        keys.windows_if_any()
    },
};

fn finish(descriptor: &mut Descriptor) {
    let mut unscaled = descriptor.ropes[0].clone();
    unscaled.scaling = RopeScaling::None;
    descriptor.ropes.push(unscaled);
    for layer in &mut descriptor.layers {
        layer.norms = NormPlacement::Post;
        layer.attention_mut().qk_norm = Some(QkNorm::Row);
        // Within a window, no distance exceeds those seen in training.
        layer.attention_mut().rope = Some(usize::from(layer.attention_mut().window.is_some()));
    }
}
