//! Phi 3, 3.5 and 4: q, k and v in one tensor, gate and up in another, and factors for each frequency in the versions with
//! a long context.
//!
//! Source: transformers, `models/phi3/modeling_phi3.py`; llama.cpp, `src/models/phi3.cpp`.

use tokenmill_backend::RopeStyle;

use super::{Architecture, HfLayout};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "phi3",
    from_gguf: |config| config.decoder(RopeStyle::Neox),
    hf_classes: &["Phi3ForCausalLM"],
    hf_layout: HfLayout::LLAMA,
    from_hf: |config| {
        let mut descriptor = config.decoder()?;
        config.set_windows(&mut descriptor, |_| true)?;
        Ok(descriptor)
    },
};
