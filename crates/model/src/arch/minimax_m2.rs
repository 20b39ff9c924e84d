//! MiniMax M2: norms of whole rows of q and k, partial rope, experts chosen by sigmoids with a correction bias.

use tokenmill_backend::RopeStyle;

use crate::{Descriptor, MoeDescriptor, Presence, QkNorm};

use super::{
    Architecture, HfLayout,
    gguf_experts::{MoeDefaults, set_experts},
    hf_experts::MIXTRAL_EXPERTS,
};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "minimax-m2",
    from_gguf: |config| {
        let moe = config.moe(MoeDefaults {
            reads_false: false,
            ..MoeDefaults::SIGMOID
        })?;
        Ok(complete(config.decoder(RopeStyle::Neox)?, moe))
    },
    hf_classes: &["MiniMaxM2ForCausalLM"],
    hf_layout: HfLayout {
        layer: MIXTRAL_EXPERTS,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.find_router(true)?;
        keys.usual()?;
        keys.copy_count("expert_feed_forward_length", &["intermediate_size"])?;
        keys.rope_width()
    },
};

fn complete(mut descriptor: Descriptor, mut moe: MoeDescriptor) -> Descriptor {
    for layer in &mut descriptor.layers {
        layer.attention_mut().qk_norm = Some(QkNorm::Row);
    }
    moe.router.choice_bias = Presence::Required;
    set_experts(&mut descriptor, &moe, |_| true);
    descriptor
}
