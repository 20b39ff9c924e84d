//! Granite 3 and 4: Llama with multipliers of embeddings, scores, residuals and logits; dense, or with softmax experts and in
//! some models a shared network. Granite 4's hybrids have Mamba 2 in layers without KV heads; some have no positions at all.
//!
//! MiniCPM 1 and 2 have the multipliers too, except that of the scores; older files omit them. The default multipliers are
//! those of the reader's first version, which multiplies logits by 256 over the width.
//!
//! Source: transformers, `models/granite/modeling_granite.py`, `models/granitemoe/modeling_granitemoe.py`,
//! `models/granitemoehybrid/modeling_granitemoehybrid.py`; llama.cpp, `src/models/{granite,granite-hybrid,minicpm}.cpp`,
//! `conversion/minicpm.py`.

use tokenmill_backend::{Activation, RopeStyle};

use crate::{Descriptor, LoadError, MixerDescriptor, Presence};

use super::{
    Architecture, GgufConfig, GgufKeys, HfConfig, HfLayout, Recast, Recasts,
    gguf_experts::MoeDefaults,
    gguf_keys::UNBOUNDED,
    hf_layers::KINDS,
    hf_layout::Names,
    hf_recurrent::{MAMBA_2, SSM_CHANGES},
};

/// MiniCPM's default multipliers.
const EMBEDDING_SCALE: f32 = 12.0;
const DEPTH_SCALE: f32 = 1.4;
const LOGIT_WIDTH: f32 = 256.0;

pub(super) const GRANITE: Architecture = Architecture {
    name: "granite",
    from_gguf: |config| {
        let has_rope = has_rope(config)?;
        Ok(scaled(config)?.with_layers(|_, layer| {
            let attention = layer.attention_mut();
            attention.rope = attention.rope.filter(|_| has_rope);
        }))
    },
    hf_classes: &["GraniteForCausalLM"],
    hf_layout: HfLayout {
        recasts: RECASTS,
        ..HfLayout::LLAMA
    },
    rule,
};

pub(super) const GRANITE_MOE: Architecture = Architecture {
    name: "granitemoe",
    from_gguf: |config| with_experts(config, scaled(config)?),
    hf_classes: &["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
    hf_layout: HfLayout {
        layer: EXPERTS,
        ..GRANITE.hf_layout
    },
    rule: |keys| {
        keys.find_router(true)?;
        rule(keys)
    },
};

pub(super) const GRANITE_HYBRID: Architecture = Architecture {
    name: "granitehybrid",
    from_gguf: |config| {
        let mut descriptor = scaled(config)?;
        let has_rope = has_rope(config)?;
        for layer in &mut descriptor.layers {
            let attention = layer.attention_mut();
            attention.rope = attention.rope.filter(|_| has_rope);
            (attention.qkv_bias, attention.output_bias) = (Presence::Optional, Presence::Optional);
            if attention.n_kv_heads == 0 {
                layer.mixer = MixerDescriptor::Ssm(config.mamba2(true)?);
            }
        }
        // The dense network has the width of the shared one; the files' own key may have another value.
        let n_ff = config.n_rows_of("blk.0.ffn_up.weight");
        let descriptor = descriptor.with_layers(|_, layer| {
            let dense = layer.dense_mut();
            dense.n_ff = if n_ff > 0 { n_ff } else { dense.n_ff };
        });
        with_experts(config, descriptor)
    },
    hf_classes: &["GraniteMoeHybridForCausalLM"],
    hf_layout: HfLayout {
        layer: MAMBA_2,
        shared: &[EXPERTS],
        changes: SSM_CHANGES,
        ..GRANITE.hf_layout
    },
    rule: hybrid_rule,
};

pub(super) const MINICPM: Architecture = Architecture {
    name: "minicpm",
    from_gguf: |config| {
        let mut descriptor = scaled(config)?;
        if config.opt_positive("embedding_scale")?.is_none() {
            descriptor.embedding_scale = EMBEDDING_SCALE;
        }
        if config.opt_positive("residual_scale")?.is_none() {
            descriptor.residual_scale = DEPTH_SCALE / (descriptor.layers.len() as f32).sqrt();
        }
        if config.opt_positive("logit_scale")?.is_none() {
            descriptor.logit_scale = LOGIT_WIDTH / descriptor.n_embd as f32;
        }
        Ok(descriptor)
    },
    hf_classes: &["MiniCPMForCausalLM"],
    hf_layout: HfLayout {
        recasts: Recast::NEIGHBOURS,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.usual()?;
        let config = keys.config;
        let depth = (keys.sizes.n_layers as f32).sqrt();
        let logit_scale = config.f32("dim_model_base")? / keys.sizes.n_embd as f32;
        keys.set("embedding_scale", config.f32("scale_emb")?);
        keys.set("residual_scale", config.f32("scale_depth")? / depth);
        keys.set("logit_scale", 1.0 / logit_scale);
        // The inverse of the inverse may be another number.
        keys.facts
            .amend(move |descriptor| descriptor.logit_scale = logit_scale);
        Ok(())
    },
};

/// The changes of the tensors of all Granite models.
const RECASTS: Recasts = &[
    ("ssm_conv1d.weight", Recast::Squeeze),
    ("ssm_a", Recast::Column),
    ("ssm_d", Recast::Column),
    ("attn_q.weight", Recast::NeighbouringQueries),
    ("attn_q.bias", Recast::NeighbouringQueries),
    ("attn_k.weight", Recast::NeighbouringKeys),
    ("attn_k.bias", Recast::NeighbouringKeys),
    ("ffn_gate_up_exps.weight", Recast::GATE_AND_UP),
    ("ffn_up_shexp.weight", Recast::SharedGateAndUp),
    ("ffn_down_shexp.weight", Recast::SharedDown),
];

/// Tensor names of experts and of the shared network.
const EXPERTS: Names = &[
    ("block_sparse_moe.router.layer", "ffn_gate_inp"),
    ("block_sparse_moe.input_linear", "ffn_gate_up_exps"),
    ("block_sparse_moe.output_linear", "ffn_down_exps"),
    ("shared_mlp.input_linear", "ffn_up_shexp"),
    ("shared_mlp.output_linear", "ffn_down_shexp"),
];

/// Describes a decoder with the multipliers of a file; [`GgufConfig::decoder`] reads that of the scores.
fn scaled(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Norm)?;
    descriptor.embedding_scale = config.opt_positive("embedding_scale")?.unwrap_or(1.0);
    descriptor.residual_scale = config.opt_positive("residual_scale")?.unwrap_or(1.0);
    descriptor.logit_scale = 1.0 / config.opt_positive("logit_scale")?.unwrap_or(1.0);
    Ok(descriptor)
}

/// Returns whether there is rope. The family's files use a key for it that has another meaning elsewhere.
fn has_rope(config: &GgufConfig<'_>) -> Result<bool, LoadError> {
    Ok(config.opt_bool("rope.scaling.finetuned")?.unwrap_or(true))
}

/// Adds experts and a shared network, if a file has them.
fn with_experts(config: &GgufConfig<'_>, descriptor: Descriptor) -> Result<Descriptor, LoadError> {
    if config.n_experts()? == 0 {
        return Ok(descriptor);
    }
    let mut moe = config.moe(MoeDefaults::NORMALIZED)?;
    if let Some(n_ff) = config.opt_count("expert_shared_feed_forward_length")? {
        moe = moe.with_shared(n_ff, false);
    }
    Ok(descriptor.with_experts(&moe, |_| true))
}

/// Collects the keys of a Granite folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.find_biases(["attention_bias", "mlp_bias"])?;
    keys.usual()?;
    keys.vocab_size()?;
    keys.set_count("rope.dimension_count", keys.sizes.head_dim)?;
    for (name, field) in [
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
    ] {
        keys.copy_number(name, &[field])?;
    }
    match keys.config.opt_usize("shared_intermediate_size")? {
        None | Some(0) => Ok(()),
        Some(width) => keys.set_count("expert_shared_feed_forward_length", width),
    }
}

/// Collects the keys of a folder with recurrent layers.
fn hybrid_rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let config = keys.config;
    config.require_activation(Activation::Silu, "silu, which its recurrent layers have")?;
    let has_attention = attention_layers(config, keys.sizes.n_layers)?;
    let has_experts = config.opt_usize("num_local_experts")?.unwrap_or(0) > 0;
    if has_experts {
        keys.find_router(true)?;
    }
    rule(keys)?;
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
    let keys = [KINDS, "layers_block_type"];
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
