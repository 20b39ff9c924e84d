//! MiniMax M2: norms of whole rows of q and k, partial rope, experts chosen by sigmoids with a correction bias.

use tokenmill_backend::RopeStyle;

use crate::{Presence, QkNorm};

use super::{Architecture, HfLayout, gguf_experts::MoeDefaults, hf_experts::MIXTRAL_EXPERTS};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "minimax-m2",
    from_gguf: |config| {
        let mut moe = config.moe(MoeDefaults {
            reads_false: false,
            ..MoeDefaults::SIGMOID
        })?;
        moe.router.choice_bias = Presence::Required;
        let descriptor = (config.decoder(RopeStyle::Neox)?).with_qk_norm(QkNorm::Row);
        Ok(descriptor.with_experts(&moe, |_| true))
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
