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
    LoadError, MoeDescriptor, NormPlacement, Presence, QkNorm, RopeDescriptor, RopeScaling,
};

use super::{Architecture, GgufConfig, GgufKeys, HfConfig, HfLayout, gemma, gguf_experts::MoeDefaults};

/// Period of the layers with full attention.
const PERIOD: usize = 6;
/// Default rope base of layers with a window.
const LOCAL_BASE: f32 = 10_000.0;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gemma4",
    from_gguf,
    hf_classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
    hf_layout: HfLayout {
        layer: &[
            ("layer_scalar", "layer_output_scale.weight"),
            ("post_attention_layernorm", "post_attention_norm"),
            ("pre_feedforward_layernorm", "ffn_norm"),
            ("post_feedforward_layernorm", "post_ffw_norm"),
            ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
            ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
            ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
            ("router.proj", "ffn_gate_inp"),
            ("router.scale", "ffn_gate_inp.scale"),
            ("router.per_expert_scale", "ffn_down_exps.scale"),
            ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
            ("experts.down_proj", "ffn_down_exps.weight"),
            ("per_layer_input_gate", "inp_gate"),
            ("per_layer_projection", "proj"),
            ("post_per_layer_input_norm", "post_norm"),
        ],
        network: &[
            ("embed_tokens_per_layer", "per_layer_token_embd"),
            ("per_layer_model_projection", "per_layer_model_proj"),
            ("per_layer_projection_norm", "per_layer_proj_norm"),
        ],
        ignored: &[
            "model.vision_tower.",
            "model.audio_tower.",
            "model.embed_vision.",
            "model.embed_audio.",
        ],
        ..HfLayout::LLAMA
    },
    from_hf: Some(from_hf),
    rule,
};

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Neox)?;
    config.set_windows(&mut descriptor, PERIOD)?;
    let head_dim = descriptor.ropes[0].head_dim;
    let local_dim = config.opt_usize("attention.key_length_swa")?.unwrap_or(head_dim);
    let local_rope = RopeDescriptor {
        head_dim: local_dim,
        n_dims: config.opt_usize("rope.dimension_count_swa")?.unwrap_or(local_dim),
        base: config.opt_f32("rope.freq_base_swa")?.unwrap_or(LOCAL_BASE),
        scaling: RopeScaling::None,
        has_freq_factors: false,
        ..descriptor.ropes[0].clone()
    };
    for (layer_idx, layer) in descriptor.layers.iter_mut().enumerate() {
        let attention = layer.attention_mut();
        attention.takes_keys_as_values = config.has_tensor(&format!("blk.{layer_idx}.attn_k.weight"))
            && !config.has_tensor(&format!("blk.{layer_idx}.attn_v.weight"));
        if attention.window.is_some() {
            (attention.head_dim_k, attention.head_dim_v) = (local_dim, local_dim);
        }
    }
    descriptor.logit_softcap = config.opt_positive("final_logit_softcapping")?;
    let variant = Variant {
        n_sharing: config.opt_usize("attention.shared_kv_layers")?.unwrap_or(0),
        embedding_width: config.opt_usize("embedding_length_per_layer_input")?.unwrap_or(0),
        moe: if config.n_experts()? > 0 {
            Some(config.moe(MoeDefaults::NORMALIZED)?)
        } else {
            None
        },
    };
    finish(&mut descriptor, local_rope, variant)?;
    Ok(descriptor)
}

fn from_hf(config: &HfConfig) -> Result<Descriptor, LoadError> {
    config.require_hidden_activation(Activation::GeluTanh, "gelu_pytorch_tanh")?;
    let mut descriptor = config.decoder()?;
    let n_layers = descriptor.layers.len();
    config.set_windows(&mut descriptor, |layer_idx| {
        !(layer_idx + 1).is_multiple_of(PERIOD) && layer_idx + 1 < n_layers
    })?;
    let bias = config.presence("attention_bias")?;
    let takes_keys = config.is("attention_k_eq_v")?;
    let global_dim = config.opt_usize("global_head_dim")?;
    let n_global_kv_heads = config.opt_usize("num_global_key_value_heads")?;
    // The newer layout lists the values that differ by layer.
    let all_own = config.object("per_layer_config")?;
    for (layer_idx, layer) in descriptor.layers.iter_mut().enumerate() {
        let attention = layer.attention_mut();
        (attention.qkv_bias, attention.output_bias) = (bias, bias);
        if attention.window.is_some() {
            continue;
        }
        let own = all_own.object(&layer_idx.to_string())?;
        let head_dim = own.opt_usize("head_dim")?.or(global_dim);
        let head_dim = head_dim.unwrap_or(attention.head_dim_k);
        (attention.head_dim_k, attention.head_dim_v) = (head_dim, head_dim);
        attention.takes_keys_as_values = takes_keys;
        let n_kv_heads = own.opt_usize("num_key_value_heads")?;
        if let Some(n_kv_heads) = n_kv_heads.or(n_global_kv_heads.filter(|_| takes_keys)) {
            attention.n_kv_heads = n_kv_heads;
        }
    }
    let local_rope = config.rope("sliding_attention", descriptor.ropes[0].head_dim)?;
    let global = (descriptor.attentions()).find(|attention| attention.window.is_none());
    let global_dim = global.map_or(local_rope.head_dim, |attention| attention.head_dim_k);
    descriptor.ropes[0] = config.rope("full_attention", global_dim)?;
    descriptor.logit_softcap = config.opt_f32("final_logit_softcapping")?;
    let n_sharing = config.opt_usize("num_kv_shared_layers")?.unwrap_or(0);
    if config.is("use_double_wide_mlp")? {
        for layer in descriptor.layers.iter_mut().rev().take(n_sharing) {
            let dense = layer.dense_mut();
            dense.n_ff = dense.n_ff.saturating_mul(2);
        }
    }
    let variant = Variant {
        n_sharing,
        embedding_width: config.opt_usize("hidden_size_per_layer_input")?.unwrap_or(0),
        moe: if config.is("enable_moe_block")? {
            Some(config.moe(true)?)
        } else {
            None
        },
    };
    finish(&mut descriptor, local_rope, variant)?;
    Ok(descriptor)
}

/// Features of some models of the family.
struct Variant {
    /// Number of trailing layers that reuse the keys and values of earlier layers.
    n_sharing: usize,
    /// Width of the per-layer embeddings; 0 if there are none.
    embedding_width: usize,
    /// The experts in parallel with the dense networks.
    moe: Option<MoeDescriptor>,
}

fn finish(
    descriptor: &mut Descriptor,
    local_rope: RopeDescriptor,
    variant: Variant,
) -> Result<(), LoadError> {
    gemma::finish(descriptor);
    descriptor.ropes.push(local_rope);
    for layer in &mut descriptor.layers {
        layer.norms = NormPlacement::PreAndPost;
        layer.has_output_scale = true;
        let attention = layer.attention_mut();
        attention.scale = 1.0;
        attention.qk_norm = Some(QkNorm::Head);
        attention.has_v_norm = true;
        attention.rope = Some(usize::from(attention.window.is_some()));
    }
    if variant.embedding_width > 0 {
        descriptor.layer_embeddings = Some(LayerEmbeddingsDescriptor {
            width: variant.embedding_width,
            activation: Activation::GeluTanh,
        });
    }
    share_kv(descriptor, variant.n_sharing)?;
    let Some(mut moe) = variant.moe else {
        return Ok(());
    };
    moe.activation = Activation::GeluTanh;
    moe.router.expert_scales = Presence::Required;
    for layer in &mut descriptor.layers {
        layer.ffn = FfnDescriptor::Beside(BesideDescriptor {
            dense: *layer.dense_mut(),
            moe: moe.clone(),
        });
    }
    Ok(())
}

/// Makes the last layers reuse the keys and values of the last earlier layer of the same kind.
pub(super) fn share_kv(descriptor: &mut Descriptor, n_sharing: usize) -> Result<(), LoadError> {
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
