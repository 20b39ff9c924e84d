//! Qwen 3.5 to 3.8: gated delta nets, and attention with a gate in every fourth layer.
//!
//! Rope turns a part of each head. Its sections are for images: for text all of them have the token's position, which is
//! what plain rope gives.

use tokenmill_backend::{KeyHeads, RopeStyle};

use crate::{DeltaGates, OutputGate, QkNorm};

use super::{Architecture, HfLayout};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen35",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        let recurrent = config.recurrent_layers(descriptor.layers.len())?;
        for (layer, is_recurrent) in descriptor.layers.iter_mut().zip(recurrent) {
            if is_recurrent {
                // The converter has put the value heads in the order of a repeated list of key heads.
                layer.mixer = config.delta_net(KeyHeads::Tiled, DeltaGates::Apart)?;
            } else {
                layer.attention_mut().qk_norm = Some(QkNorm::Head);
                layer.attention_mut().output_gate = Some(OutputGate::InQuery);
            }
        }
        descriptor.tensor_names = &[("ffn_norm.weight", "post_attention_norm.weight")];
        Ok(descriptor)
    },
    hf_classes: &[],
    hf_layout: HfLayout::LLAMA,
    from_hf: super::recurrent::no_folders,
};
