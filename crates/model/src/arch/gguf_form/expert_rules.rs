//! The keys of decoders with experts, and of Granite and HunYuan, whose dense models use the same keys.

use crate::{LoadError, RopeScaling};

use super::{keys::GgufKeys, recurrent_rules::UNBOUNDED};

pub(super) fn deepseek2(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    let latent = (keys.descriptor.layers.iter()).find_map(|layer| layer.mixer.latent());
    let latent = latent.ok_or_else(|| keys.config.wrong("kv_lora_rank", "a count"))?;
    // All heads share one row of keys.
    keys.set("attention.head_count_kv", 1_u32);
    keys.set_count(
        "attention.key_length",
        latent.kv_rank.saturating_add(latent.rotated_dim),
    )?;
    keys.set_count("attention.value_length", latent.kv_rank)?;
    keys.vocab_size()?;
    if let Some(rank) = latent.q_rank {
        keys.set_count("attention.q_lora_rank", rank)?;
    }
    keys.set_count("attention.kv_lora_rank", latent.kv_rank)?;
    keys.set_count(
        "attention.key_length_mla",
        latent.plain_dim.saturating_add(latent.rotated_dim),
    )?;
    keys.set_count("attention.value_length_mla", latent.head_dim_v)?;
    keys.set_count("rope.dimension_count", latent.rotated_dim)?;
    keys.routed_experts()?;
    keys.router_with_defaults()?;
    if matches!(
        keys.descriptor.ropes.first().map(|rope| &rope.scaling),
        Some(RopeScaling::Yarn { .. })
    ) {
        let multiplier = keys.config.yarn_score_multiplier()?;
        // A tenth of the multiplier; the reader multiplies it by 10.
        keys.set("rope.scaling.yarn_log_multiplier", 0.1 * multiplier);
    }
    Ok(())
}

pub(super) fn ernie4_5_moe(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.copy_count("expert_count", &["moe_num_experts"])?;
    keys.copy_count("expert_used_count", &["moe_k"])?;
    keys.copy_count("interleave_moe_layer_step", &["moe_layer_interval"])?;
    keys.copy_count("leading_dense_block_count", &["moe_layer_start_index"])?;
    keys.copy_count("expert_feed_forward_length", &["moe_intermediate_size"])?;
    keys.copy_count("expert_shared_count", &["moe_num_shared_experts"])?;
    if let (Some(width), Some(n_shared)) = (
        keys.first_count(&["moe_intermediate_size"])?,
        keys.first_count(&["moe_num_shared_experts"])?,
    ) {
        keys.set_count(
            "expert_shared_feed_forward_length",
            width.saturating_mul(n_shared),
        )?;
    }
    Ok(())
}

pub(super) fn exaone_moe(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.vocab_size()?;
    keys.window()?;
    keys.window_pattern();
    keys.routed_experts()?;
    keys.copy_count("expert_shared_count", &["num_shared_experts"])?;
    if let (Some(width), Some(n_shared)) = (
        keys.first_count(&["moe_intermediate_size"])?,
        keys.first_count(&["num_shared_experts"])?,
    ) {
        keys.set_count(
            "expert_shared_feed_forward_length",
            width.saturating_mul(n_shared),
        )?;
    }
    keys.set_count("nextn_predict_layers", 0)?;
    keys.set("rope.scaling.type", "none");
    Ok(())
}

pub(super) fn glm4moe(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.rope_width()?;
    keys.routed_experts()?;
    keys.set("expert_gating_func", 2_u32);
    keys.draft_layers("num_nextn_predict_layers")
}

pub(super) fn dots1(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.routed_experts()?;
    keys.set("expert_gating_func", 2_u32);
    Ok(())
}

pub(super) fn hy_v3(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.routed_experts()?;
    keys.set("expert_gating_func", 2_u32);
    keys.set("expert_weights_norm", true);
    let moe = (keys.descriptor.layers.iter()).find_map(|layer| layer.ffn.moe());
    if let Some(moe) = moe {
        keys.set("expert_weights_scale", moe.router.scale);
        let n_ff = moe.shared.as_ref().map_or(0, |shared| shared.dense.n_ff);
        keys.set_count("expert_shared_feed_forward_length", n_ff)?;
    }
    Ok(())
}

pub(super) fn granite(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.vocab_size()?;
    let width = keys.attention().map(|attention| attention.head_dim_k);
    if let Some(width) = width {
        keys.set_count("rope.dimension_count", width)?;
    }
    keys.copy_number("attention.scale", &["attention_multiplier"])?;
    keys.copy_number("embedding_scale", &["embedding_multiplier"])?;
    keys.copy_number("residual_scale", &["residual_multiplier"])?;
    keys.copy_number("logit_scale", &["logits_scaling"])?;
    let shared = keys.first_count(&["shared_intermediate_size"])?;
    if let Some(width) = shared.filter(|&width| width > 0) {
        keys.set_count("expert_shared_feed_forward_length", width)?;
    }
    if keys.arch == "granitehybrid" {
        let has_experts = keys
            .descriptor
            .layers
            .iter()
            .any(|layer| layer.ffn.moe().is_some());
        if !has_experts {
            let widths = keys.dense_widths();
            keys.set_counts("feed_forward_length", &widths)?;
            keys.remove("expert_shared_feed_forward_length");
        }
        keys.kv_heads_of_layers()?;
        keys.state_space()?;
        let has_rope = keys.attention().is_some_and(|attention| attention.rope.is_some());
        keys.set("rope.scaling.finetuned", has_rope);
        if !has_rope {
            // Positions are then unbounded.
            keys.set("context_length", UNBOUNDED);
        }
    }
    Ok(())
}

pub(super) fn hunyuan(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    /// The context that the scaled base supports.
    const CONTEXT: u32 = 256 * 1024;

    keys.usual()?;
    keys.set_own_head_width()?;
    if keys.arch == "hunyuan-moe" {
        let width = keys.first_count(&["moe_intermediate_size", "intermediate_size"])?;
        if let Some(width) = width {
            keys.set_count("expert_feed_forward_length", width)?;
        }
        keys.copy_count("expert_shared_feed_forward_length", &["intermediate_size"])?;
        keys.copy_count("expert_used_count", &["moe_topk"])?;
        keys.copy_count("expert_shared_count", &["num_shared_expert"])?;
    }
    let rope = keys.config.rope_parameters()?;
    if rope.get("alpha").is_some() {
        if let Some(rope) = keys.descriptor.ropes.first() {
            keys.set("rope.freq_base", rope.base);
        }
        keys.set("rope.scaling.type", "none");
        keys.set("rope.scaling.factor", 1.0_f32);
        keys.set("rope.scaling.original_context_length", CONTEXT);
        keys.set("context_length", CONTEXT);
    }
    Ok(())
}

pub(super) fn llama4(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.usual()?;
    keys.set_own_head_width()?;
    keys.vocab_size()?;
    keys.rope_width()?;
    keys.copy_count("feed_forward_length", &["intermediate_size_mlp"])?;
    keys.copy_count("interleave_moe_layer_step", &["interleave_moe_layer_step"])?;
    keys.copy_count("expert_feed_forward_length", &["intermediate_size"])
}
