//! Gemma: scaled embeddings, a GELU gate, norms whose weights folders store as distances from 1.
//!
//! Gemma 2 has norms before and after each half, capped scores and logits, and a window in every second layer. Gemma 3 has
//! no caps, but normed q and k, and a window with its own rope in five of six layers. EmbeddingGemma has Gemma 3's layers,
//! seen in both directions, their mean, and two matrices.
//!
//! Source: transformers, `models/{gemma,gemma2,gemma3}` (EmbeddingGemma sets `use_bidirectional_attention`); llama.cpp,
//! `src/models/{gemma2,gemma3,gemma-embedding}.cpp`.

use tokenmill_backend::{Activation, Pooling, RopeStyle};

use crate::{
    Descriptor, HeadLayer, LoadError, NormPlacement, OutputHead, QkNorm, RopeDescriptor, RopeScaling,
};

use super::{
    Architecture, Change, GgufConfig, GgufKeys, HfLayout,
    encoder::HeadStep,
    hf_layout::{Names, VISION},
};

/// The norm names in folders of Gemma 2 and later.
pub(super) const NORMS: Names = &[
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// Numbers of layers of the 27B models, whose files do not state that their scores are scaled by a width other than a
/// head's.
const N_LAYERS_27B: usize = 46;
const N_LAYERS_3_27B: usize = 62;
/// Gemma 2's window size if a file does not state it, in tokens.
const WINDOW: usize = 4096;
/// Gemma 2's soft caps if a file does not state them.
const SOFTCAPS: [(&str, f32); 2] = [
    ("attn_logit_softcapping", 50.0),
    ("final_logit_softcapping", 30.0),
];
/// Period of the layers with full attention in Gemma 3.
const PERIOD: usize = 6;
/// Default rope base of layers with a window.
pub(super) const LOCAL_BASE: f32 = 10_000.0;

pub(super) const GEMMA: Architecture = Architecture {
    name: "gemma",
    from_gguf: |config| Ok(finish(config.decoder(RopeStyle::Neox)?)),
    hf_classes: &["GemmaForCausalLM"],
    hf_layout: HfLayout {
        changes: &[("norm.weight", Change::AddOne)],
        ..HfLayout::LLAMA
    },
    rule,
};

pub(super) const GEMMA_2: Architecture = Architecture {
    name: "gemma2",
    from_gguf: |config| {
        let descriptor = config.decoder_with_windows(RopeStyle::Neox, 2, Some(WINDOW))?;
        let mut descriptor = scale_by_model_width(config, descriptor, N_LAYERS_27B);
        // The first files have neither key; a folder without a key has no cap.
        let cap = |(key, default): (&str, f32)| {
            let usual = config.facts.is_none().then_some(default);
            Ok::<_, LoadError>(config.opt_f32(key)?.or(usual))
        };
        let softcap = cap(SOFTCAPS[0])?;
        descriptor.logit_softcap = cap(SOFTCAPS[1])?;
        Ok((finish(descriptor).with_norms(NormPlacement::PreAndPost))
            .with_layers(|_, layer| layer.attention_mut().softcap = softcap))
    },
    hf_classes: &["Gemma2ForCausalLM"],
    hf_layout: HfLayout {
        layer: NORMS,
        ..GEMMA.hf_layout
    },
    rule: |keys| {
        keys.config.require_hidden_gelu()?;
        keys.find_windows(|layer_idx| layer_idx % 2 == 0)?;
        keys.find_score_scale()?;
        rule(keys)?;
        // Null means no cap; a missing key means the class default.
        for (key, default) in SOFTCAPS {
            let default = (!keys.config.has(key)).then_some(default);
            if let Some(cap) = keys.config.opt_f32(key)?.or(default) {
                keys.set(key, cap);
            }
        }
        keys.window()
    },
};

pub(super) const GEMMA_3: Architecture = Architecture {
    name: "gemma3",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        config.set_windows(&mut descriptor, PERIOD)?;
        descriptor.logit_softcap = config.opt_positive("final_logit_softcapping")?;
        let local = RopeDescriptor {
            base: config.opt_f32("rope.freq_base_swa")?.unwrap_or(LOCAL_BASE),
            scaling: RopeScaling::None,
            ..descriptor.ropes[0].clone()
        };
        let descriptor = scale_by_model_width(config, descriptor, N_LAYERS_3_27B);
        Ok((finish(descriptor).with_norms(NormPlacement::PreAndPost))
            .with_qk_norm(QkNorm::Head)
            .with_local_rope(config, local))
    },
    hf_classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    hf_layout: HfLayout {
        ignored: VISION,
        ..GEMMA_2.hf_layout
    },
    rule: |keys| {
        let key = "use_bidirectional_attention";
        if keys.config.is(key)? {
            return Err(keys.config.wrong(key, "false, in a network that writes"));
        }
        rule_3(keys)
    },
};

pub(super) const EMBEDDING: Architecture = Architecture {
    name: "gemma-embedding",
    from_gguf: |config| {
        let encoder = (GEMMA_3.from_gguf)(config)?.into_encoder();
        config.pooled(encoder, HeadStep::Tanh, Pooling::First)
    },
    hf_classes: &["Gemma3TextModel"],
    hf_layout: GEMMA_2.hf_layout,
    rule: |keys| {
        let key = "use_bidirectional_attention";
        if !keys.config.is(key)? {
            return Err(keys.config.wrong(key, "true"));
        }
        keys.facts.pooling = keys.config.sentence_pooling()?;
        rule_3(keys)
    },
};

/// Applies the structure that the whole family shares.
pub(super) fn finish(mut descriptor: Descriptor) -> Descriptor {
    descriptor.embedding_scale = (descriptor.n_embd as f32).sqrt();
    if descriptor.head == OutputHead::Own {
        descriptor.head = OutputHead::OwnIfPresent;
    }
    // Early configurations name another activation, but the network was trained with this one.
    descriptor.with_activation(Activation::GeluTanh)
}

/// Scales scores by the network's width divided by the number of heads, in files with this number of layers.
fn scale_by_model_width(config: &GgufConfig<'_>, descriptor: Descriptor, n_layers: usize) -> Descriptor {
    if config.facts.is_some() || descriptor.layers.len() != n_layers {
        return descriptor;
    }
    let n_embd = descriptor.n_embd as f32;
    descriptor.with_layers(|_, layer| {
        let attention = layer.attention_mut();
        attention.scale = 1.0 / (n_embd / attention.n_heads as f32).sqrt();
    })
}

/// Collects the keys of a folder of Gemma or Gemma 2.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    // Early configurations name another activation, but the network was trained with this one.
    keys.facts.activation = None;
    keys.sizes()?;
    keys.heads()?;
    keys.norm_eps()?;
    keys.set_own_head_width()?;
    keys.unusual_rope_base();
    Ok(())
}

/// Collects the keys of a folder of Gemma 3.
fn rule_3(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.config.require_hidden_gelu()?;
    keys.facts.activation = None;
    keys.find_attention_bias("attention_bias")?;
    keys.find_windows_by_period(PERIOD)?;
    keys.find_score_scale()?;
    keys.find_local_rope()?;
    keys.usual()?;
    keys.set_own_heads()?;
    keys.copy_number("final_logit_softcapping", &["final_logit_softcapping"])?;
    keys.window()?;
    keys.unusual_window_pattern(PERIOD);
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
