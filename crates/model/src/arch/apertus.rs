//! Apertus: Llama with normed heads of q and k and, instead of a gate, xIELU, whose numbers each layer has learned.
//!
//! Source: transformers, `models/apertus/modeling_apertus.py`; llama.cpp, `src/models/apertus.cpp`.

use tokenmill_backend::{RopeStyle, Xielu};
use tokenmill_gguf::Value;

use crate::{LoadError, QkNorm, XieluNumbers};

use super::{Architecture, GgufConfig, HfLayout, Recast};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "apertus",
    from_gguf: |config| {
        let descriptor = (config.decoder(RopeStyle::Neox)?).with_qk_norm(QkNorm::Head);
        let numbers = match config.facts {
            Some(_) => None,
            None => Some(trained_numbers(config, descriptor.layers.len())?),
        };
        Ok(descriptor.with_layers(|layer_idx, layer| {
            let dense = layer.dense_mut();
            dense.is_gated = false;
            dense.xielu = Some(match &numbers {
                Some(numbers) => XieluNumbers::Known(numbers[layer_idx]),
                None => XieluNumbers::InTensors,
            });
        }))
    },
    hf_classes: &["ApertusForCausalLM"],
    hf_layout: HfLayout {
        layer: &[
            ("attention_layernorm", "attn_norm"),
            ("feedforward_layernorm", "ffn_norm"),
            ("mlp.act_fn", "ffn_act"),
        ],
        recasts: &[
            ("ffn_act.alpha_n", Recast::IntoKey("xielu.alpha_n")),
            ("ffn_act.alpha_p", Recast::IntoKey("xielu.alpha_p")),
            ("ffn_act.beta", Recast::IntoKey("xielu.beta")),
            ("ffn_act.eps", Recast::IntoKey("xielu.eps")),
        ],
        own_activation: Some("xielu"),
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        if keys.config.get("hidden_act").and_then(|name| name.as_str()) != Some("xielu") {
            return Err(keys.config.wrong("hidden_act", "xielu"));
        }
        keys.find_attention_bias("attention_bias")?;
        keys.usual()?;
        keys.vocab_size()?;
        keys.rope_width()
    },
};

/// The numbers of each layer, from the lists of the metadata.
fn trained_numbers(config: &GgufConfig<'_>, n_layers: usize) -> Result<Vec<Xielu>, LoadError> {
    let list = |name| {
        let values = match config.metadata.get(name) {
            // One number for all layers.
            Some(Value::F32(number)) => vec![*number; n_layers],
            _ => config.metadata.f32_array(name)?.to_vec(),
        };
        if values.len() < n_layers || values.iter().any(|value| !value.is_finite()) {
            return Err(LoadError::BadValue {
                what: "list of the numbers of xIELU",
                found: format!("{} numbers in `{name}`", values.len()),
                expected: "a finite number for each layer",
            });
        }
        Ok(values)
    };
    let (alpha_p, alpha_n) = (list("xielu.alpha_p")?, list("xielu.alpha_n")?);
    let (beta, eps) = (list("xielu.beta")?, list("xielu.eps")?);
    let numbers = |idx: usize| Xielu::from_trained(alpha_p[idx], alpha_n[idx], beta[idx], eps[idx]);
    Ok((0..n_layers).map(numbers).collect())
}
