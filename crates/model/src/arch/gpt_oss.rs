//! gpt-oss: attention sinks, windows in every second layer, biases everywhere, and experts with a clipped SwiGLU.

use tokenmill_backend::{Activation, RopeStyle};

use crate::{LoadError, Presence, RopeScaling, YarnRounding};

use super::{Architecture, Change, HfLayout, Recast, gguf_experts::MoeDefaults};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gpt-oss",
    from_gguf: |config| {
        let mut descriptor = config.decoder_with_windows(RopeStyle::Neox, 2, None)?;
        // YaRN's range is not rounded. Only the published configurations say so, the files do not.
        for rope in &mut descriptor.ropes {
            if let (None, RopeScaling::Yarn { rounding, .. }) = (config.facts, &mut rope.scaling) {
                *rounding = YarnRounding::None;
            }
        }
        let mut moe = config.moe(MoeDefaults::NORMALIZED)?;
        moe.activation = Activation::ClippedSwiglu;
        (moe.bias, moe.router.bias) = (Presence::Required, Presence::Required);
        Ok((descriptor.with_attention_biases(Presence::Required))
            .with_layers(|_, layer| layer.attention_mut().has_sinks = true)
            .with_experts(&moe, |_| true))
    },
    hf_classes: &["GptOssForCausalLM"],
    hf_layout: HfLayout {
        layer: &[
            ("self_attn.sinks", "attn_sinks.weight"),
            ("mlp.router", "ffn_gate_inp"),
            ("mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"),
            ("mlp.experts.gate_up_proj_blocks", "ffn_gate_up_exps.weight"),
            ("mlp.experts.gate_up_proj_scales", "ffn_gate_up_exps.weight"),
            ("mlp.experts.gate_up_proj_bias", "ffn_gate_up_exps.bias"),
            ("mlp.experts.down_proj", "ffn_down_exps.weight"),
            ("mlp.experts.down_proj_blocks", "ffn_down_exps.weight"),
            ("mlp.experts.down_proj_scales", "ffn_down_exps.weight"),
            ("mlp.experts.down_proj_bias", "ffn_down_exps.bias"),
        ],
        changes: &[
            ("ffn_gate_up_exps.weight", Change::TransposeExperts),
            ("ffn_down_exps.weight", Change::TransposeExperts),
            ("ffn_gate_up_exps.weight", Change::SplitPairs),
            ("ffn_gate_up_exps.bias", Change::SplitPairs),
        ],
        recasts: &[
            ("ffn_gate_up_exps.weight", Recast::GATE_AND_UP),
            (
                "ffn_gate_up_exps.bias",
                Recast::Halves(["ffn_gate_exps.bias", "ffn_up_exps.bias"]),
            ),
            Recast::POST_ATTENTION,
        ],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        for (key, fixed) in [
            ("swiglu_alpha", Activation::CLIPPED_ALPHA),
            ("swiglu_limit", Activation::CLIPPED_LIMIT),
        ] {
            if keys.config.opt_f32(key)?.is_some_and(|found| found != fixed) {
                return Err(LoadError::UnsupportedFeature {
                    arch: keys.arch.to_owned(),
                    feature: format!("`{key}` other than {fixed}"),
                });
            }
        }
        keys.facts.activation = None;
        keys.find_windows(|layer_idx| layer_idx % 2 == 0)?;
        keys.find_attention_bias("attention_bias")?;
        keys.find_router(true)?;
        keys.usual()?;
        keys.window()?;
        keys.copy_count("expert_feed_forward_length", &["intermediate_size"])
    },
};
