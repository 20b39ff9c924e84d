//! Gemma: scaled embeddings, a GELU gate, norms whose weights folders store as distances from 1.
//!
//! Source: transformers, `models/gemma/modeling_gemma.py`.

use tokenmill_backend::{Activation, RopeStyle};

use crate::{Descriptor, LoadError, OutputHead};

use super::{Architecture, Change, GgufKeys, HfLayout};

/// How the folders of the family store the weights of all norms.
pub(super) const NORMS: &[(&str, Change)] = &[("norm.weight", Change::AddOne)];

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gemma",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        finish(&mut descriptor);
        Ok(descriptor)
    },
    hf_classes: &["GemmaForCausalLM"],
    hf_layout: HfLayout {
        changes: NORMS,
        ..HfLayout::LLAMA
    },
    rule,
};

/// Applies the structure that the whole family shares.
pub(super) fn finish(descriptor: &mut Descriptor) {
    descriptor.embedding_scale = (descriptor.n_embd as f32).sqrt();
    if descriptor.head == OutputHead::Own {
        descriptor.head = OutputHead::OwnIfPresent;
    }
    for layer in &mut descriptor.layers {
        // Early configurations name another activation, but the network was trained with this one.
        layer.dense_mut().activation = Activation::GeluTanh;
    }
}

/// Collects the keys of a folder.
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
