//! LFM2: gated short convolutions, and attention where a layer has KV heads; dense or with experts behind some dense layers.
//!
//! Source: transformers, `models/lfm2_moe/modeling_lfm2_moe.py`.

use tokenmill_backend::{ExpertScore, RopeStyle};

use crate::{MoeDescriptor, Presence, QkNorm};

use super::{Architecture, HfLayout};

pub(super) const LFM2: Architecture = Architecture {
    name: "lfm2",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        for layer in &mut descriptor.layers {
            if layer.attention_mut().n_kv_heads == 0 {
                layer.mixer = config.short_conv()?;
            } else {
                layer.attention_mut().qk_norm = Some(QkNorm::Head);
            }
        }
        descriptor.tensor_names = &[("output_norm.weight", "token_embd_norm.weight")];
        Ok(descriptor)
    },
    hf_classes: &[],
    hf_layout: HfLayout::LLAMA,
    from_hf: super::recurrent::no_folders,
};

pub(super) const LFM2_MOE: Architecture = Architecture {
    name: "lfm2moe",
    from_gguf: |config| {
        let mut descriptor = (LFM2.from_gguf)(config)?;
        config.set_experts(&mut descriptor, &experts(config.moe(true)?))?;
        Ok(descriptor)
    },
    hf_classes: &[],
    hf_layout: HfLayout::LLAMA,
    from_hf: super::recurrent::no_folders,
};

fn experts(mut moe: MoeDescriptor) -> MoeDescriptor {
    moe.router.score = ExpertScore::Sigmoid;
    moe.router.choice_bias = Presence::Optional;
    moe
}
