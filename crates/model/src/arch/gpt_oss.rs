//! gpt-oss: attention sinks, windows in every second layer, biases everywhere, and experts with a clipped SwiGLU.

use tokenmill_backend::{Activation, RopeStyle};

use crate::{Descriptor, LoadError, MoeDescriptor, Presence, RopeScaling, YarnRounding};

use super::{
    Architecture, Change, HfLayout, Recast,
    gguf_experts::{MoeDefaults, set_experts},
    hf_layout::Names,
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "gpt-oss",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        // YaRN's range is not rounded. Only the published configurations say so, the files do not.
        for rope in &mut descriptor.ropes {
            if config.facts.is_none()
                && let RopeScaling::Yarn { rounding, .. } = &mut rope.scaling
            {
                *rounding = YarnRounding::None;
            }
        }
        config.set_windows(&mut descriptor, 2)?;
        config.set_window_rope(&mut descriptor)?;
        complete(&mut descriptor, Presence::Required);
        set_experts(
            &mut descriptor,
            &experts(config.moe(MoeDefaults::NORMALIZED)?),
            |_| true,
        );
        Ok(descriptor)
    },
    hf_classes: &["GptOssForCausalLM"],
    hf_layout: HfLayout {
        layer: LAYER,
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
                    arch: "gpt-oss".to_owned(),
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

const LAYER: Names = &[
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
];

fn complete(descriptor: &mut Descriptor, bias: Presence) {
    for layer in &mut descriptor.layers {
        let attention = layer.attention_mut();
        attention.has_sinks = true;
        attention.qkv_bias = bias;
        attention.output_bias = bias;
    }
}

fn experts(mut moe: MoeDescriptor) -> MoeDescriptor {
    moe.activation = Activation::ClippedSwiglu;
    moe.bias = Presence::Required;
    moe.router.bias = Presence::Required;
    moe
}
