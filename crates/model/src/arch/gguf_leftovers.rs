//! Refuses keys of a GGUF file that change the network but that its descriptor does not reflect.
//!
//! `contradictions` compares keys with tensors; this file covers keys of other architectures, and numbers
//! that a description takes from its architecture. Invariant: a value without effect is allowed, including
//! the defaults that llama.cpp saves for unset keys.

use tokenmill_gguf::{Array, Value};

use crate::{AttentionDescriptor, Descriptor, LoadError};

use super::GgufConfig;

/// Keys that change some networks, each with the values that have no effect.
const KEYS: &[(&str, &[f64])] = &[
    ("attn_logit_softcapping", &[0.0, 50.0]),
    ("final_logit_softcapping", &[0.0, 30.0]),
    ("router_logit_softcapping", &[0.0, 30.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("attention.temperature_scale", &[0.0]),
    ("attention.value_scale", &[0.0, 1.0]),
    ("attention.output_scale", &[0.0, 1.0]),
    ("attention.shared_kv_layers", &[0.0]),
    ("swiglu_clamp_exp", &[0.0]),
    ("swiglu_clamp_shexp", &[0.0]),
    ("rope.scaling.alpha", &[0.0, 1.0]),
    ("decision.block_count", &[0.0]),
];

/// Like [`KEYS`], for networks with experts.
const EXPERT_KEYS: &[(&str, &[f64])] = &[
    ("interleave_moe_layer_step", &[0.0, 1.0]),
    ("leading_dense_block_count", &[0.0]),
    ("moe_latent_size", &[0.0]),
    ("expert_gating_func", &[0.0]),
    ("expert_weights_norm", &[0.0]),
];

/// Refuses keys that the descriptor of the network does not reflect.
pub(super) fn refuse(config: &GgufConfig<'_>, descriptor: &Descriptor) -> Result<(), LoadError> {
    let has_experts = descriptor.layers.iter().any(|layer| layer.ffn.moe().is_some());
    let of_experts = if has_experts { EXPERT_KEYS } else { &[] };
    for (name, neutral) in KEYS.iter().chain(of_experts) {
        let is_neutral = |number: &f64| neutral.contains(number);
        let Some(value) = config.peek(name).filter(|_| !config.has_read(name)) else {
            continue;
        };
        if !numbers(value).is_some_and(|numbers| numbers.iter().all(is_neutral)) {
            return Err(left_over(config, name, value));
        }
    }
    windows(config, descriptor)?;
    scores(config, descriptor)?;
    positions(config, descriptor)
}

/// Returns the numbers of a value, with booleans as 0 and 1; `None` if it holds anything else.
fn numbers(value: &Value) -> Option<Vec<f64>> {
    fn all<T: Copy + Into<f64>>(numbers: &[T]) -> Vec<f64> {
        numbers.iter().map(|&number| number.into()).collect()
    }
    let claim = |claim: &bool| f64::from(u8::from(*claim));
    Some(match value {
        Value::F32(number) => vec![f64::from(*number)],
        Value::F64(number) => vec![*number],
        Value::Bool(value) => vec![claim(value)],
        Value::Array(Array::F32(numbers)) => all(numbers),
        Value::Array(Array::F64(numbers)) => all(numbers),
        Value::Array(Array::U32(numbers)) => all(numbers),
        Value::Array(Array::I32(numbers)) => all(numbers),
        Value::Array(Array::Bool(claims)) => claims.iter().map(claim).collect(),
        value => vec![value.as_integer()? as f64],
    })
}

fn left_over(config: &GgufConfig<'_>, name: &str, value: &Value) -> LoadError {
    LoadError::UnusedKey {
        key: config.key(name),
        found: match value {
            Value::String(text) => format!("`{text}`"),
            value => match numbers(value) {
                Some(numbers) if numbers.len() == 1 => numbers[0].to_string(),
                _ => "a list".to_owned(),
            },
        },
        arch: config.arch.to_owned(),
    }
}

/// Refuses a number that differs from that of some part of the network.
fn agree<'d>(
    config: &GgufConfig<'_>,
    name: &str,
    parts: impl IntoIterator<Item = &'d AttentionDescriptor>,
    own: impl Fn(&AttentionDescriptor) -> Option<f64>,
) -> Result<(), LoadError> {
    let Some(value) = config.peek(name) else {
        return Ok(());
    };
    let said = match numbers(value).as_deref() {
        Some([number]) => *number,
        _ => return Err(left_over(config, name, value)),
    };
    // The same number may have been computed in another order.
    let is_same = |own: f64| (own - said).abs() <= 1e-6 * own.abs();
    let is_other = |own: f64| said != 0.0 && !is_same(own);
    if parts.into_iter().filter_map(own).any(is_other) {
        return Err(left_over(config, name, value));
    }
    Ok(())
}

/// Checks the keys of layers with a window.
fn windows(config: &GgufConfig<'_>, descriptor: &Descriptor) -> Result<(), LoadError> {
    let name = "attention.sliding_window";
    if let Some(value) = config.peek(name)
        && numbers(value).is_none_or(|numbers| numbers != [0.0])
        && descriptor.attentions().next().is_none()
    {
        return Err(left_over(config, name, value));
    }
    let with_window: Vec<_> = descriptor
        .attentions()
        .filter(|attention| attention.window.is_some())
        .collect();
    let parts = || with_window.iter().copied();
    let rope = |attention: &AttentionDescriptor| Some(&descriptor.ropes[attention.rope?]);
    let base = |attention: &AttentionDescriptor| Some(f64::from(rope(attention)?.base));
    agree(config, "rope.freq_base_swa", parts(), base)?;
    let n_dims = |attention: &AttentionDescriptor| Some(rope(attention)?.n_dims as f64);
    agree(config, "rope.dimension_count_swa", parts(), n_dims)?;
    let width = |attention: &AttentionDescriptor| Some(attention.head_dim_k as f64);
    agree(config, "attention.key_length_swa", parts(), width)?;
    let width = |attention: &AttentionDescriptor| Some(attention.head_dim_v as f64);
    agree(config, "attention.value_length_swa", parts(), width)
}

/// Checks the scale of attention scores.
fn scores(config: &GgufConfig<'_>, descriptor: &Descriptor) -> Result<(), LoadError> {
    let name = "attention.scale";
    agree(config, name, descriptor.attentions(), |attention| {
        Some(f64::from(attention.scale))
    })?;
    let has_latents = descriptor
        .layers
        .iter()
        .any(|layer| layer.mixer.latent().is_some());
    match config.peek(name) {
        Some(value) if has_latents && numbers(value).is_none_or(|numbers| numbers != [0.0]) => {
            Err(left_over(config, name, value))
        }
        _ => Ok(()),
    }
}

/// Checks the keys of rotated pairs and of layers without positions.
fn positions(config: &GgufConfig<'_>, descriptor: &Descriptor) -> Result<(), LoadError> {
    let name = "rope.dimension_sections";
    // No image axis rotates the pairs of a fourth section, and text tokens have no position for them.
    if let Some(value) = config.peek(name)
        && numbers(value).is_none_or(|sections| sections.iter().skip(3).any(|&n_pairs| n_pairs != 0.0))
    {
        return Err(left_over(config, name, value));
    }
    let name = "attention.rope_pattern";
    let Some(has_rope) = config.opt_flags("rope pattern", name, descriptor.layers.len())? else {
        return Ok(());
    };
    let mut layers = descriptor.layers.iter().zip(has_rope);
    let is_other = layers.any(|(layer, has_rope)| {
        let attention = layer.mixer.attention().and_then(|attention| attention.rope);
        let latent = layer.mixer.latent().and_then(|latent| latent.rope);
        !has_rope && attention.or(latent).is_some()
    });
    match config.peek(name) {
        Some(value) if is_other => Err(left_over(config, name, value)),
        _ => Ok(()),
    }
}
