//! Gemma 3n: as Gemma 3 with unscaled scores and normed values, four streams of hidden states (AltUp), a
//! low-rank path around each mixer (LAuReL), per-layer embeddings, sparse activations in the first layers,
//! and late layers that reuse the keys and values of earlier ones.
//!
//! Source: transformers, `models/gemma3n/modeling_gemma3n.py`; llama.cpp, `src/models/gemma3n.cpp`.

use serde_json::json;
use tokenmill_backend::{Activation, RopeStyle};
use tokenmill_gguf::{Array, Value};

use crate::{
    AltUpDescriptor, Descriptor, Ignorable, LayerEmbeddingsDescriptor, LoadError, NormPlacement, Presence,
    QkNorm, RopeDescriptor, RopeScaling,
};

use super::{
    Architecture, Change, GgufConfig, GgufKeys, HfConfig, HfLayout, gemma, gemma4::share_kv,
    normal::normal_quantile,
};

/// Default period of the layers with full attention.
const PERIOD: usize = 5;
/// Default rope base of layers with a window.
const LOCAL_BASE: f32 = 10_000.0;
/// Defaults of other optional keys: the number of streams, the width of per-layer embeddings, the rank of
/// LAuReL, and the cap of the logits.
const N_STREAMS: usize = 4;
const EMBEDDING_WIDTH: usize = 256;
const LAUREL_RANK: usize = 64;
const LOGIT_SOFTCAP: f32 = 30.0;
/// Number of leading sparse layers in a larger network, if a file does not state it.
const N_SPARSE_LAYERS: usize = 10;
const SPARSITY: f32 = 0.95;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gemma3n",
    from_gguf,
    hf_classes: &["Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"],
    hf_layout: HfLayout {
        layer: &[
            ("post_attention_layernorm", "post_attention_norm"),
            ("pre_feedforward_layernorm", "ffn_norm"),
            ("post_feedforward_layernorm", "post_ffw_norm"),
            ("per_layer_input_gate", "inp_gate"),
            ("per_layer_projection", "proj"),
            ("post_per_layer_input_norm", "post_norm"),
            ("altup.correct_output_scale", "altup_correct_scale.weight"),
            ("altup.correction_coefs", "altup_correct_coef"),
            ("altup.prediction_coefs", "altup_predict_coef"),
            ("altup.modality_router", "altup_router"),
            ("altup.router_norm", "altup_router_norm"),
            ("laurel.linear_left", "laurel_l"),
            ("laurel.linear_right", "laurel_r"),
            ("laurel.post_laurel_norm", "laurel_post_norm"),
        ],
        network: &[
            ("embed_tokens_per_layer", "per_layer_token_embd"),
            ("per_layer_model_projection", "per_layer_model_proj"),
            ("per_layer_projection_norm", "per_layer_proj_norm"),
            ("altup_projections.*", "altup_proj"),
            ("altup_unembed_projections.*", "altup_unembd_proj"),
        ],
        ignored: &[
            "model.vision_tower.",
            "model.audio_tower.",
            "model.embed_vision.",
            "model.embed_audio.",
        ],
        changes: &[("per_layer_token_embd.weight", Change::FillVocabulary)],
        ..HfLayout::LLAMA
    },
    from_hf: Some(from_hf),
    rule,
};

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Neox)?;
    config.set_windows(&mut descriptor, PERIOD)?;
    let local_rope = RopeDescriptor {
        base: config.opt_f32("rope.freq_base_swa")?.unwrap_or(LOCAL_BASE),
        scaling: RopeScaling::None,
        ..descriptor.ropes[0].clone()
    };
    let n_layers = descriptor.layers.len();
    let cutoffs = match config.value("activation_sparsity_scale") {
        Some(Value::Array(Array::F32(cutoffs))) if cutoffs.len() >= n_layers => cutoffs.clone(),
        Some(_) => {
            return Err(LoadError::BadValue {
                what: "activation sparsity",
                found: "something else".to_owned(),
                expected: "a number for each layer",
            });
        }
        None => default_sparsity(n_layers).map(normal_quantile).collect(),
    };
    descriptor.logit_softcap = Some(
        config
            .opt_positive("final_logit_softcapping")?
            .unwrap_or(LOGIT_SOFTCAP),
    );
    let variant = Variant {
        n_streams: config.opt_usize("altup.num_inputs")?.unwrap_or(N_STREAMS),
        active_stream: config.opt_usize("altup.active_idx")?.unwrap_or(0),
        output_row: Presence::Required,
        laurel_rank: config.n_rows_of("blk.0.laurel_l.weight"),
        embedding_width: (config.opt_usize("embedding_length_per_layer_input")?).unwrap_or(EMBEDDING_WIDTH),
        n_sharing: config.opt_usize("attention.shared_kv_layers")?.unwrap_or(0),
        cutoffs,
    };
    finish(&mut descriptor, local_rope, variant)?;
    Ok(descriptor)
}

fn from_hf(config: &HfConfig) -> Result<Descriptor, LoadError> {
    // The class defaults, which its files may omit.
    let config = &config.with_defaults(&[
        ("num_kv_shared_layers", json!(15)),
        ("sliding_window", json!(512)),
        ("num_key_value_heads", json!(2)),
        ("head_dim", json!(256)),
        ("rope_theta", json!(1_000_000.0)),
        ("rope_local_base_freq", json!(LOCAL_BASE)),
    ]);
    config.require_hidden_activation(Activation::GeluTanh, "gelu_pytorch_tanh")?;
    let mut descriptor = config.decoder()?;
    let n_layers = descriptor.layers.len();
    config.set_windows(&mut descriptor, |layer_idx| (layer_idx + 1) % PERIOD != 0)?;
    let local_rope = config.rope("sliding_attention", descriptor.ropes[0].head_dim)?;
    let bias = config.presence("attention_bias")?;
    for layer in &mut descriptor.layers {
        let attention = layer.attention_mut();
        (attention.qkv_bias, attention.output_bias) = (bias, bias);
    }
    let sparsity = match config.opt_f32s("activation_sparsity_pattern")? {
        None => default_sparsity(n_layers).collect(),
        Some(shares) => shares,
    };
    let is_share = |share: &f32| (0.0..1.0).contains(share);
    if sparsity.len() != n_layers || !sparsity.iter().all(is_share) {
        let expected = "a number from 0 to 1 for each layer";
        return Err(config.wrong("activation_sparsity_pattern", expected));
    }
    let count = |key, default| Ok::<_, LoadError>(config.opt_usize(key)?.unwrap_or(default));
    descriptor.logit_softcap = Some((config.opt_f32("final_logit_softcapping")?).unwrap_or(LOGIT_SOFTCAP));
    let variant = Variant {
        n_streams: count("altup_num_inputs", N_STREAMS)?,
        active_stream: count("altup_active_idx", 0)?,
        output_row: match config.opt_bool("altup_correct_scale")? {
            Some(false) => Presence::Absent,
            _ => Presence::Required,
        },
        laurel_rank: count("laurel_rank", LAUREL_RANK)?,
        embedding_width: count("hidden_size_per_layer_input", EMBEDDING_WIDTH)?,
        n_sharing: count("num_kv_shared_layers", 0)?,
        cutoffs: sparsity.into_iter().map(normal_quantile).collect(),
    };
    finish(&mut descriptor, local_rope, variant)?;
    Ok(descriptor)
}

/// Returns the fraction of zero activations in each layer.
fn default_sparsity(n_layers: usize) -> impl Iterator<Item = f32> {
    let n_sparse = if n_layers > N_SPARSE_LAYERS {
        N_SPARSE_LAYERS
    } else {
        0
    };
    (0..n_layers).map(move |layer_idx| if layer_idx < n_sparse { SPARSITY } else { 0.0 })
}

/// The fields that both kinds of files describe.
struct Variant {
    n_streams: usize,
    /// The index of the stream that layers work on.
    active_stream: usize,
    output_row: Presence,
    laurel_rank: usize,
    embedding_width: usize,
    /// Number of trailing layers that reuse the keys and values of earlier layers.
    n_sharing: usize,
    /// Each layer's activation cutoff, in standard deviations above the mean; not finite for layers that are
    /// not sparse.
    cutoffs: Vec<f32>,
}

fn finish(
    descriptor: &mut Descriptor,
    local_rope: RopeDescriptor,
    variant: Variant,
) -> Result<(), LoadError> {
    gemma::finish(descriptor);
    if variant.active_stream != 0 {
        return Err(LoadError::UnsupportedFeature {
            arch: "gemma3n".to_owned(),
            feature: format!(
                "layers that work on stream {}, not on stream 0",
                variant.active_stream
            ),
        });
    }
    descriptor.ropes.push(local_rope);
    for (layer, cutoff) in descriptor.layers.iter_mut().zip(variant.cutoffs) {
        layer.norms = NormPlacement::PreAndPost;
        layer.dense_mut().cutoff = cutoff.is_finite().then_some(cutoff);
        let attention = layer.attention_mut();
        attention.scale = 1.0;
        attention.qk_norm = Some(QkNorm::Head);
        attention.has_v_norm = true;
        attention.rope = Some(usize::from(attention.window.is_some()));
    }
    if variant.output_row == Presence::Absent {
        // Checkpoints contain these tensors nevertheless.
        let names = (0..descriptor.layers.len())
            .map(|layer_idx| Ignorable::Tensor(format!("blk.{layer_idx}.altup_correct_scale.weight")));
        descriptor.ignorable.extend(names);
    }
    descriptor.alt_up = Some(AltUpDescriptor {
        n_streams: variant.n_streams,
        output_row: variant.output_row,
        laurel_rank: variant.laurel_rank,
    });
    if variant.embedding_width > 0 {
        descriptor.layer_embeddings = Some(LayerEmbeddingsDescriptor {
            width: variant.embedding_width,
            activation: Activation::GeluTanh,
        });
    }
    share_kv(descriptor, variant.n_sharing)
}

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
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
