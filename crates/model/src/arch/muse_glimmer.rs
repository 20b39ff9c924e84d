//! Muse Glimmer: normed embeddings, windows in three of four layers and no positions in the others, a gate on
//! attention's output, norms before and after each half.
//!
//! Queries and keys are normed without a weight, and queries are multiplied by a factor. Converters store
//! that factor as the weight of the norm, and reorder the rows of queries and keys so that rope pairs are
//! adjacent.
//!
//! Source: transformers, `models/muse_glimmer/modeling_muse_glimmer.py`.

use tokenmill_backend::RopeStyle;

use crate::{Descriptor, EmbeddingNorm, LoadError, NormPlacement, OutputGate, QkNorm};

use super::{Architecture, Change, GgufKeys, HfConfig, HfLayout, Recast, gemma2, hf_layout::VISION};

/// Period of the layers with full attention, the last of each group.
const PERIOD: usize = 4;
/// The epsilon of the norms after each half. GGUF files do not state it.
const POST_NORM_EPS: f32 = 1e-8;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "muse-glimmer",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Norm)?;
        config.set_windows(&mut descriptor, PERIOD)?;
        for layer in &mut descriptor.layers {
            let attention = layer.attention_mut();
            attention.qk_norm = Some(QkNorm::Head);
            attention.rope = attention.window.is_some().then_some(0);
        }
        config.set_window_rope(&mut descriptor)?;
        descriptor.logit_scale = config.opt_f32("logit_scale")?.unwrap_or(1.0);
        descriptor.logit_softcap = config.opt_positive("final_logit_softcapping")?;
        finish(&mut descriptor, POST_NORM_EPS);
        Ok(descriptor)
    },
    hf_classes: &["MuseGlimmerForConditionalGeneration"],
    hf_layout: HfLayout {
        layer: &[
            ("self_attn.gate_proj", "attn_gate"),
            gemma2::LAYER_NAMES[0],
            gemma2::LAYER_NAMES[1],
            gemma2::LAYER_NAMES[2],
        ],
        ignored: VISION,
        changes: &[
            ("attn_norm.weight", Change::AddOne),
            ("post_attention_norm.weight", Change::AddOne),
            ("ffn_norm.weight", Change::AddOne),
            ("post_ffw_norm.weight", Change::AddOne),
        ],
        recasts: Recast::NEIGHBOURS,
        has_plain_norms: true,
        ..HfLayout::LLAMA
    },
    from_hf: Some(from_hf),
    rule,
};

fn from_hf(config: &HfConfig) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder()?;
    let n_layers = descriptor.layers.len();
    config.set_windows(&mut descriptor, |layer_idx| {
        !(n_layers - 1 - layer_idx).is_multiple_of(PERIOD)
    })?;
    let bases = config.opt_f32s("layer_rope_theta")?;
    if bases.as_ref().is_some_and(|bases| bases.len() != n_layers) {
        return Err(config.wrong("layer_rope_theta", "a number for each layer"));
    }
    let factor = config.f32("qk_scale_factor")?;
    let Descriptor { layers, ropes, .. } = &mut descriptor;
    for (layer_idx, layer) in layers.iter_mut().enumerate() {
        let attention = layer.attention_mut();
        attention.qk_norm = Some(QkNorm::PlainHead);
        attention.scale *= factor;
        attention.rope = match &bases {
            None => attention.window.is_some().then_some(0),
            Some(bases) if bases[layer_idx] == 0.0 => None,
            Some(bases) => {
                let base = bases[layer_idx];
                let known = ropes.iter().position(|rope| rope.base == base);
                Some(known.unwrap_or_else(|| {
                    let mut rope = ropes[0].clone();
                    rope.base = base;
                    ropes.push(rope);
                    ropes.len() - 1
                }))
            }
        };
    }
    descriptor.logit_scale = config.f32("output_multiplier")?;
    descriptor.logit_softcap = config.opt_f32("final_logit_softcapping")?;
    finish(
        &mut descriptor,
        config.opt_f32("post_norm_eps")?.unwrap_or(POST_NORM_EPS),
    );
    Ok(descriptor)
}

fn finish(descriptor: &mut Descriptor, post_norm_eps: f32) {
    descriptor.embedding_norm = Some(EmbeddingNorm::Plain);
    descriptor.post_norm_eps = Some(post_norm_eps);
    for layer in &mut descriptor.layers {
        layer.norms = NormPlacement::PreAndPost;
        layer.attention_mut().output_gate = Some(OutputGate::Apart);
    }
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.copy_number("final_logit_softcapping", &["final_logit_softcapping"])?;
    keys.copy_number("logit_scale", &["output_multiplier"])?;
    keys.window()?;
    keys.window_pattern();
    Ok(())
}
