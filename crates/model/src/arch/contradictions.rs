//! Refuses keys of a GGUF file that contradict each other or the file's tensors.
//!
//! The description reads each key by itself. If two keys disagreed, one would be silently ignored and the
//! output might be wrong. Invariant: the checks here apply to all networks.

use crate::{Descriptor, LayerDescriptor, LoadError, MixerDescriptor, RopeScaling, error::check};

use super::GgufConfig;

/// Refuses keys that the descriptor does not reflect.
pub(super) fn refuse(config: &GgufConfig<'_>, descriptor: &Descriptor) -> Result<(), LoadError> {
    direction(config, descriptor)?;
    positions(config, descriptor)?;
    widths(config, descriptor)?;
    dense_layers(config, descriptor)?;
    recurrent_layers(config, descriptor)?;
    drafting_layers(config, descriptor.layers.len())?;
    let clamp = config.opt_f32("attention.clamp_kqv")?.unwrap_or(0.0);
    check(
        "clamp of queries, keys and values",
        clamp,
        clamp == 0.0,
        "0, since nothing is clamped in a network of this architecture",
    )
}

/// Checks whether attention is causal.
fn direction(config: &GgufConfig<'_>, descriptor: &Descriptor) -> Result<(), LoadError> {
    let said = config.opt_bool("attention.causal")?;
    check(
        "attention in one direction",
        true,
        said != Some(true) || !descriptor.is_encoder(),
        "false for a network of this architecture",
    )?;
    let is_causal = said.unwrap_or(true);
    let looks_ahead = |layer: &LayerDescriptor| match layer.mixer.attention() {
        Some(attention) => !attention.is_causal,
        // Latent attention is always causal, and other mixers have no direction.
        None => layer.mixer.latent().is_none(),
    };
    check(
        "attention in one direction",
        is_causal,
        is_causal || descriptor.layers.iter().all(looks_ahead),
        "true for a network of this architecture",
    )
}

/// Checks ALiBi and the magnitude of the rope.
fn positions(config: &GgufConfig<'_>, descriptor: &Descriptor) -> Result<(), LoadError> {
    let alibi = config.opt_f32("attention.max_alibi_bias")?.unwrap_or(0.0);
    let has_alibi = descriptor.attentions().any(|attention| attention.alibi.is_some());
    check(
        "largest ALiBi bias",
        alibi,
        alibi == 0.0 || has_alibi,
        "0, since a network of this architecture has other positions",
    )?;
    check(
        "largest ALiBi bias",
        alibi,
        alibi == 0.0
            || descriptor
                .attentions()
                .all(|attention| attention.alibi == Some(alibi)),
        "the one that all networks of this architecture have",
    )?;
    let factor = config.opt_f32("rope.scaling.attn_factor")?.unwrap_or(1.0);
    let has_magnitude = (descriptor.ropes.iter()).any(|rope| {
        matches!(
            rope.scaling,
            RopeScaling::Yarn { .. } | RopeScaling::LongRope { .. }
        )
    });
    check(
        "factor of the rope's magnitude",
        factor,
        factor == 1.0 || factor == 0.0 || has_magnitude,
        "1 without a rope scaling of the kinds yarn and longrope",
    )
}

/// Checks widths and counts against the dimensions of tensors.
fn widths(config: &GgufConfig<'_>, descriptor: &Descriptor) -> Result<(), LoadError> {
    let with_key = |key: &str, source: LoadError| LoadError::BadKey {
        key: config.key(key),
        source: Box::new(source),
    };
    // Returns the dimension at an index if it differs from the key's value.
    let other = |name: &str, dim_idx: usize, expected: usize| {
        let dims = config.tensors.get(name)?;
        let found = *dims.get(dim_idx)?;
        (found != expected).then(|| {
            let mut expected_dims = dims.to_vec();
            expected_dims[dim_idx] = expected;
            LoadError::WrongShape {
                name: name.to_owned(),
                expected: expected_dims,
                found: dims.to_vec(),
            }
        })
    };
    if let Some(error) = other("token_embd.weight", 0, descriptor.n_embd) {
        return Err(with_key("embedding_length", error));
    }
    for (layer_idx, layer) in descriptor.layers.iter().enumerate() {
        let name = |part: &str| format!("blk.{layer_idx}.{part}.weight");
        let Some(moe) = layer.ffn.moe() else {
            let n_ff = layer.ffn.dense().map(|dense| dense.n_ff);
            if let Some(error) = n_ff.and_then(|n_ff| other(&name("ffn_down"), 0, n_ff)) {
                return Err(with_key("feed_forward_length", error));
            }
            continue;
        };
        for part in ["ffn_up_exps", "ffn_down_exps", "ffn_gate_up_exps"] {
            let n_experts = moe.router.n_experts;
            if let Some(&&[_, _, found]) = config.tensors.get(name(part).as_str())
                && found != n_experts
            {
                let error = LoadError::ExpertCount {
                    name: name(part),
                    expected: n_experts,
                    found,
                };
                return Err(with_key("expert_count", error));
            }
        }
        if let Some(error) = other(&name("ffn_down_exps"), 0, moe.n_ff) {
            let key = "expert_feed_forward_length";
            let has_key = config.value(key).is_some();
            return Err(with_key(if has_key { key } else { "feed_forward_length" }, error));
        }
    }
    Ok(())
}

/// Checks the index of the first layer with experts.
fn dense_layers(config: &GgufConfig<'_>, descriptor: &Descriptor) -> Result<(), LoadError> {
    let said = config.opt_usize("leading_dense_block_count")?;
    // llama.cpp counts these layers for only some architectures, and saves 0 for the others.
    let said = said.filter(|&n_dense| n_dense > 0 || !config.is_saved_by_reader());
    let step = config.opt_count("interleave_moe_layer_step")?;
    if said.is_none() && step.is_none() {
        return Ok(());
    }
    let (n_dense, every) = (said.unwrap_or(0), step.unwrap_or(1));
    let has_experts = |layer_idx: usize| descriptor.layers[layer_idx].ffn.moe().is_some();
    let first = (n_dense..descriptor.layers.len()).find(|layer_idx| (layer_idx + 1).is_multiple_of(every));
    let is_moe = (0..descriptor.layers.len()).any(has_experts);
    let agrees = !is_moe || first.is_none_or(has_experts);
    if said.is_none() {
        return check(
            "step between layers with experts",
            every,
            agrees,
            "one that names no layer with the tensors of a dense network",
        );
    }
    check(
        "count of dense layers that come first",
        n_dense,
        agrees,
        "as many as have the tensors of a dense network",
    )
}

/// Checks which layers have attention, if several keys state it.
fn recurrent_layers(config: &GgufConfig<'_>, descriptor: &Descriptor) -> Result<(), LoadError> {
    let Some(interval) = config.opt_usize("full_attention_interval")? else {
        return Ok(());
    };
    check(
        "step between layers with attention",
        interval,
        interval > 0,
        "at least 1",
    )?;
    if config.value("attention.recurrent_layers").is_none() {
        return Ok(());
    }
    let listed = config.recurrent_layers(descriptor.layers.len())?;
    let is_recurrent = |layer_idx: usize| !(layer_idx + 1).is_multiple_of(interval);
    let mut layers = descriptor.layers.iter().zip(&listed).enumerate();
    check(
        "step between layers with attention",
        interval,
        layers.all(|(layer_idx, (layer, listed))| {
            matches!(layer.mixer, MixerDescriptor::None) || *listed == is_recurrent(layer_idx)
        }),
        "the one of the list of recurrent layers",
    )
}

/// Checks that MTP layers are complete.
fn drafting_layers(config: &GgufConfig<'_>, n_layers: usize) -> Result<(), LoadError> {
    let n_nextn = config.opt_usize("nextn_predict_layers")?.unwrap_or(0);
    for layer_idx in n_layers..n_layers.saturating_add(n_nextn) {
        let start = format!("blk.{layer_idx}.");
        let projection = format!("{start}nextn.eh_proj.weight");
        let of_layer = (config.tensors.range(start.as_str()..)).map(|(name, _)| *name);
        let mut of_layer = of_layer.take_while(|name| name.starts_with(&start));
        // A layer without any tensor was left out on purpose.
        if of_layer.next().is_some() && !config.has_tensor(&projection) {
            return Err(LoadError::MissingTensor { name: projection });
        }
    }
    Ok(())
}
