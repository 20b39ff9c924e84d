//! Nemotron-H and Nemotron 3: each layer is one of Mamba 2, attention without positions, or a feed-forward
//! network with squared ReLU; later models have experts and a shared network.
//!
//! Source: transformers, `models/nemotron_h/modeling_nemotron_h.py`; llama.cpp, `src/models/nemotron-h.cpp`.

use tokenmill_backend::{Activation, ExpertScore, RopeStyle};

use crate::{Descriptor, FfnDescriptor, LatentExperts, LoadError, MixerDescriptor, OutputHead, Presence};

use super::{
    Architecture, GgufConfig, GgufKeys, HfConfig, HfLayout, Recast,
    gguf_experts::MoeDefaults,
    gguf_keys::UNBOUNDED,
    hf_recurrent::{BACKBONE, SSM, SSM_CHANGES},
};

pub(super) const NEMOTRON_H: Architecture = Architecture {
    name: "nemotron_h",
    from_gguf,
    hf_classes: &["NemotronHForCausalLM"],
    hf_layout: HfLayout {
        prefixes: &["backbone.", "model."],
        layer: &[
            ("mixer.q_proj", "attn_q"),
            ("mixer.k_proj", "attn_k"),
            ("mixer.v_proj", "attn_v"),
            ("mixer.o_proj", "attn_output"),
            ("mixer.up_proj", "ffn_up"),
            ("mixer.down_proj", "ffn_down"),
            ("mixer.gate", "ffn_gate_inp"),
            ("mixer.fc1_latent_proj", "ffn_latent_down"),
            ("mixer.fc2_latent_proj", "ffn_latent_up"),
            ("mixer.gate.e_score_correction_bias", "exp_probs_b.bias"),
            ("mixer.experts.*.up_proj", "ffn_up_exps"),
            ("mixer.experts.*.down_proj", "ffn_down_exps"),
            ("mixer.shared_experts.up_proj", "ffn_up_shexp"),
            ("mixer.shared_experts.down_proj", "ffn_down_shexp"),
        ],
        shared: &[SSM],
        network: BACKBONE,
        ignored: &["mtp."],
        changes: SSM_CHANGES,
        recasts: Recast::SSM,
        arch_with_experts: Some("nemotron_h_moe"),
        ..HfLayout::LLAMA
    },
    rule,
};

pub(super) const NEMOTRON_H_MOE: Architecture = Architecture {
    name: "nemotron_h_moe",
    from_gguf: |config| {
        let descriptor = from_gguf(config)?;
        if config.n_experts()? == 0 {
            return Ok(descriptor);
        }
        let mut moe = config.moe(MoeDefaults::SIGMOID)?;
        moe.router.choice_bias = Presence::Optional;
        (moe.activation, moe.is_gated) = (Activation::ReluSquared, false);
        moe.shared = config.shared_experts(&moe)?;
        moe.latent = (config.opt_count("moe_latent_size")?).map(|width| LatentExperts {
            width,
            bias: config.facts.map_or(Presence::Optional, |facts| facts.shared_bias),
        });
        let listed = config.facts.and_then(|facts| facts.expert_layers.as_ref());
        Ok(descriptor.with_experts(&moe, |layer_idx| match listed {
            Some(listed) => listed[layer_idx],
            None => config.has_tensor(&format!("blk.{layer_idx}.ffn_gate_inp.weight")),
        }))
    },
    // Its folders have the class of the models without experts.
    hf_classes: &[],
    hf_layout: HfLayout {
        recasts: Recast::SSM,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        rule(keys)?;
        let config = keys.config;
        keys.find_router(true)?.score = Some(ExpertScore::Sigmoid);
        keys.facts.shared_bias = config.presence("mlp_bias")?;
        keys.facts.n_shared_ff = Some(match config.opt_usize("n_shared_experts")? {
            None | Some(0) => 0,
            Some(_) => config.count("moe_shared_expert_intermediate_size")?,
        });
        keys.routed_experts()?;
        keys.copy_count(
            "expert_shared_feed_forward_length",
            &["moe_shared_expert_intermediate_size"],
        )?;
        keys.remove("leading_dense_block_count");
        keys.copy_count("moe_latent_size", &["moe_latent_size"])
    },
};

/// The kind of a layer.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Mamba,
    Attention,
    Dense,
    Experts,
}

impl Kind {
    /// Returns the kind with this name in a list, or with this letter in a pattern.
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "mamba" | "linear_attention" | "M" => Self::Mamba,
            "attention" | "full_attention" | "*" => Self::Attention,
            "mlp" | "-" => Self::Dense,
            "moe" | "E" => Self::Experts,
            _ => return None,
        })
    }
}

/// Reads the kinds of the layers, from a list of names or a string of letters.
fn layer_kinds(config: &HfConfig) -> Result<Vec<Kind>, LoadError> {
    let key = "layers_block_type";
    if let Some(kinds) = config.layer_kinds(&[key])? {
        let names = "mamba, linear_attention, attention, full_attention, mlp or moe";
        let kinds: Option<_> = kinds.into_iter().map(Kind::of).collect();
        return kinds.ok_or_else(|| config.wrong(key, names));
    }
    let key = "hybrid_override_pattern";
    let pattern = config.get(key).and_then(|pattern| pattern.as_str());
    let kinds = pattern.and_then(|pattern| pattern.chars().map(|c| Kind::of(&c.to_string())).collect());
    kinds.ok_or_else(|| config.wrong(key, "a string of M, *, - and E"))
}

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Neox)?;
    descriptor.ropes.clear();
    for layer in &mut descriptor.layers {
        layer.attention_mut().rope = None;
        if layer.dense_mut().n_ff > 0 {
            layer.mixer = MixerDescriptor::None;
            layer.dense_mut().activation = Activation::ReluSquared;
            layer.dense_mut().is_gated = false;
            continue;
        }
        layer.ffn = FfnDescriptor::None;
        if layer.attention_mut().n_kv_heads == 0 {
            layer.mixer = MixerDescriptor::Ssm(config.mamba2(true)?);
        }
    }
    descriptor.tensor_names = &[("ffn_norm.weight", "attn_norm.weight")];
    Ok(descriptor)
}

/// Collects the keys that dense models and those with experts have.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    let config = keys.config;
    let kinds = layer_kinds(config)?;
    let n_layers = keys.sizes.n_layers;
    config.check_kinds("hybrid_override_pattern", kinds.len(), n_layers)?;
    // transformers' class creates no attention biases and does not tie the head, whatever the configuration
    // says.
    keys.facts.head = OutputHead::OwnIfPresent;
    keys.facts.qkv_bias = Some(Presence::Optional);
    keys.facts.output_bias = Some(Presence::Optional);
    keys.facts.ffn_bias = Some(config.presence("mlp_bias")?);
    keys.facts.has_experts = kinds.contains(&Kind::Experts);
    keys.usual()?;
    keys.remove("rope.freq_base");
    let widths: Vec<usize> = (kinds.iter().zip(&keys.sizes.n_ff))
        .map(|(kind, n_ff)| match kind {
            Kind::Experts => config.expert_width(),
            Kind::Dense => Ok(*n_ff),
            Kind::Mamba | Kind::Attention => Ok(0),
        })
        .collect::<Result<_, _>>()?;
    keys.set_count_list("feed_forward_length", &widths)?;
    keys.kv_heads_of_layers(|layer_idx| kinds[layer_idx] == Kind::Attention)?;
    keys.set_own_head_width()?;
    keys.vocab_size()?;
    let width = keys.sizes.n_embd / keys.sizes.n_heads.max(1);
    keys.set_count("rope.dimension_count", width)?;
    keys.state_space(config.mamba2(true)?)?;
    keys.set("rope.scaling.finetuned", false);
    keys.set("context_length", UNBOUNDED);
    let has_experts = kinds.into_iter().map(|kind| kind == Kind::Experts);
    keys.facts.expert_layers = Some(has_experts.collect());
    Ok(())
}
