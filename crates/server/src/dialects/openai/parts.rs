//! [`ContentPart`]: the parts of a message's content in OpenAI's APIs: texts and images.
//!
//! A message may also be just a text. Invariant: other parts than texts and images are refused by path.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::message::Wording;
use crate::{
    ApiError,
    requests::{
        fields::refuse_others,
        images::{self, Parts},
    },
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

/// Fields of a text part that only describe it: prefixes are always cached, and fields of an answer may come back.
const PART_LABELS: &[&str] = &[
    "cache_control",
    "prompt_cache_breakpoint",
    "annotations",
    "logprobs",
];

/// Holds the contents of a message's parts.
#[derive(Clone, Debug, Default)]
pub(super) struct Joined {
    pub(super) text: String,
    /// The parts themselves, if there are images.
    pub(super) parts: Vec<Value>,
    /// Reasoning that is a part of an earlier answer.
    pub(super) thoughts: Option<String>,
}

impl Joined {
    pub(super) fn of_text(text: String) -> Self {
        Self {
            text,
            ..Self::default()
        }
    }
}

/// Joins the text of parts, and keeps the parts themselves if there are images. Parts of an answer may have other servers' types.
pub(super) fn join_parts(
    path: &str,
    parts: Vec<ContentPart>,
    wording: &Wording,
    is_answer: bool,
) -> Result<Joined, ApiError> {
    let mut joined = Parts::default();
    let mut thoughts: Option<String> = None;
    for (index, mut part) in parts.into_iter().enumerate() {
        let path = format!("{path}[{index}]");
        if is_answer && part.kind == "refusal" {
            joined.push_text(
                part.others
                    .get("refusal")
                    .and_then(Value::as_str)
                    .unwrap_or_default(),
            );
            continue;
        }
        if is_answer && matches!(part.kind.as_str(), "thinking" | "reasoning") {
            let said = part.others.get(&part.kind).map(texts_in).unwrap_or_default();
            let said = part.text.as_deref().unwrap_or(&said);
            thoughts.get_or_insert_default().push_str(said);
            continue;
        }
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
        if !is_answer {
            refuse_others(&path, &part.others, PART_LABELS)?;
        }
        let text = part
            .text
            .ok_or_else(|| ApiError::invalid(format!("{path}.text"), "this field is required"))?;
        joined.push_text(&text);
    }
    let (text, parts) = joined.finish();
    Ok(Joined {
        text,
        parts,
        thoughts,
    })
}

/// Returns a text, or joins the texts of a list of parts.
fn texts_in(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => (parts.iter()).filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}
