//! LFM2: gated short convolutions, and attention where a layer has KV heads.

use tokenmill_backend::RopeStyle;

use crate::QkNorm;

use super::{Architecture, HfLayout};

pub(super) const ARCHITECTURE: Architecture = Architecture {
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
