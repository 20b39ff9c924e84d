//! Granite 4: Mamba 2 in layers without KV heads, attention in the others, with the multipliers of Granite;
//! dense, or with experts and a shared network. Some have no positions at all.
//!
//! Source: transformers, `models/granitemoehybrid/modeling_granitemoehybrid.py`; llama.cpp, `src/models/granite-hybrid.cpp`.

use tokenmill_backend::{Activation, RopeStyle};

use crate::{Descriptor, LoadError, MixerDescriptor, Presence};

use super::{
    Architecture, GgufConfig, GgufKeys, HfConfig, HfLayout,
    gguf_experts::{MoeDefaults, set_experts},
    gguf_form::UNBOUNDED,
    granite::{self, has_gguf_rope, set_gguf_multipliers},
    granitemoe::{GRANITE_EXPERTS, with_shared},
    hf_recurrent::{MAMBA_2, SSM_CHANGES},
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "granitehybrid",
    from_gguf,
    hf_classes: &["GraniteMoeHybridForCausalLM"],
    hf_layout: HfLayout {
        layer: MAMBA_2,
        shared: GRANITE_EXPERTS,
        changes: SSM_CHANGES,
        recasts: granite::RECASTS,
        ..HfLayout::LLAMA
    },
    rule,
};

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Norm)?;
    set_gguf_multipliers(config, &mut descriptor)?;
    let has_rope = has_gguf_rope(config)?;
    for layer in &mut descriptor.layers {
        if layer.attention_mut().n_kv_heads == 0 {
            layer.mixer = MixerDescriptor::Ssm(config.mamba2(true)?);
            continue;
        }
        let attention = layer.attention_mut();
        attention.rope = attention.rope.filter(|_| has_rope);
        attention.qkv_bias = Presence::Optional;
        attention.output_bias = Presence::Optional;
    }
    if config.n_experts()? > 0 {
        let n_shared_ff = config.opt_usize("expert_shared_feed_forward_length")?;
        set_experts(
            &mut descriptor,
            &with_shared(config.moe(MoeDefaults::NORMALIZED)?, n_shared_ff),
            |_| true,
        );
    } else {
        // The dense network has the width of the shared one; the files' own key may have another value.
        let n_ff = config.n_rows_of("blk.0.ffn_up.weight");
        for layer in &mut descriptor.layers {
            let dense = layer.dense_mut();
            dense.n_ff = if n_ff > 0 { n_ff } else { dense.n_ff };
        }
    }
    Ok(descriptor)
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let config = keys.config;
    config.require_activation(Activation::Silu, "silu, which its recurrent layers have")?;
    let has_attention = attention_layers(config, keys.sizes.n_layers)?;
    let has_experts = config.opt_usize("num_local_experts")?.unwrap_or(0) > 0;
    if has_experts {
        keys.find_router(true)?;
    }
    (granite::ARCHITECTURE.rule)(keys)?;
    keys.facts.ffn_bias = None;
    if !has_experts {
        if let Some(n_ff) = config.opt_usize("shared_intermediate_size")? {
            keys.set_count("feed_forward_length", n_ff)?;
        }
        keys.remove("expert_shared_feed_forward_length");
        // The dense network has the tensor names of the shared one.
        keys.facts.amend(|descriptor| {
            descriptor.tensor_names = &[
                ("ffn_up.weight", "ffn_up_shexp.weight"),
                ("ffn_down.weight", "ffn_down_shexp.weight"),
            ];
        });
    }
    keys.kv_heads_of_layers(|layer_idx| has_attention[layer_idx])?;
    keys.state_space(config.mamba2(true)?)?;
    let kind = config.get("position_embedding_type");
    let has_rope = has_attention.contains(&true) && kind.is_some_and(|kind| kind == "rope");
    keys.set("rope.scaling.finetuned", has_rope);
    if !has_rope {
        // Positions are then unbounded.
        keys.set("context_length", UNBOUNDED);
    }
    Ok(())
}

/// Returns whether each layer has attention; the others have Mamba 2.
fn attention_layers(config: &HfConfig, n_layers: usize) -> Result<Vec<bool>, LoadError> {
    let keys = ["layer_types", "layers_block_type"];
    let kinds = config.layer_kinds(&keys)?;
    let kinds = kinds.ok_or_else(|| config.wrong(keys[0], "the name of a kind for each layer"))?;
    config.check_kinds(keys[0], kinds.len(), n_layers)?;
    let has_attention = |kind| match kind {
        "mamba" | "linear_attention" => Ok(false),
        "attention" | "full_attention" => Ok(true),
        _ => Err(config.wrong(keys[0], "`mamba` or `attention` for each layer")),
    };
    kinds.into_iter().map(has_attention).collect()
}
