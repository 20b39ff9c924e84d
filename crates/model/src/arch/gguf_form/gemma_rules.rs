//! The keys of the Gemma family.

use crate::{HeadLayer, LoadError};

use super::keys::GgufKeys;

pub(super) fn gemma(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.sizes()?;
    keys.heads()?;
    keys.norm_eps()?;
    keys.set_own_head_width()?;
    if let Some(rope) = keys.descriptor.ropes.first().filter(|rope| rope.base != 10_000.0) {
        keys.set("rope.freq_base", rope.base);
    }
    if keys.arch == "gemma2" {
        let attn_softcap = keys.attention().and_then(|attention| attention.softcap);
        for (key, cap) in [
            ("attn_logit_softcapping", attn_softcap),
            ("final_logit_softcapping", keys.descriptor.logit_softcap),
        ] {
            if let Some(cap) = cap {
                keys.set(key, cap);
            }
        }
        keys.window()?;
    }
    Ok(())
}

pub(super) fn gemma3(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.set_own_heads()?;
    keys.copy_number("final_logit_softcapping", &["final_logit_softcapping"])?;
    keys.window()?;
    let n_layers = keys.descriptor.layers.len();
    let is_usual = (keys.descriptor.attentions().enumerate())
        .all(|(layer_idx, attention)| attention.window.is_some() == ((layer_idx + 1) % 6 != 0));
    if n_layers > 0 && !is_usual {
        keys.window_pattern();
    }
    keys.pooling()?;
    if let Some(pooling) = keys.descriptor.pooling.as_ref() {
        let mut n_in = keys.descriptor.n_embd;
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

pub(super) fn gemma3n(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.set_own_heads()?;
    let widths: Vec<usize> = keys.dense_widths();
    keys.set_count_list("feed_forward_length", &widths)?;
    if let Some(softcap) = keys.descriptor.logit_softcap {
        keys.set("final_logit_softcapping", softcap);
    }
    keys.window_of_layers()?;
    let alt_up = keys
        .descriptor
        .alt_up
        .as_ref()
        .map_or(0, |alt_up| alt_up.n_streams);
    keys.set_count("altup.active_idx", 0)?;
    keys.set_count("altup.num_inputs", alt_up)?;
    keys.layer_embeddings()?;
    keys.shared_kv()?;
    let cutoffs: Vec<f32> = (keys.descriptor.layers.iter())
        .map(|layer| {
            layer
                .ffn
                .dense()
                .and_then(|dense| dense.cutoff)
                .unwrap_or(f32::NEG_INFINITY)
        })
        .collect();
    keys.set("activation_sparsity_scale", cutoffs);
    keys.window_pattern();
    Ok(())
}

pub(super) fn gemma4(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    let widths: Vec<usize> = keys.dense_widths();
    keys.set_counts("feed_forward_length", &widths)?;
    let kv_heads: Vec<usize> = (keys.descriptor.attentions())
        .map(|attention| attention.n_kv_heads)
        .collect();
    keys.set_counts("attention.head_count_kv", &kv_heads)?;
    keys.copy_number("final_logit_softcapping", &["final_logit_softcapping"])?;
    keys.window_of_layers()?;
    keys.shared_kv()?;
    keys.layer_embeddings()?;
    keys.window_pattern();
    let width_of = |is_local: bool| {
        let mut layers = keys.descriptor.attentions();
        layers
            .find(|attention| attention.window.is_some() == is_local)
            .map(|attention| attention.head_dim_k)
    };
    let (global, local) = (width_of(false), width_of(true));
    if let Some(width) = global.or(local) {
        keys.set_head_width(width)?;
        keys.set_count("rope.dimension_count", width)?;
    }
    if let Some(width) = local.or(global) {
        keys.set_count("attention.key_length_swa", width)?;
        keys.set_count("attention.value_length_swa", width)?;
        keys.set_count("rope.dimension_count_swa", width)?;
    }
    keys.copy_count("expert_feed_forward_length", &["moe_intermediate_size"])
}
