//! Gemma 3n: as Gemma 3 with unscaled scores and normed values, four streams of hidden states (AltUp), a
//! low-rank path around each mixer (LAuReL), per-layer embeddings, sparse activations in the first layers,
//! and late layers that reuse the keys and values of earlier ones.
//!
//! Source: transformers, `models/gemma3n/modeling_gemma3n.py`; llama.cpp, `src/models/gemma3n.cpp`.

use tokenmill_backend::{Activation, RopeStyle};
use tokenmill_gguf::{Array, Value};

use crate::{AltUpDescriptor, Descriptor, Ignorable, LoadError, NormPlacement, Presence, QkNorm};

use super::{
    Architecture, Change, GgufConfig, GgufKeys, HfLayout, gemma, gemma3, gemma4, normal::normal_quantile,
};

/// Default period of the layers with full attention.
const PERIOD: usize = 5;
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
    rule,
};

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Neox)?;
    config.set_windows(&mut descriptor, PERIOD)?;
    gemma::finish(&mut descriptor);
    gemma3::push_local_rope(config, &mut descriptor)?;
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
    let active_stream = config.opt_usize("altup.active_idx")?.unwrap_or(0);
    if active_stream != 0 {
        return Err(config.unsupported(format!(
            "layers that work on stream {active_stream}, not on stream 0"
        )));
    }
    // A cutoff in standard deviations above the mean; not finite for layers that are not sparse.
    for (layer, cutoff) in descriptor.layers.iter_mut().zip(cutoffs) {
        layer.norms = NormPlacement::PreAndPost;
        layer.dense_mut().cutoff = cutoff.is_finite().then_some(cutoff);
        let attention = layer.attention_mut();
        attention.scale = 1.0;
        attention.qk_norm = Some(QkNorm::Head);
        attention.has_v_norm = true;
    }
    descriptor.alt_up = Some(AltUpDescriptor {
        n_streams: config.opt_usize("altup.num_inputs")?.unwrap_or(N_STREAMS),
        output_row: Presence::Required,
        laurel_rank: config.n_rows_of("blk.0.laurel_l.weight"),
    });
    gemma4::finish_embeddings_and_kv(config, &mut descriptor, EMBEDDING_WIDTH)?;
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

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let config = keys.config;
    let n_layers = keys.sizes.n_layers;
    config.require_hidden_gelu()?;
    keys.facts.activation = None;
    keys.find_attention_bias("attention_bias")?;
    keys.find_windows(|layer_idx| (layer_idx + 1) % PERIOD != 0)?;
    keys.find_local_rope()?;
    let sparsity = match config.opt_f32s("activation_sparsity_pattern")? {
        None => default_sparsity(n_layers).collect(),
        Some(shares) => shares,
    };
    let is_share = |share: &f32| (0.0..1.0).contains(share);
    if sparsity.len() != n_layers || !sparsity.iter().all(is_share) {
        let expected = "a number from 0 to 1 for each layer";
        return Err(config.wrong("activation_sparsity_pattern", expected));
    }
    let laurel_rank = config.opt_usize("laurel_rank")?.unwrap_or(LAUREL_RANK);
    let has_output_row = config.opt_bool("altup_correct_scale")?.unwrap_or(true);
    keys.facts.amend(move |descriptor| {
        if let Some(alt_up) = &mut descriptor.alt_up {
            alt_up.laurel_rank = laurel_rank;
            if !has_output_row {
                alt_up.output_row = Presence::Absent;
            }
        }
    });
    if !has_output_row {
        // Checkpoints contain these tensors nevertheless.
        let names = (0..n_layers)
            .map(|layer_idx| Ignorable::Tensor(format!("blk.{layer_idx}.altup_correct_scale.weight")));
        keys.facts.ignorable.extend(names);
    }
    keys.usual()?;
    keys.set_own_heads()?;
    let widths = keys.sizes.n_ff.clone();
    keys.set_count_list("feed_forward_length", &widths)?;
    let softcap = config.opt_f32("final_logit_softcapping")?;
    keys.set("final_logit_softcapping", softcap.unwrap_or(LOGIT_SOFTCAP));
    keys.window_of_layers()?;
    let active_stream = config.opt_usize("altup_active_idx")?.unwrap_or(0);
    keys.set_count("altup.active_idx", active_stream)?;
    let n_streams = config.opt_usize("altup_num_inputs")?.unwrap_or(N_STREAMS);
    keys.set_count("altup.num_inputs", n_streams)?;
    let width = config.opt_usize("hidden_size_per_layer_input")?;
    keys.set_count(
        "embedding_length_per_layer_input",
        width.unwrap_or(EMBEDDING_WIDTH),
    )?;
    keys.shared_kv()?;
    let cutoffs: Vec<f32> = sparsity.into_iter().map(normal_quantile).collect();
    keys.set("activation_sparsity_scale", cutoffs);
    keys.window_pattern();
    Ok(())
}
