//! Command R and Cohere's later models: layer norms without bias, parallel halves, scaled logits. In Command
//! R7B and A, layers with a window use rope and the others have no positions.
//!
//! Source: transformers, `models/cohere/modeling_cohere.py`, `models/cohere2/modeling_cohere2.py`; llama.cpp,
//! `src/models/command-r.cpp`, `src/models/cohere2-iswa.cpp`.

use tokenmill_backend::RopeStyle;

use crate::{Descriptor, LoadError, Presence, QkNorm, Residual};

use super::{Architecture, GgufConfig, GgufKeys, HfLayout};

/// Period of the layers with full attention in Cohere 2.
const PERIOD: usize = 4;

pub(super) const COMMAND_R: Architecture = Architecture {
    name: "command-r",
    from_gguf: |config| parallel(config, config.decoder(RopeStyle::Norm)?),
    hf_classes: &["CohereForCausalLM"],
    hf_layout: HfLayout::LLAMA,
    rule: |keys| {
        rule(keys)?;
        keys.set("rope.scaling.type", "none");
        Ok(())
    },
};

pub(super) const COHERE2: Architecture = Architecture {
    name: "cohere2",
    from_gguf: |config| {
        let descriptor = config.decoder_with_windows(RopeStyle::Norm, PERIOD, None)?;
        parallel(config, descriptor.with_rope_in_windows())
    },
    hf_classes: &["Cohere2ForCausalLM"],
    hf_layout: HfLayout::LLAMA,
    rule: |keys| {
        keys.find_windows_by_period(PERIOD)?;
        rule(keys)?;
        keys.window()?;
        keys.vocab_size()?;
        keys.rope_width()?;
        keys.set("rope.scaling.type", "none");
        Ok(())
    },
};

/// Puts both halves of each layer side by side, and scales the logits.
fn parallel(config: &GgufConfig<'_>, mut descriptor: Descriptor) -> Result<Descriptor, LoadError> {
    descriptor.logit_scale = config.opt_f32("logit_scale")?.unwrap_or(1.0);
    let has_norms = config.has_qk_norm("blk.0.attn_q_norm.weight");
    Ok((descriptor.with_layer_norms(Presence::Absent))
        .with_residual(Residual::Parallel)
        .with_qk_norm(has_norms.then_some(QkNorm::EachHead)))
}

/// Collects the keys that the folders of all versions have.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.facts.rotate_neighbours();
    keys.facts.has_qk_norm = keys.config.is("use_qk_norm")?;
    keys.find_attention_bias("attention_bias")?;
    keys.usual()?;
    keys.copy_number("logit_scale", &["logit_scale"])
}
