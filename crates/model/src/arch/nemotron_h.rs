//! Nemotron-H and Nemotron 3: each layer is one of Mamba 2, attention without positions, or a feed-forward
//! network with squared ReLU; later models have experts and a shared network.
//!
//! Source: transformers, `models/nemotron_h/modeling_nemotron_h.py`; llama.cpp, `src/models/nemotron-h.cpp`.

use serde_json::json;
use tokenmill_backend::{Activation, ExpertScore, RopeStyle};

use crate::{
    DenseDescriptor, Descriptor, FfnDescriptor, GateUpOrder, LatentExperts, LoadError, MixerDescriptor,
    MoeDescriptor, OutputHead, Presence, SharedDescriptor,
};

use super::{
    Architecture, GgufConfig, GgufKeys, HfConfig, HfLayout, Recast,
    gguf_experts::MoeDefaults,
    gguf_form::UNBOUNDED,
    hf_recurrent::{BACKBONE, Mamba2Keys, SSM, SSM_CHANGES},
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
        shared: SSM,
        network: BACKBONE,
        ignored: &["mtp."],
        changes: SSM_CHANGES,
        recasts: Recast::SSM,
        arch_with_experts: Some("nemotron_h_moe"),
        ..HfLayout::LLAMA
    },
    from_hf: Some(from_hf),
    rule,
};

pub(super) const NEMOTRON_H_MOE: Architecture = Architecture {
    name: "nemotron_h_moe",
    from_gguf: |config| {
        let mut descriptor = from_gguf(config)?;
        if config.n_experts()? == 0 {
            return Ok(descriptor);
        }
        let mut moe = with_form(config.moe(MoeDefaults::SIGMOID)?);
        moe.shared = config.shared_experts(&moe)?;
        let latent = (config.opt_usize("moe_latent_size")?).filter(|&width| width > 0);
        moe.latent = latent.map(|width| LatentExperts {
            width,
            bias: Presence::Optional,
        });
        for (layer_idx, layer) in descriptor.layers.iter_mut().enumerate() {
            if config.has_tensor(&format!("blk.{layer_idx}.ffn_gate_inp.weight")) {
                layer.ffn = FfnDescriptor::Moe(moe.clone());
            }
        }
        Ok(descriptor)
    },
    // Its folders have the class of the models without experts.
    hf_classes: &[],
    hf_layout: HfLayout {
        recasts: Recast::SSM,
        ..HfLayout::LLAMA
    },
    from_hf: Some(from_hf),
    rule: |keys| {
        rule(keys)?;
        keys.routed_experts()?;
        keys.copy_count(
            "expert_shared_feed_forward_length",
            &["moe_shared_expert_intermediate_size"],
        )?;
        keys.remove("leading_dense_block_count");
        keys.copy_count("moe_latent_size", &["moe_latent_size"])
    },
};

const KEYS: Mamba2Keys = Mamba2Keys {
    n_heads: "mamba_num_heads",
    head_dim: "mamba_head_dim",
    n_groups: "n_groups",
    n_state: "ssm_state_size",
    n_taps: "conv_kernel",
    conv_bias: "use_conv_bias",
    bias: "use_bias",
};

/// The kind of a layer.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Mamba,
    Attention,
    Dense,
    Experts,
}

fn from_hf(config: &HfConfig) -> Result<Descriptor, LoadError> {
    let kinds = layer_kinds(config)?;
    let activation = config
        .get("mlp_hidden_act")
        .cloned()
        .unwrap_or_else(|| json!("relu2"));
    let config = config.with_defaults(&[
        ("num_hidden_layers", json!(kinds.len())),
        ("hidden_act", activation),
    ]);
    let mut descriptor = config.decoder()?;
    config.check_kinds("hybrid_override_pattern", kinds.len(), descriptor.layers.len())?;
    descriptor.ropes.clear();
    let ssm = config.mamba2(&KEYS, true)?;
    let moe = if kinds.contains(&Kind::Experts) {
        Some(hf_experts(&config)?)
    } else {
        None
    };
    // transformers' class creates no attention biases and does not tie the head, whatever the configuration
    // says.
    descriptor.head = OutputHead::OwnIfPresent;
    let attention_bias = Presence::Optional;
    let dense_bias = config.presence("mlp_bias")?;
    for (layer, kind) in descriptor.layers.iter_mut().zip(kinds) {
        layer.attention_mut().rope = None;
        layer.attention_mut().qkv_bias = attention_bias;
        layer.attention_mut().output_bias = attention_bias;
        layer.dense_mut().is_gated = false;
        layer.dense_mut().bias = dense_bias;
        match kind {
            Kind::Mamba => layer.mixer = MixerDescriptor::Ssm(ssm),
            Kind::Attention => {}
            Kind::Dense | Kind::Experts => layer.mixer = MixerDescriptor::None,
        }
        match (kind, &moe) {
            (Kind::Experts, Some(moe)) => layer.ffn = FfnDescriptor::Moe(moe.clone()),
            (Kind::Dense, _) => {}
            _ => layer.ffn = FfnDescriptor::None,
        }
    }
    Ok(descriptor)
}

/// Reads the kinds of the layers, from a list of names or a string of letters.
fn layer_kinds(config: &HfConfig) -> Result<Vec<Kind>, LoadError> {
    let key = "layers_block_type";
    if let Some(kinds) = config.layer_kinds(&[key])? {
        let kind = |kind: &str| match kind {
            "mamba" | "linear_attention" => Ok(Kind::Mamba),
            "attention" | "full_attention" => Ok(Kind::Attention),
            "mlp" => Ok(Kind::Dense),
            "moe" => Ok(Kind::Experts),
            _ => Err(config.wrong(
                key,
                "mamba, linear_attention, attention, full_attention, mlp or moe",
            )),
        };
        return kinds.into_iter().map(kind).collect();
    }
    let key = "hybrid_override_pattern";
    let pattern = config.get(key).and_then(|pattern| pattern.as_str());
    let pattern = pattern.ok_or_else(|| config.wrong(key, "a string of M, *, - and E"))?;
    let kind = |sign| match sign {
        'M' => Ok(Kind::Mamba),
        '*' => Ok(Kind::Attention),
        '-' => Ok(Kind::Dense),
        'E' => Ok(Kind::Experts),
        _ => Err(config.wrong(key, "a string of M, *, - and E")),
    };
    pattern.chars().map(kind).collect()
}

fn hf_experts(config: &HfConfig) -> Result<MoeDescriptor, LoadError> {
    let mut moe = with_form(config.moe(true)?);
    moe.router.score = ExpertScore::Sigmoid;
    let bias = config.presence("mlp_bias")?;
    moe.latent = (config.opt_usize("moe_latent_size")?).map(|width| LatentExperts { width, bias });
    let n_shared = config.opt_usize("n_shared_experts")?.unwrap_or(0);
    if n_shared > 0 {
        moe.shared = Some(SharedDescriptor {
            dense: DenseDescriptor {
                xielu: None,
                cutoff: None,
                joined: GateUpOrder::GateFirst,
                n_ff: config.first_usize(&["moe_shared_expert_intermediate_size"])?,
                activation: moe.activation,
                is_gated: false,
                bias,
            },
            has_gate: false,
        });
    }
    Ok(moe)
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

fn with_form(mut moe: MoeDescriptor) -> MoeDescriptor {
    moe.router.choice_bias = Presence::Optional;
    moe.activation = Activation::ReluSquared;
    moe.is_gated = false;
    moe
}

/// Collects the keys that dense models and those with experts have.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.remove("rope.freq_base");
    let widths: Vec<usize> = (keys.descriptor.layers.iter())
        .map(|layer| match (layer.ffn.moe(), layer.ffn.dense()) {
            (Some(moe), _) => moe.n_ff,
            (None, Some(dense)) => dense.n_ff,
            (None, None) => 0,
        })
        .collect();
    keys.set_count_list("feed_forward_length", &widths)?;
    keys.kv_heads_of_layers()?;
    keys.set_own_head_width()?;
    keys.vocab_size()?;
    let width = keys.descriptor.n_embd / keys.first_count(&["num_attention_heads"])?.unwrap_or(1).max(1);
    keys.set_count("rope.dimension_count", width)?;
    keys.state_space()?;
    keys.set("rope.scaling.finetuned", false);
    keys.set("context_length", UNBOUNDED);
    Ok(())
}
