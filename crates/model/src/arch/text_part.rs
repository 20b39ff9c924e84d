//! Models of images and text whose text part is a network of its own, with its own name: which one it is.
//!
//! Separate because their class says nothing of the text part, which `text_config` names. Invariant: only classes whose text part sees
//! what that network alone sees are here, so not those that let the tokens before an answer see each other (PaliGemma).

use serde_json::Value;

use super::{HfConfig, HfLayout, hf_layout::VISION};

/// Their classes.
const CLASSES: &[&str] = &[
    "AyaVisionForConditionalGeneration",
    "Cohere2VisionForConditionalGeneration",
    "Idefics3ForConditionalGeneration",
    "InternVLForConditionalGeneration",
    "Lfm2VlForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "LlavaOnevisionForConditionalGeneration",
    "SmolVLMForConditionalGeneration",
];

/// What `model_type` of a text part means.
const NETWORKS: &[(&str, &str)] = &[
    ("cohere", "CohereForCausalLM"),
    ("cohere2", "Cohere2ForCausalLM"),
    ("gpt_oss", "GptOssForCausalLM"),
    ("granite", "GraniteForCausalLM"),
    ("lfm2", "Lfm2ForCausalLM"),
    ("llama", "LlamaForCausalLM"),
    ("mistral", "MistralForCausalLM"),
    ("phi3", "Phi3ForCausalLM"),
    ("qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "Qwen3ForCausalLM"),
    ("qwen3_moe", "Qwen3MoeForCausalLM"),
    ("smollm3", "SmolLM3ForCausalLM"),
];

const PREFIXES: &[&str] = &[
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "model.text_model.",
    "model.",
];

const IMAGES: &[&str] = &[
    "image_newline",
    "model.image_newline",
    "model.vision_model.",
    "model.connector.",
    VISION[0],
    VISION[1],
    VISION[2],
    VISION[3],
    VISION[6],
    VISION[7],
];

/// Whether a class is one of theirs.
pub(super) fn has_text_part(class: &str) -> bool {
    CLASSES.contains(&class)
}

/// The class of the network that a text part is; `None` where it is none of those that are known.
pub(super) fn network_of(config: &HfConfig) -> Option<&'static str> {
    let kind = config.get("model_type").and_then(Value::as_str)?;
    let (_, class) = NETWORKS.iter().find(|(name, _)| *name == kind)?;
    Some(class)
}

/// The layout of the text part's tensors, which have a name before them, among those of images.
pub(super) fn layout(of_network: &HfLayout) -> HfLayout {
    HfLayout {
        prefixes: PREFIXES,
        ignored: IMAGES,
        ..*of_network
    }
}
