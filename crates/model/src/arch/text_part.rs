//! Finds the text network of models of images and text that contain a network with its own name.
//!
//! `text_config` names it; the model's class does not. Invariant: only classes whose text part attends
//! exactly as that network alone are listed. Models whose prompt tokens attend to each other in both
//! directions (PaliGemma) are not.

use serde_json::Value;

use super::{HfConfig, HfLayout, hf_layout::VISION};

/// The classes of such models.
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

/// The network class for each `model_type` of a text part.
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

/// Returns whether a class has such a text part.
pub(super) fn has_text_part(class: &str) -> bool {
    CLASSES.contains(&class)
}

/// Returns the class of the text part's network; `None` if it is unknown.
pub(super) fn network_of(config: &HfConfig) -> Option<&'static str> {
    let kind = config.get("model_type").and_then(Value::as_str)?;
    let (_, class) = NETWORKS.iter().find(|(name, _)| *name == kind)?;
    Some(class)
}

/// Returns the layout of the text part's tensors, which stand among those of the image encoder.
pub(super) fn layout(of_network: &HfLayout) -> HfLayout {
    HfLayout {
        ignored: VISION,
        ..*of_network
    }
}
