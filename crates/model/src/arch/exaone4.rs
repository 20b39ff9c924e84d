//! EXAONE 4: each half is normed after it, q and k by head; in the versions with windows, the layers that see everything
//! have no positions.
//!
//! Source: transformers, `models/exaone4/modeling_exaone4.py`; llama.cpp, `src/models/exaone4.cpp`.

use tokenmill_backend::RopeStyle;

use crate::{Descriptor, NormPlacement, QkNorm};

use super::{Architecture, HfLayout};

/// One of so many layers sees everything.
const PERIOD: usize = 4;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "exaone4",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        config.set_windows(&mut descriptor, PERIOD)?;
        finish(&mut descriptor);
        Ok(descriptor)
    },
    hf_classes: &["Exaone4ForCausalLM"],
    hf_layout: HfLayout {
        layer: &[
            ("post_attention_layernorm", "post_attention_norm"),
            ("post_feedforward_layernorm", "post_ffw_norm"),
        ],
        ..HfLayout::LLAMA
    },
    from_hf: |config| {
        let mut descriptor = config.decoder()?;
        config.set_windows(&mut descriptor, |layer_idx| (layer_idx + 1) % PERIOD != 0)?;
        finish(&mut descriptor);
        Ok(descriptor)
    },
};

fn finish(descriptor: &mut Descriptor) {
    let has_windows = descriptor
        .attentions()
        .any(|attention| attention.window.is_some());
    for layer in &mut descriptor.layers {
        layer.norms = NormPlacement::Post;
        let attention = layer.attention_mut();
        attention.qk_norm = Some(QkNorm::Head);
        if has_windows && attention.window.is_none() {
            attention.rope = None;
        }
    }
}
