//! Falcon-H1: attention and Mamba 2 in parallel in every layer. GGUF files have its multipliers folded into
//! the weights; folders do not.
//!
//! Source: transformers, `models/falcon_h1/modeling_falcon_h1.py`; llama.cpp, `src/models/falcon-h1.cpp`.

use tokenmill_backend::{Activation, RopeStyle};

use crate::{Descriptor, LoadError, MixerDescriptor, RowFactors, SsmDescriptor};

use super::{
    Architecture, GgufConfig, GgufKeys, HfLayout, Recast,
    hf_recurrent::{MAMBA_2, SSM_CHANGES},
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "falcon-h1",
    from_gguf,
    hf_classes: &["FalconH1ForCausalLM"],
    hf_layout: HfLayout {
        layer: &[
            ("pre_ff_layernorm", "ffn_norm"),
            ("feed_forward.gate_proj", "ffn_gate"),
            ("feed_forward.up_proj", "ffn_up"),
            ("feed_forward.down_proj", "ffn_down"),
        ],
        shared: &[MAMBA_2],
        network: &[("final_layernorm", "output_norm")],
        changes: SSM_CHANGES,
        recasts: &[
            ("token_embd.weight", Recast::EmbeddingScale),
            ("output.weight", Recast::LogitScale),
            ("attn_k.weight", Recast::ScoreScale),
            ("ssm_conv1d.weight", Recast::Squeeze),
            ("ssm_a", Recast::Column),
            ("ssm_d", Recast::Column),
            ("ffn_norm.weight", Recast::Rename("ffn_norm")),
        ],
        ..HfLayout::LLAMA
    },
    rule,
};

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Neox)?;
    let ssm = config.mamba2(config.has_tensor("blk.0.ssm_norm.weight"))?;
    for layer in &mut descriptor.layers {
        layer.mixer = MixerDescriptor::Both {
            attention: layer.attention_mut().clone(),
            ssm,
        };
    }
    descriptor.tensor_names = &[("ffn_norm.weight", "ffn_norm")];
    Ok(descriptor)
}

/// Collects the keys of a folder. Its multipliers, which files have in the weights, are facts.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let config = keys.config;
    config.require_activation(Activation::Silu, "silu, which its recurrent layers have")?;
    let has_norm = config.is("mamba_rms_norm")?;
    if has_norm && config.opt_bool("mamba_norm_before_gate")?.unwrap_or(true) {
        return Err(config.wrong("mamba_norm_before_gate", "a norm behind the gate"));
    }
    for key in ["attention_bias", "mamba_proj_bias", "mlp_bias"] {
        // It is unspecified whether a multiplier of a projection applies to its bias.
        if config.is(key)? {
            return Err(config.wrong(key, "projections without biases"));
        }
    }
    keys.usual()?;
    keys.vocab_size()?;
    let ssm = config.mamba2(has_norm)?;
    keys.state_space(ssm)?;
    let factor = |key: &str| Ok::<_, LoadError>(config.opt_f32(key)?.unwrap_or(1.0));
    let into_attention = factor("attention_in_multiplier")?;
    // Queries and keys meet only in the scores, so one factor covers both.
    let score_factor = into_attention * into_attention * factor("key_multiplier")?;
    let scale = 1.0 / (keys.sizes.head_dim as f32).sqrt() * score_factor;
    keys.facts.score_scales = Some(vec![scale; keys.sizes.n_layers]);
    let (embedding_scale, logit_scale) = (factor("embedding_multiplier")?, factor("lm_head_multiplier")?);
    let factors = row_factors(keys, ssm)?;
    keys.facts.amend(move |descriptor| {
        descriptor.embedding_scale = embedding_scale;
        descriptor.logit_scale = logit_scale;
        descriptor.row_factors.clone_from(&factors);
    });
    Ok(())
}

/// Returns the multipliers of a folder's matrices.
fn row_factors(keys: &GgufKeys<'_>, ssm: SsmDescriptor) -> Result<Vec<RowFactors>, LoadError> {
    let config = keys.config;
    let factor = |key: &str| Ok::<_, LoadError>(config.opt_f32(key)?.unwrap_or(1.0));
    let factors = |key: &str, n: usize| match config.opt_f32s(key)? {
        None => Ok(vec![1.0; n]),
        Some(factors) if factors.len() == n => Ok(factors),
        Some(_) => Err(config.wrong(key, &format!("{n} numbers"))),
    };
    let into_ssm = factor("ssm_in_multiplier")?;
    let inner_width = ssm.n_heads.saturating_mul(ssm.head_dim);
    let state_width = ssm.n_groups.saturating_mul(ssm.n_state);
    let widths = [inner_width, inner_width, state_width, state_width, ssm.n_heads];
    let ssm_factors = factors("ssm_multipliers", widths.len())?;
    let mlp_factors = factors("mlp_multipliers", 2)?;
    let whole = |tensor, n_rows, factor| RowFactors {
        tensor,
        rows: vec![(n_rows, factor)],
    };
    let n_embd = keys.sizes.n_embd;
    let n_ff = keys.sizes.n_ff.first().copied().unwrap_or(0);
    let of_attention = factor("attention_in_multiplier")? * factor("attention_out_multiplier")?;
    Ok(vec![
        whole("attn_output.weight", n_embd, of_attention),
        RowFactors {
            tensor: "ssm_in.weight",
            rows: (widths.into_iter().zip(ssm_factors))
                .map(|(width, factor)| (width, into_ssm * factor))
                .collect(),
        },
        whole("ssm_out.weight", n_embd, factor("ssm_out_multiplier")?),
        whole("ffn_gate.weight", n_ff, mlp_factors[0]),
        whole("ffn_down.weight", n_embd, mlp_factors[1]),
    ])
}
