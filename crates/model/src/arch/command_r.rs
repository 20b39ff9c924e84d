//! Command R and Cohere's later models: layer norms without bias, parallel halves, scaled logits. In Command
//! R7B and A, layers with a window use rope and the others have no positions.
//!
//! Source: transformers, `models/cohere/modeling_cohere.py`, `models/cohere2/modeling_cohere2.py`; llama.cpp,
//! `src/models/command-r.cpp`, `src/models/cohere2-iswa.cpp`.

use tokenmill_backend::{NormKind, RopeStyle};

use crate::{Descriptor, LoadError, QkNorm, Residual};

use super::{Architecture, GgufConfig, HfLayout};

/// Period of the layers with full attention in Cohere 2.
const PERIOD: usize = 4;

pub(super) const COMMAND_R: Architecture = Architecture {
    name: "command-r",
    from_gguf,
    hf_classes: &["CohereForCausalLM"],
    hf_layout: HfLayout::LLAMA,
    rule: |keys| {
        keys.facts.rotate_neighbours();
        keys.facts.has_qk_norm = keys.config.is("use_qk_norm")?;
        keys.find_attention_bias("attention_bias")?;
        keys.usual()?;
        keys.copy_number("logit_scale", &["logit_scale"])?;
        keys.set("rope.scaling.type", "none");
        Ok(())
    },
};

pub(super) const COHERE2: Architecture = Architecture {
    name: "cohere2",
    from_gguf: |config| {
        let mut descriptor = from_gguf(config)?;
        config.set_windows(&mut descriptor, PERIOD)?;
        remove_positions(&mut descriptor);
        config.set_window_rope(&mut descriptor)?;
        Ok(descriptor)
    },
    hf_classes: &["Cohere2ForCausalLM"],
    hf_layout: HfLayout::LLAMA,
    rule: |keys| {
        keys.facts.rotate_neighbours();
        keys.facts.has_qk_norm = keys.config.is("use_qk_norm")?;
        keys.find_attention_bias("attention_bias")?;
        let period = keys.config.opt_usize("sliding_window_pattern")?;
        let period = period.unwrap_or(PERIOD).max(1);
        keys.find_windows(|layer_idx| (layer_idx + 1) % period != 0)?;
        keys.usual()?;
        keys.copy_number("logit_scale", &["logit_scale"])?;
        keys.window()?;
        keys.vocab_size()?;
        keys.rope_width()?;
        keys.set("rope.scaling.type", "none");
        Ok(())
    },
};

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Norm)?;
    let has_norms = config.has_qk_norm("blk.0.attn_q_norm.weight");
    finish(&mut descriptor, config.opt_f32("logit_scale")?, has_norms);
    Ok(descriptor)
}

fn finish(descriptor: &mut Descriptor, logit_scale: Option<f32>, has_norms: bool) {
    descriptor.norm.kind = NormKind::Layer;
    descriptor.logit_scale = logit_scale.unwrap_or(1.0);
    for layer in &mut descriptor.layers {
        layer.residual = Residual::Parallel;
        layer.attention_mut().qk_norm = has_norms.then_some(QkNorm::EachHead);
    }
}

fn remove_positions(descriptor: &mut Descriptor) {
    for layer in &mut descriptor.layers {
        let attention = layer.attention_mut();
        if attention.window.is_none() {
            attention.rope = None;
        }
    }
}
