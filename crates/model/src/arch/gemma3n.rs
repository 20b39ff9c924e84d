//! Gemma 3n: as Gemma 3 with unscaled scores and normed values, four streams of hidden states (AltUp), a
//! low-rank path around each mixer (LAuReL), per-layer embeddings, sparse activations in the first layers,
//! and late layers that reuse the keys and values of earlier ones.
//!
//! Source: transformers, `models/gemma3n/modeling_gemma3n.py`; llama.cpp, `src/models/gemma3n.cpp`.

use tokenmill_backend::RopeStyle;
use tokenmill_gguf::{Array, Value};

use crate::{
    AltUpDescriptor, Ignorable, LoadError, Presence, RopeDescriptor, RopeScaling, normal::normal_quantile,
};

use super::{
    Architecture, Change, HfLayout,
    gemma::{self, LOCAL_BASE},
    gemma4,
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
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        config.set_windows(&mut descriptor, PERIOD)?;
        let local = RopeDescriptor {
            base: config.opt_f32("rope.freq_base_swa")?.unwrap_or(LOCAL_BASE),
            scaling: RopeScaling::None,
            ..descriptor.ropes[0].clone()
        };
        let descriptor = gemma::finish(descriptor).with_local_rope(config, local);
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
            None => (default_sparsity(n_layers).map(normal_quantile)).collect::<Vec<_>>(),
        };
        let active_stream = config.opt_usize("altup.active_idx")?.unwrap_or(0);
        if active_stream != 0 {
            return Err(config.unsupported(format!(
                "layers that work on stream {active_stream}, not on stream 0"
            )));
        }
        // A cutoff in standard deviations above the mean; not finite for layers that are not sparse.
        let mut descriptor = gemma4::with_unscaled_scores(descriptor).with_layers(|layer_idx, layer| {
            layer.dense_mut().cutoff = Some(cutoffs[layer_idx]).filter(|cutoff| cutoff.is_finite());
        });
        let softcap = config.opt_positive("final_logit_softcapping")?;
        descriptor.logit_softcap = Some(softcap.unwrap_or(LOGIT_SOFTCAP));
        descriptor.alt_up = Some(AltUpDescriptor {
            n_streams: config.opt_usize("altup.num_inputs")?.unwrap_or(N_STREAMS),
            output_row: Presence::Required,
            laurel_rank: config.n_rows_of("blk.0.laurel_l.weight"),
        });
        gemma4::finish_embeddings_and_kv(config, &mut descriptor, EMBEDDING_WIDTH)?;
        Ok(descriptor)
    },
    hf_classes: &["Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"],
    hf_layout: HfLayout {
        layer: &[
            ("altup.correct_output_scale", "altup_correct_scale.weight"),
            ("altup.correction_coefs", "altup_correct_coef"),
            ("altup.prediction_coefs", "altup_predict_coef"),
            ("altup.modality_router", "altup_router"),
            ("altup.router_norm", "altup_router_norm"),
            ("laurel.linear_left", "laurel_l"),
            ("laurel.linear_right", "laurel_r"),
            ("laurel.post_laurel_norm", "laurel_post_norm"),
        ],
        shared: &[gemma::NORMS, gemma4::LAYER],
        network: &[
            gemma4::NETWORK[0],
            gemma4::NETWORK[1],
            gemma4::NETWORK[2],
            ("altup_projections.*", "altup_proj"),
            ("altup_unembed_projections.*", "altup_unembd_proj"),
        ],
        ignored: gemma4::TOWERS,
        changes: &[("per_layer_token_embd.weight", Change::FillVocabulary)],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        let config = keys.config;
        let n_layers = keys.sizes.n_layers;
        config.require_hidden_gelu()?;
        keys.facts.activation = None;
        keys.find_attention_bias("attention_bias")?;
        keys.find_windows(|layer_idx| (layer_idx + 1) % PERIOD != 0)?;
        keys.find_local_rope()?;
        let listed = config.opt_f32s("activation_sparsity_pattern")?;
        let sparsity: Vec<f32> = listed.unwrap_or_else(|| default_sparsity(n_layers).collect());
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
        keys.set_count_list("feed_forward_length", &keys.sizes.n_ff.clone())?;
        let softcap = config.opt_f32("final_logit_softcapping")?;
        keys.set("final_logit_softcapping", softcap.unwrap_or(LOGIT_SOFTCAP));
        keys.window_of_layers()?;
        for (name, field, default) in [
            ("altup.active_idx", "altup_active_idx", 0),
            ("altup.num_inputs", "altup_num_inputs", N_STREAMS),
            (
                "embedding_length_per_layer_input",
                "hidden_size_per_layer_input",
                EMBEDDING_WIDTH,
            ),
        ] {
            keys.set_count(name, config.opt_usize(field)?.unwrap_or(default))?;
        }
        keys.shared_kv()?;
        let cutoffs: Vec<f32> = sparsity.into_iter().map(normal_quantile).collect();
        keys.set("activation_sparsity_scale", cutoffs);
        keys.window_pattern();
        Ok(())
    },
};

/// Returns the fraction of zero activations in each layer.
fn default_sparsity(n_layers: usize) -> impl Iterator<Item = f32> {
    let n_sparse = N_SPARSE_LAYERS * usize::from(n_layers > N_SPARSE_LAYERS);
    (0..n_layers).map(move |layer_idx| if layer_idx < n_sparse { SPARSITY } else { 0.0 })
}
