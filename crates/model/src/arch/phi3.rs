//! Phi 3, 3.5 and 4: q, k and v in one tensor, gate and up in another, and factors for each frequency in the versions with
//! a long context.
//!
//! Source: transformers, `models/phi3/modeling_phi3.py`; llama.cpp, `src/models/phi3.cpp`.

use tokenmill_backend::RopeStyle;

use crate::{LoadError, RopeScaling};

use super::{Architecture, GgufKeys, HfLayout};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "phi3",
    from_gguf: |config| config.decoder(RopeStyle::Neox),
    hf_classes: &["Phi3ForCausalLM"],
    hf_layout: HfLayout::LLAMA,
    rule,
};

/// Collects the keys of a folder.
fn rule(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.find_windows(|_| true)?;
    keys.sizes()?;
    keys.heads()?;
    keys.rope_width()?;
    keys.set("rope.freq_base", keys.sizes.rope.base);
    if let RopeScaling::LongRope { magnitude, .. } = keys.sizes.rope.scaling {
        keys.set("rope.scaling.attn_factor", magnitude);
    }
    keys.norm_eps()?;
    let original = keys
        .config
        .opt_first_usize(&["original_max_position_embeddings", "max_position_embeddings"])?;
    if let Some(original) = original {
        keys.set_count("rope.scaling.original_context_length", original)?;
    }
    let window = keys.config.opt_usize("sliding_window")?.unwrap_or(0);
    keys.set_count("attention.sliding_window", window)
}
