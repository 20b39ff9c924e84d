//! [`RawPrompt`] parses the prompts of llama.cpp's API: a text, token ids, a mix of both, an object with
//! images, or a list of these.
//!
//! Completion and embedding take the same forms. Invariant: a list that contains a token id is one prompt,
//! and any other list is a list of prompts.

use serde::Deserialize;

use crate::ApiError;

/// Marks the place of an image in a text.
pub(crate) const MEDIA_MARK: &str = "<__media__>";

/// Holds a text, token ids, or a list of prompts.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a list of token ids and strings, an object with `prompt_string`, or a list of such prompts"
)]
pub enum RawPrompt {
    /// A text.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
    /// An object.
    Object(PromptObject),
    /// One prompt in pieces if it contains token ids, else a list of prompts.
    List(Vec<PromptItem>),
}

/// Holds one item of a prompt's list.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a token id, a list of both, or an object with `prompt_string`"
)]
pub enum PromptItem {
    /// A piece of the prompt, or a prompt.
    Piece(PromptPiece),
    /// A prompt in pieces.
    Pieces(Vec<PromptPiece>),
    /// A prompt.
    Object(PromptObject),
}

/// Holds a piece of a prompt.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(untagged, expecting = "expected a string or a token id")]
pub enum PromptPiece {
    /// A token id.
    Token(u32),
    /// A text.
    Text(String),
}

/// Holds a prompt as an object: a text with images, or content parts.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct PromptObject {
    prompt_string: Option<String>,
    #[serde(default)]
    multimodal_data: Vec<String>,
    content: Option<Vec<TextPart>>,
}

/// Holds a content part.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
struct TextPart {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

/// Holds one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OneRawPrompt {
    /// Pieces of the prompt, in order.
    pub(crate) pieces: Vec<PromptPiece>,
    /// Images in base64, one for each [`MEDIA_MARK`] in the only text.
    pub(crate) images: Vec<String>,
}

impl OneRawPrompt {
    /// Creates a prompt from a text.
    pub(crate) fn of_text(text: String) -> Self {
        Self::of_pieces(vec![PromptPiece::Text(text)])
    }

    fn of_pieces(pieces: Vec<PromptPiece>) -> Self {
        Self {
            pieces,
            images: Vec::new(),
        }
    }
}

impl PromptObject {
    /// Converts the object to a prompt.
    ///
    /// # Errors
    /// Fails if it has neither or both of text and parts, or a part that is not text.
    fn prompt(&self, param: &str) -> Result<OneRawPrompt, ApiError> {
        let text = match (&self.prompt_string, &self.content) {
            (Some(text), None) => text.clone(),
            (None, Some(parts)) if self.multimodal_data.is_empty() => {
                let text = |part: &TextPart| {
                    let text = part.text.clone().filter(|_| part.kind == "text");
                    text.ok_or_else(|| {
                        ApiError::invalid(
                            format!("{param}.content"),
                            "each part must be a text: `{\"type\": \"text\", \"text\": ...}`",
                        )
                    })
                };
                parts.iter().map(text).collect::<Result<String, _>>()?
            }
            _ => {
                let reason = "expected `prompt_string`, perhaps with `multimodal_data`, or `content`";
                return Err(ApiError::invalid(param, reason));
            }
        };
        Ok(OneRawPrompt {
            pieces: vec![PromptPiece::Text(text)],
            images: self.multimodal_data.clone(),
        })
    }
}

impl RawPrompt {
    /// Returns the prompts in order.
    ///
    /// # Errors
    /// Fails on nested lists and on objects that are not a prompt, and names `param`.
    pub(crate) fn prompts(&self, param: &str) -> Result<Vec<OneRawPrompt>, ApiError> {
        let items = match self {
            Self::Text(text) => {
                return Ok(vec![OneRawPrompt::of_text(text.clone())]);
            }
            Self::Tokens(ids) => {
                let pieces = ids.iter().copied().map(PromptPiece::Token).collect();
                return Ok(vec![OneRawPrompt::of_pieces(pieces)]);
            }
            Self::Object(object) => return Ok(vec![object.prompt(param)?]),
            Self::List(items) => items,
        };
        let is_token = |item: &PromptItem| matches!(item, PromptItem::Piece(PromptPiece::Token(_)));
        if items.iter().any(is_token) {
            let pieces: Option<Vec<PromptPiece>> = (items.iter())
                .map(|item| match item {
                    PromptItem::Piece(piece) => Some(piece.clone()),
                    PromptItem::Pieces(_) | PromptItem::Object(_) => None,
                })
                .collect();
            let reason = "a list with token ids is one prompt, which cannot contain lists or objects";
            let pieces = pieces.ok_or_else(|| ApiError::invalid(param, reason))?;
            return Ok(vec![OneRawPrompt::of_pieces(pieces)]);
        }
        let prompt = |item: &PromptItem| match item {
            PromptItem::Piece(piece) => Ok(OneRawPrompt::of_pieces(vec![piece.clone()])),
            PromptItem::Object(object) => object.prompt(param),
            PromptItem::Pieces(pieces)
                if pieces.iter().any(|piece| matches!(piece, PromptPiece::Token(_))) =>
            {
                Ok(OneRawPrompt::of_pieces(pieces.clone()))
            }
            PromptItem::Pieces(_) => {
                let reason = "a nested list is one prompt, which must contain token ids";
                Err(ApiError::invalid(param, reason))
            }
        };
        items.iter().map(prompt).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn prompts(prompt: &Value) -> Result<Vec<OneRawPrompt>, String> {
        let read: RawPrompt = serde_json::from_value(prompt.clone()).map_err(|error| error.to_string())?;
        read.prompts("prompt").map_err(|error| error.to_string())
    }

    #[test]
    fn a_list_with_token_ids_is_one_prompt_and_others_are_many() {
        let text = |text: &str| PromptPiece::Text(text.to_owned());
        let token = PromptPiece::Token;
        for (prompt, expected) in [
            (json!("a"), vec![vec![text("a")]]),
            (json!([1, 2]), vec![vec![token(1), token(2)]]),
            (json!([1, "a", 2]), vec![vec![token(1), text("a"), token(2)]]),
            (json!(["a", 1]), vec![vec![text("a"), token(1)]]),
            (json!(["a"]), vec![vec![text("a")]]),
            (json!(["a", "b"]), vec![vec![text("a")], vec![text("b")]]),
            (
                json!([[1, "a"], "b", [2]]),
                vec![vec![token(1), text("a")], vec![text("b")], vec![token(2)]],
            ),
            (json!({ "prompt_string": "a" }), vec![vec![text("a")]]),
            (
                json!([[1], { "content": [{ "type": "text", "text": "a " }, { "type": "text", "text": "b" }] }]),
                vec![vec![token(1)], vec![text("a b")]],
            ),
        ] {
            let expected = expected.into_iter().map(OneRawPrompt::of_pieces).collect();
            assert_eq!(prompts(&prompt), Ok(expected), "{prompt}");
        }
        for wrong in [
            json!([1, [2]]),
            json!([["a", "b"], "c"]),
            json!([[]]),
            json!([[[1]]]),
            json!([null]),
            json!([-1]),
            json!({}),
            json!({ "content": "a" }),
            json!({ "content": [{ "type": "image_url" }] }),
            json!({ "prompt_string": "a", "content": [] }),
            json!([1, { "prompt_string": "a" }]),
        ] {
            assert!(prompts(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_object_has_images_for_its_text() {
        let found =
            prompts(&json!({ "prompt_string": "a <__media__>", "multimodal_data": ["aGk="] })).unwrap();
        assert_eq!(found[0].images, ["aGk="]);
    }
}
