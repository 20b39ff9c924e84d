//! EXAONE 3 and 3.5: Llama whose rope pairs are one of each half of a head in GGUF files too. EXAONE 4 has norms of each
//! head of q and k, and norms after each half instead of before; in versions with windows, full-attention layers have no
//! positions. EXAONE with experts has these windows, experts chosen by sigmoids with a correction bias, and a shared
//! network.
//!
//! Source: llama.cpp, `src/models/{exaone,exaone4,exaone-moe}.cpp`, and `gguf-py/gguf/tensor_mapping.py` for the names in folders
//! of EXAONE 3; transformers, `models/exaone4/modeling_exaone4.py`, `models/exaone_moe/modeling_exaone_moe.py`.

use tokenmill_backend::RopeStyle;

use crate::{Descriptor, LoadError, NormPlacement, Presence, QkNorm};

use super::{
    Architecture, GgufConfig, GgufKeys, HfLayout, gguf_experts::MoeDefaults, hf_experts::EXPERTS,
    hf_layout::POST_NORMS,
};

/// Period of the layers with full attention.
const PERIOD: usize = 4;
/// Number of layers of the version with windows, whose files may lack the window size.
const N_LAYERS_32B: usize = 64;
const WINDOW: usize = 4096;

pub(super) const EXAONE: Architecture = Architecture {
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

pub(super) const EXAONE_4: Architecture = Architecture {
    name: "exaone4",
    from_gguf: |config| {
        let has_window = config.layer_counts()?.0 == N_LAYERS_32B;
        let descriptor = windowed(config, has_window.then_some(WINDOW))?;
        Ok(descriptor.with_norms(NormPlacement::Post))
    },
    hf_classes: &["Exaone4ForCausalLM"],
    hf_layout: HfLayout {
        layer: POST_NORMS,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        find_positions(keys)?;
        keys.usual()?;
        keys.vocab_size()?;
        keys.windows_if_any()
    },
};

pub(super) const EXAONE_MOE: Architecture = Architecture {
    name: "exaone-moe",
    from_gguf: |config| {
        let moe = config.moe_with_shared(MoeDefaults::SIGMOID, Presence::Required)?;
        config.with_experts(windowed(config, None)?, &moe)
    },
    hf_classes: &["ExaoneMoeForCausalLM"],
    hf_layout: HfLayout {
        layer: EXPERTS,
        ..HfLayout::LLAMA
    },
    rule: |keys| {
        find_positions(keys)?;
        keys.find_experts_behind_dense(true, &["num_shared_experts"])?;
        keys.usual()?;
        keys.vocab_size()?;
        keys.window()?;
        keys.window_pattern();
        keys.routed_experts()?;
        keys.copy_count("expert_shared_count", &["num_shared_experts"])?;
        keys.shared_width()?;
        keys.set_count("nextn_predict_layers", 0)?;
        keys.set("rope.scaling.type", "none");
        Ok(())
    },
};

/// Describes a decoder of EXAONE 4, with windows of `width` if its file does not state it.
fn windowed(config: &GgufConfig<'_>, width: Option<usize>) -> Result<Descriptor, LoadError> {
    let descriptor = config.decoder_with_windows(RopeStyle::Neox, PERIOD, width)?;
    let descriptor = descriptor.with_qk_norm(QkNorm::Head);
    let has_windows = descriptor
        .attentions()
        .any(|attention| attention.window.is_some());
    Ok(if has_windows {
        descriptor.with_rope_in_windows()
    } else {
        descriptor
    })
}

/// Reads which layers of a folder have a window, and positions.
fn find_positions(keys: &mut GgufKeys<'_>) -> Result<(), LoadError> {
    keys.find_windows_by_period(PERIOD)?;
    // If a window is configured, only layers with a window have positions, even if no layer has one.
    if keys.config.get("sliding_window").is_some() {
        let windows = keys.facts.windows.iter();
        keys.facts.has_rope = Some(windows.map(Option::is_some).collect());
    }
    Ok(())
}
