//! Muse Glimmer: normed embeddings, windows in three of four layers and no positions in the others, a gate on
//! attention's output, norms before and after each half.
//!
//! Queries and keys are normed without a weight, and queries are multiplied by a factor. Converters store
//! that factor as the weight of the norm, and reorder the rows of queries and keys so that rope pairs are
//! adjacent.
//!
//! Source: transformers, `models/muse_glimmer/modeling_muse_glimmer.py`.

use tokenmill_backend::RopeStyle;

use crate::{Descriptor, EmbeddingNorm, NormPlacement, OutputGate, QkNorm, RopeDescriptor};

use super::{Architecture, Change, HfLayout, Recast, gemma, hf_layout::VISION};

/// Period of the layers with full attention, the last of each group.
const PERIOD: usize = 4;
/// The epsilon of the norms after each half. GGUF files do not state it.
const POST_NORM_EPS: f32 = 1e-8;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "muse-glimmer",
    from_gguf: |config| {
        let mut descriptor = config.decoder_with_windows(RopeStyle::Norm, PERIOD, None)?;
        descriptor.logit_scale = config.opt_f32("logit_scale")?.unwrap_or(1.0);
        descriptor.logit_softcap = config.opt_positive("final_logit_softcapping")?;
        descriptor.embedding_norm = Some(EmbeddingNorm::Plain);
        descriptor.post_norm_eps = Some(POST_NORM_EPS);
        // Files have the factor of the queries as the norm's weight.
        let qk_norm = config.facts.map_or(QkNorm::Head, |_| QkNorm::PlainHead);
        Ok((descriptor.with_rope_in_windows().with_qk_norm(qk_norm))
            .with_norms(NormPlacement::PreAndPost)
            .with_layers(|_, layer| layer.attention_mut().output_gate = Some(OutputGate::Apart)))
    },
    hf_classes: &["MuseGlimmerForConditionalGeneration"],
    hf_layout: HfLayout {
        layer: &[("self_attn.gate_proj", "attn_gate")],
        shared: &[gemma::NORMS],
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
    rule: |keys| {
        let config = keys.config;
        let n_layers = keys.sizes.n_layers;
        keys.find_windows(|layer_idx| !(n_layers - 1 - layer_idx).is_multiple_of(PERIOD))?;
        let scale = 1.0 / (keys.sizes.head_dim as f32).sqrt() * config.f32("qk_scale_factor")?;
        keys.facts.score_scales = Some(vec![scale; n_layers]);
        if let Some(bases) = config.opt_f32s("layer_rope_theta")? {
            if bases.len() != n_layers {
                return Err(config.wrong("layer_rope_theta", "a number for each layer"));
            }
            keys.facts.amend(move |descriptor| set_bases(descriptor, &bases));
        }
        if let Some(eps) = config.opt_f32("post_norm_eps")? {
            keys.facts
                .amend(move |descriptor| descriptor.post_norm_eps = Some(eps));
        }
        keys.usual()?;
        keys.copy_number("final_logit_softcapping", &["final_logit_softcapping"])?;
        keys.set("logit_scale", config.f32("output_multiplier")?);
        keys.window()?;
        keys.window_pattern();
        Ok(())
    },
};

/// Gives each layer a rope with its own base; 0 means none.
fn set_bases(descriptor: &mut Descriptor, bases: &[f32]) {
    let ropes = &mut descriptor.ropes;
    for (layer, &base) in descriptor.layers.iter_mut().zip(bases) {
        layer.attention_mut().rope = (base != 0.0).then(|| {
            let known = ropes.iter().position(|rope| rope.base == base);
            known.unwrap_or_else(|| {
                let own = RopeDescriptor {
                    base,
                    ..ropes[0].clone()
                };
                ropes.push(own);
                ropes.len() - 1
            })
        });
    }
}
