//! EXAONE with experts: the windows, norms and positions of EXAONE 4 with norms before, experts chosen by sigmoids with a
//! correction bias, and a shared network.
//!
//! Source: transformers, `models/exaone_moe/modeling_exaone_moe.py`; llama.cpp, `src/models/exaone-moe.cpp`.

use tokenmill_backend::{ExpertScore, RopeStyle};

use crate::{Descriptor, LoadError, MoeDescriptor, Presence, QkNorm};

use super::{Architecture, GgufConfig, HfConfig, HfLayout, gguf_experts::set_experts, hf_experts::EXPERTS};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "exaone-moe",
    from_gguf,
    hf_classes: &["ExaoneMoeForCausalLM"],
    hf_layout: HfLayout {
        layer: EXPERTS,
        ..HfLayout::LLAMA
    },
    from_hf,
};

fn from_gguf(config: &GgufConfig<'_>) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder(RopeStyle::Neox)?;
    config.set_windows(&mut descriptor, 4)?;
    complete(&mut descriptor);
    let mut moe = experts(config.moe(true)?);
    moe.shared = config.shared_experts(&moe)?;
    config.set_experts(&mut descriptor, &moe)?;
    Ok(descriptor)
}

fn from_hf(config: &HfConfig) -> Result<Descriptor, LoadError> {
    let mut descriptor = config.decoder()?;
    config.set_windows(&mut descriptor, |_| false)?;
    complete(&mut descriptor);
    let mut moe = experts(config.moe(true)?);
    moe.shared = config.shared_experts(&moe, &["num_shared_experts"])?;
    let types = config.get("mlp_layer_types").and_then(|types| types.as_array());
    let n_dense = config.opt_usize("first_k_dense_replace")?.unwrap_or(0);
    set_experts(&mut descriptor, &moe, |layer_idx| match types {
        Some(types) => types.get(layer_idx).and_then(|kind| kind.as_str()) == Some("sparse"),
        None => layer_idx >= n_dense,
    });
    Ok(descriptor)
}

/// Layers that see everything have no positions.
fn complete(descriptor: &mut Descriptor) {
    let has_windows = (descriptor.layers.iter_mut()).any(|layer| layer.attention_mut().window.is_some());
    for layer in &mut descriptor.layers {
        let attention = layer.attention_mut();
        attention.qk_norm = Some(QkNorm::Head);
        if has_windows && attention.window.is_none() {
            attention.rope = None;
        }
    }
}

fn experts(mut moe: MoeDescriptor) -> MoeDescriptor {
    moe.router.score = ExpertScore::Sigmoid;
    moe.router.choice_bias = Presence::Required;
    moe
}
