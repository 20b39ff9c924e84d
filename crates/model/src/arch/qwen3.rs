//! Qwen 3: each head of q and k is normed before rope.

use tokenmill_backend::RopeStyle;

use crate::QkNorm;

use super::Architecture;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen3",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        for layer in &mut descriptor.layers {
            layer.attention_mut().qk_norm = Some(QkNorm::Head);
        }
        Ok(descriptor)
    },
    hf_classes: &["Qwen3ForCausalLM"],
    hf_names: &[],
    from_hf: |config| {
        let mut descriptor = config.decoder()?;
        let bias = config.presence("attention_bias")?;
        for layer in &mut descriptor.layers {
            layer.attention_mut().qk_norm = Some(QkNorm::Head);
            layer.attention_mut().qkv_bias = bias;
            layer.attention_mut().output_bias = bias;
        }
        if config.is("use_sliding_window")? {
            config.set_windows(&mut descriptor, config.max_window_layers()?)?;
        }
        Ok(descriptor)
    },
};
