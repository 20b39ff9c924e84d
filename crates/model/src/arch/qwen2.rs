//! Qwen 2 and 2.5: biases on q, k and v.

use tokenmill_backend::RopeStyle;

use crate::Presence;

use super::Architecture;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "qwen2",
    from_gguf: |config| {
        let mut descriptor = config.decoder(RopeStyle::Neox)?;
        for layer in &mut descriptor.layers {
            layer.attention_mut().qkv_bias = Presence::Required;
        }
        Ok(descriptor)
    },
    hf_classes: &["Qwen2ForCausalLM"],
    hf_names: &[],
    from_hf: |config| {
        let mut descriptor = config.decoder()?;
        for layer in &mut descriptor.layers {
            layer.attention_mut().qkv_bias = Presence::Required;
        }
        if config.is("use_sliding_window")? {
            config.set_windows(&mut descriptor, config.max_window_layers()?)?;
        }
        Ok(descriptor)
    },
};
