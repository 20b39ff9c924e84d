//! Gemma 2: norms before and after each half, capped scores and logits, a window in every second layer.
//!
//! Source: transformers, `models/gemma2/modeling_gemma2.py`; llama.cpp, `src/models/gemma2.cpp`.

use tokenmill_backend::{Activation, RopeStyle};

use crate::{Descriptor, LoadError, NormPlacement};

use super::{Architecture, GgufKeys, HfLayout, gemma, hf_layout::Names};

/// The norm names in folders of Gemma 2 and later.
pub(super) const LAYER_NAMES: Names = &[
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// Number of layers of the 27B model, whose files do not state that its scores are scaled by a width other
/// than a head's.
const N_LAYERS_27B: usize = 46;

/// Window size if a file does not state it, in tokens.
const WINDOW: usize = 4096;
/// The soft caps if a file does not state them.
const ATTN_SOFTCAP: f32 = 50.0;
const LOGIT_SOFTCAP: f32 = 30.0;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gemma2",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        config.set_default_window(&mut descriptor, WINDOW)?;
        config.set_windows(&mut descriptor, 2)?;
        config.set_window_rope(&mut descriptor)?;
        if config.facts.is_none() && descriptor.layers.len() == N_LAYERS_27B {
            scale_by_model_width(&mut descriptor);
        }
        // The first files have neither key; a folder without a key has no cap.
        let cap = |key: &str, default: f32| {
            let usual = config.facts.is_none().then_some(default);
            Ok::<_, LoadError>(config.opt_f32(key)?.or(usual))
        };
        let caps = [
            cap("attn_logit_softcapping", ATTN_SOFTCAP)?,
            cap("final_logit_softcapping", LOGIT_SOFTCAP)?,
        ];
        finish(&mut descriptor, caps);
        Ok(descriptor)
    },
    hf_classes: &["Gemma2ForCausalLM"],
    hf_layout: HfLayout {
        layer: LAYER_NAMES,
        changes: gemma::NORMS,
        ..HfLayout::LLAMA
    },
    rule,
};

/// Scales scores by the network's width divided by the number of heads, as the 27B models of Gemma 2 and 3
/// do.
pub(super) fn scale_by_model_width(descriptor: &mut Descriptor) {
    let n_embd = descriptor.n_embd as f32;
    for layer in &mut descriptor.layers {
        let attention = layer.attention_mut();
        attention.scale = 1.0 / (n_embd / attention.n_heads as f32).sqrt();
    }
}

fn finish(descriptor: &mut Descriptor, [attn_softcap, logit_softcap]: [Option<f32>; 2]) {
    gemma::finish(descriptor);
    descriptor.logit_softcap = logit_softcap;
    for layer in &mut descriptor.layers {
        layer.norms = NormPlacement::PreAndPost;
        layer.attention_mut().softcap = attn_softcap;
    }
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let name = "gelu_pytorch_tanh";
    keys.config.require_hidden_gelu()?;
    keys.find_windows(|layer_idx| layer_idx % 2 == 0)?;
    keys.find_score_scale()?;
    (gemma::ARCHITECTURE.rule)(keys)?;
    // Null means no cap; a missing key means the class default.
    for (key, default) in [
        ("attn_logit_softcapping", ATTN_SOFTCAP),
        ("final_logit_softcapping", LOGIT_SOFTCAP),
    ] {
        let cap = if keys.config.has(key) {
            keys.config.opt_f32(key)?
        } else {
            Some(default)
        };
        if let Some(cap) = cap {
            keys.set(key, cap);
        }
    }
    keys.window()
}
