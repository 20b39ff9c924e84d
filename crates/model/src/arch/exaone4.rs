//! EXAONE 4: norms after each half, norms of each head of q and k. In versions with windows, full-attention
//! layers have no positions.
//!
//! Source: transformers, `models/exaone4/modeling_exaone4.py`; llama.cpp, `src/models/exaone4.cpp`.

use serde_json::Value;
use tokenmill_backend::RopeStyle;

use crate::{Descriptor, LoadError, NormPlacement, QkNorm};

use super::{Architecture, HfConfig, HfLayout};

/// Period of the layers with full attention.
const PERIOD: usize = 4;
/// Number of layers of the version with windows, whose files may lack the window size.
const N_LAYERS_32B: usize = 64;
const WINDOW: usize = 4096;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "exaone4",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        if descriptor.layers.len() == N_LAYERS_32B {
            config.set_default_window(&mut descriptor, WINDOW)?;
        }
        config.set_windows(&mut descriptor, PERIOD)?;
        let has_windows = descriptor
            .attentions()
            .any(|attention| attention.window.is_some());
        finish(&mut descriptor, has_windows);
        config.set_window_rope(&mut descriptor)?;
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
    rule: |keys| {
        let period = period(keys.config)?;
        keys.find_windows(|layer_idx| !(layer_idx + 1).is_multiple_of(period))?;
        // If a window is configured, only layers with a window have positions, even if no layer has one.
        if keys.config.get("sliding_window").is_some() {
            let windows = keys.facts.windows.iter();
            keys.facts.has_rope = Some(windows.map(Option::is_some).collect());
        }
        keys.usual()?;
        keys.vocab_size()?;
        keys.windows_if_any()
    },
};

/// Reads the period of the layers with full attention: a count, or a letter for each layer.
pub(super) fn period(config: &HfConfig) -> Result<usize, LoadError> {
    let key = "sliding_window_pattern";
    Ok(match config.get(key).and_then(Value::as_str) {
        Some(letters) => letters.len(),
        None => config.opt_usize(key)?.unwrap_or(PERIOD),
    }
    .max(1))
}

fn finish(descriptor: &mut Descriptor, has_windows: bool) {
    for layer in &mut descriptor.layers {
        layer.norms = NormPlacement::Post;
        let attention = layer.attention_mut();
        attention.qk_norm = Some(QkNorm::Head);
        if has_windows && attention.window.is_none() {
            attention.rope = None;
        }
    }
}
