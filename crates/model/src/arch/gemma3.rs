//! Gemma 3: as Gemma 2 without caps, with normed q and k, and a window with its own rope in five of six
//! layers.
//!
//! Source: transformers, `models/gemma3/modeling_gemma3.py`; llama.cpp, `src/models/gemma3.cpp`.

use tokenmill_backend::{Activation, RopeStyle};

use crate::{Descriptor, HeadLayer, LoadError, NormPlacement, QkNorm, RopeDescriptor, RopeScaling};

use super::{Architecture, GgufConfig, GgufKeys, HfLayout, gemma, gemma2, hf_layout::VISION};

/// Number of layers of the 27B model, whose files do not state that its scores are scaled by a width other
/// than a head's.
const N_LAYERS_27B: usize = 62;
/// Period of the layers with full attention.
const PERIOD: usize = 6;
/// Default rope base of layers with a window.
const LOCAL_BASE: f32 = 10_000.0;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gemma3",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        config.set_windows(&mut descriptor, PERIOD)?;
        if config.facts.is_none() && descriptor.layers.len() == N_LAYERS_27B {
            gemma2::scale_by_model_width(&mut descriptor);
        }
        gemma::finish(&mut descriptor);
        push_local_rope(config, &mut descriptor)?;
        descriptor.logit_softcap = config.opt_positive("final_logit_softcapping")?;
        for layer in &mut descriptor.layers {
            layer.norms = NormPlacement::PreAndPost;
            layer.attention_mut().qk_norm = Some(QkNorm::Head);
        }
        Ok(descriptor)
    },
    hf_classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    hf_layout: HfLayout {
        layer: gemma2::LAYER_NAMES,
        ignored: VISION,
        changes: gemma::NORMS,
        ..HfLayout::LLAMA
    },
    rule,
};

/// Adds the rope of the layers with a window.
pub(super) fn push_local_rope(config: &GgufConfig<'_>, descriptor: &mut Descriptor) -> Result<(), LoadError> {
    let local = match config.facts.and_then(|facts| facts.local_rope.clone()) {
        Some(local) => local,
        None => RopeDescriptor {
            base: config.opt_f32("rope.freq_base_swa")?.unwrap_or(LOCAL_BASE),
            scaling: RopeScaling::None,
            ..descriptor.ropes[0].clone()
        },
    };
    descriptor.ropes.push(local);
    for layer in &mut descriptor.layers {
        let attention = layer.attention_mut();
        attention.rope = Some(usize::from(attention.window.is_some()));
    }
    Ok(())
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let config = keys.config;
    let key = "use_bidirectional_attention";
    if config.is(key)? && config.class()? != "Gemma3TextModel" {
        return Err(config.wrong(key, "false, in a network that writes"));
    }
    config.require_hidden_gelu()?;
    keys.facts.activation = None;
    keys.find_attention_bias("attention_bias")?;
    let period = config
        .opt_usize("sliding_window_pattern")?
        .unwrap_or(PERIOD)
        .max(1);
    keys.find_windows(|layer_idx| (layer_idx + 1) % period != 0)?;
    keys.find_score_scale()?;
    keys.find_local_rope()?;
    keys.usual()?;
    keys.set_own_heads()?;
    keys.copy_number("final_logit_softcapping", &["final_logit_softcapping"])?;
    keys.window()?;
    let n_layers = keys.sizes.n_layers;
    let is_usual = (keys.facts.windows.iter().enumerate())
        .all(|(layer_idx, window)| window.is_some() == ((layer_idx + 1) % 6 != 0));
    if n_layers > 0 && !is_usual {
        keys.window_pattern();
    }
    keys.pooling()?;
    if let Some(pooling) = keys.facts.pooling.clone() {
        let mut n_in = keys.sizes.n_embd;
        for layer in &pooling.head {
            if let HeadLayer::Linear { name, n_out, .. } = layer {
                keys.set_count(&format!("{name}_feat_in"), n_in)?;
                keys.set_count(&format!("{name}_feat_out"), *n_out)?;
                n_in = *n_out;
            }
        }
    }
    Ok(())
}
