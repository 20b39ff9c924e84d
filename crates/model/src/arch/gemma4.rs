//! Gemma 4: as Gemma 3, with wider heads in full-attention layers, normed values, unscaled scores, and a
//! factor at each layer's end.
//!
//! Variants: full-attention layers that use keys as values; late layers that reuse the keys and values of
//! earlier ones, with feed-forward networks twice as wide; per-layer embeddings; experts in parallel with the
//! dense network.
//!
//! Source: transformers, `models/gemma4/modeling_gemma4.py`; llama.cpp, `src/models/gemma4.cpp`.

use tokenmill_backend::{Activation, RopeStyle};

use crate::{
    AttentionDescriptor, BesideDescriptor, Descriptor, FfnDescriptor, Ignorable, LayerEmbeddingsDescriptor,
    LoadError, NormPlacement, Presence, QkNorm, RopeDescriptor, RopeScaling,
};

use super::{
    Architecture, GgufConfig, GgufKeys, HfLayout,
    gemma::{self, LOCAL_BASE},
    gguf_experts::MoeDefaults,
    hf_layout::Names,
};

/// Period of the layers with full attention.
const PERIOD: usize = 6;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gemma4",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        config.set_windows(&mut descriptor, PERIOD)?;
        descriptor.logit_softcap = config.opt_positive("final_logit_softcapping")?;
        let global = &descriptor.ropes[0];
        let local_dim = (config.opt_usize("attention.key_length_swa")?).unwrap_or(global.head_dim);
        let local = RopeDescriptor {
            head_dim: local_dim,
            n_dims: config.opt_usize("rope.dimension_count_swa")?.unwrap_or(local_dim),
            base: config.opt_f32("rope.freq_base_swa")?.unwrap_or(LOCAL_BASE),
            scaling: RopeScaling::None,
            has_freq_factors: false,
            ..global.clone()
        };
        let descriptor = gemma::finish(descriptor).with_local_rope(config, local);
        let local_dim = descriptor.ropes[1].head_dim;
        let mut descriptor = with_unscaled_scores(descriptor).with_layers(|layer_idx, layer| {
            layer.has_output_scale = true;
            let has = |part: &str| config.has_tensor(&format!("blk.{layer_idx}.{part}.weight"));
            let attention = layer.attention_mut();
            attention.takes_keys_as_values = has("attn_k") && !has("attn_v");
            if attention.window.is_some() {
                (attention.head_dim_k, attention.head_dim_v) = (local_dim, local_dim);
            }
        });
        finish_embeddings_and_kv(config, &mut descriptor, 0)?;
        if config.n_experts()? == 0 {
            return Ok(descriptor);
        }
        let mut moe = config.moe(MoeDefaults::NORMALIZED)?;
        moe.activation = Activation::GeluTanh;
        moe.router.expert_scales = Presence::Required;
        Ok(descriptor.with_layers(|_, layer| {
            layer.ffn = FfnDescriptor::Beside(BesideDescriptor {
                dense: *layer.dense_mut(),
                moe: moe.clone(),
            });
        }))
    },
    hf_classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
    hf_layout: HfLayout {
        layer: &[
            ("layer_scalar", "layer_output_scale.weight"),
            ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
            ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
            ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
            ("router.proj", "ffn_gate_inp"),
            ("router.scale", "ffn_gate_inp.scale"),
            ("router.per_expert_scale", "ffn_down_exps.scale"),
            ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
            ("experts.down_proj", "ffn_down_exps.weight"),
        ],
        shared: &[gemma::NORMS, LAYER],
        network: NETWORK,
        ignored: TOWERS,
        ..HfLayout::LLAMA
    },
    rule,
};

/// Tensor names that Gemma 3n has too.
pub(super) const LAYER: Names = &[
    ("per_layer_input_gate", "inp_gate"),
    ("per_layer_projection", "proj"),
    ("post_per_layer_input_norm", "post_norm"),
];
pub(super) const NETWORK: Names = &[
    ("embed_tokens_per_layer", "per_layer_token_embd"),
    ("per_layer_model_projection", "per_layer_model_proj"),
    ("per_layer_projection_norm", "per_layer_proj_norm"),
];
/// Prefixes of tensors of the encoders of images and sound.
pub(super) const TOWERS: &[&str] = &[
    "model.vision_tower.",
    "model.audio_tower.",
    "model.embed_vision.",
    "model.embed_audio.",
];

/// Norms queries, keys and values, whose scores are not scaled, and both halves of each layer.
pub(super) fn with_unscaled_scores(descriptor: Descriptor) -> Descriptor {
    let descriptor = descriptor.with_norms(NormPlacement::PreAndPost);
    descriptor.with_qk_norm(QkNorm::Head).with_layers(|_, layer| {
        let attention = layer.attention_mut();
        (attention.scale, attention.has_v_norm) = (1.0, true);
    })
}

/// Adds per-layer embeddings, of `width` if no key states another, and the sharing of keys and values.
pub(super) fn finish_embeddings_and_kv(
    config: &GgufConfig<'_>,
    descriptor: &mut Descriptor,
    width: usize,
) -> Result<(), LoadError> {
    let width = config
        .opt_usize("embedding_length_per_layer_input")?
        .unwrap_or(width);
    if width > 0 {
        descriptor.layer_embeddings = Some(LayerEmbeddingsDescriptor {
            width,
            activation: Activation::GeluTanh,
        });
    }
    share_kv(
        descriptor,
        config.opt_usize("attention.shared_kv_layers")?.unwrap_or(0),
    )
}

/// Makes the last layers reuse the keys and values of the last earlier layer of the same kind.
fn share_kv(descriptor: &mut Descriptor, n_sharing: usize) -> Result<(), LoadError> {
    let n_layers = descriptor.layers.len();
    let wrong = |expected| LoadError::BadValue {
        what: "number of layers that read the keys and values of others",
        found: n_sharing.to_string(),
        expected,
    };
    let first = n_layers.checked_sub(n_sharing).filter(|&first| first > 0);
    let first = first.ok_or_else(|| wrong("less than the layer count"))?;
    let is_global = |attention: &AttentionDescriptor| attention.window.is_none();
    let kinds: Vec<bool> = descriptor.attentions().map(is_global).collect();
    for layer_idx in first..n_layers {
        let owner = kinds[..first].iter().rposition(|&kind| kind == kinds[layer_idx]);
        let owner = owner.ok_or_else(|| wrong("so few that one of each kind stores its own"))?;
        let attention = descriptor.layers[layer_idx].attention_mut();
        attention.shares_kv_of = Some(owner);
        attention.takes_keys_as_values = false;
        // Checkpoints may contain these tensors, which nothing reads.
        descriptor.ignorable.extend(
            ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"]
                .map(|part| Ignorable::Tensor(format!("blk.{layer_idx}.{part}"))),
        );
    }
    Ok(())
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let config = keys.config;
    let n_layers = keys.sizes.n_layers;
    config.require_hidden_gelu()?;
    keys.facts.activation = None;
    keys.find_attention_bias("attention_bias")?;
    keys.find_windows(|layer_idx| !(layer_idx + 1).is_multiple_of(PERIOD) && layer_idx + 1 < n_layers)?;
    keys.find_local_rope()?;
    if config.is("enable_moe_block")? {
        keys.find_router(true)?;
    }
    let n_sharing = config.opt_usize("num_kv_shared_layers")?.unwrap_or(0);
    let mut widths = keys.sizes.n_ff.clone();
    if config.is("use_double_wide_mlp")? {
        for width in widths.iter_mut().rev().take(n_sharing) {
            *width = width.saturating_mul(2);
        }
    }
    let heads = find_heads(keys)?;
    let windows = &keys.facts.windows;
    let global = windows
        .iter()
        .position(Option::is_none)
        .map(|layer_idx| heads[layer_idx].0);
    let local = windows.iter().any(Option::is_some).then_some(keys.sizes.head_dim);
    let width = global.unwrap_or(keys.sizes.head_dim);
    keys.facts.rope = Some(config.rope("full_attention", width)?);
    keys.usual()?;
    keys.set_counts("feed_forward_length", &widths)?;
    let kv_heads: Vec<usize> = heads.iter().map(|&(_, n_kv_heads)| n_kv_heads).collect();
    keys.set_counts("attention.head_count_kv", &kv_heads)?;
    keys.copy_number("final_logit_softcapping", &["final_logit_softcapping"])?;
    keys.window_of_layers()?;
    keys.shared_kv()?;
    let width_of_embeddings = config.opt_usize("hidden_size_per_layer_input")?.unwrap_or(0);
    keys.set_count("embedding_length_per_layer_input", width_of_embeddings)?;
    keys.window_pattern();
    keys.set_head_width(width)?;
    keys.set_count("rope.dimension_count", width)?;
    if let Some(width) = local.or(global) {
        keys.set_count("attention.key_length_swa", width)?;
        keys.set_count("attention.value_length_swa", width)?;
        keys.set_count("rope.dimension_count_swa", width)?;
    }
    keys.copy_count("expert_feed_forward_length", &["moe_intermediate_size"])
}

/// Reads the width of the heads of each layer, and the number of its KV heads.
fn find_heads(keys: &mut GgufKeys<'_>) -> Result<Vec<(usize, usize)>, LoadError> {
    let config = keys.config;
    let takes_keys = config.is("attention_k_eq_v")?;
    let global_dim = config.opt_usize("global_head_dim")?;
    let n_global_kv_heads = config.opt_usize("num_global_key_value_heads")?;
    // The newer layout lists the values that differ by layer.
    let all_own = config.object("per_layer_config")?;
    let mut heads = Vec::new();
    for layer_idx in 0..keys.sizes.n_layers {
        let (mut head_dim, mut n_kv_heads) = (keys.sizes.head_dim, keys.sizes.n_kv_heads);
        if keys.facts.windows[layer_idx].is_none() {
            let own = all_own.object(&layer_idx.to_string())?;
            head_dim = own.opt_usize("head_dim")?.or(global_dim).unwrap_or(head_dim);
            let own = own.opt_usize("num_key_value_heads")?;
            n_kv_heads = (own.or(n_global_kv_heads.filter(|_| takes_keys))).unwrap_or(n_kv_heads);
        }
        heads.push((head_dim, n_kv_heads));
    }
    let widths = heads.clone();
    keys.facts.amend_layers(move |layer_idx, layer| {
        let attention = layer.attention_mut();
        let (head_dim, _) = widths[layer_idx];
        (attention.head_dim_k, attention.head_dim_v) = (head_dim, head_dim);
        // Layers that read the keys of others store none.
        let is_global = attention.window.is_none() && attention.shares_kv_of.is_none();
        attention.takes_keys_as_values = takes_keys && is_global;
    });
    Ok(heads)
}
