//! [`ContentPart`]: the parts of a message's content in OpenAI's APIs: texts and images.
//!
//! Separate from the message, which may be a text alone. Invariant: what is no text and no image is refused by its path.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::chat::Wording;
use crate::{
    ApiError,
    fields::refuse_others,
    images::{self, Parts},
};

pub(super) const TEXT_ONLY: &str = "text and images go in, and text comes out";

/// A part of a message's content.
#[derive(Clone, Debug, Deserialize)]
pub struct ContentPart {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Fields of a text part that only describe it: prefixes are always cached, and what an answer carried may come back.
const PART_LABELS: &[&str] = &[
    "cache_control",
    "prompt_cache_breakpoint",
    "annotations",
    "logprobs",
];

/// The text of parts, and the parts themselves where there are images.
pub(super) fn join_parts(
    path: &str,
    parts: Vec<ContentPart>,
    wording: &Wording,
) -> Result<(String, Vec<Value>), ApiError> {
    let mut joined = Parts::default();
    for (index, mut part) in parts.into_iter().enumerate() {
        let path = format!("{path}[{index}]");
        if part.kind == wording.image_kind {
            joined.push_image(images::of_openai(&path, &mut part.others)?);
            refuse_others(&path, &part.others, PART_LABELS)?;
            continue;
        }
        if !wording.text_kinds.contains(&part.kind.as_str()) {
            return Err(ApiError::UnsupportedField {
                param: format!("{path}.type"),
                reason: TEXT_ONLY,
            });
        }
        refuse_others(&path, &part.others, PART_LABELS)?;
        let text = part
            .text
            .ok_or_else(|| ApiError::invalid(format!("{path}.text"), "this field is required"))?;
        joined.push_text(&text);
    }
    Ok(joined.finish())
}
