//! EXAONE 3 and 3.5: Llama whose rope pairs are one of each half of a head in GGUF files too.
//!
//! Source: llama.cpp, `src/models/exaone.cpp`, and `gguf-py/gguf/tensor_mapping.py` for the names in folders.

use tokenmill_backend::RopeStyle;

use super::{Architecture, HfLayout};

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: "exaone",
    from_gguf: |config| config.decoder(RopeStyle::Neox),
    hf_classes: &["ExaoneForCausalLM"],
    hf_layout: HfLayout {
        prefixes: &["transformer."],
        layers: "h.",
        layer: &[
            ("ln_1", "attn_norm"),
            ("attn.attention.q_proj", "attn_q"),
            ("attn.attention.k_proj", "attn_k"),
            ("attn.attention.v_proj", "attn_v"),
            ("attn.attention.out_proj", "attn_output"),
            ("attn.attention.rotary", "rotary_emb"),
            ("ln_2", "ffn_norm"),
            ("mlp.c_fc_0", "ffn_gate"),
            ("mlp.c_fc_1", "ffn_up"),
            ("mlp.c_proj", "ffn_down"),
        ],
        network: &[("wte", "token_embd"), ("ln_f", "output_norm")],
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        keys.usual()?;
        keys.rope_width()
    },
};
