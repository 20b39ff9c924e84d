//! Prompts that ask for the text between a beginning and an end, for models trained for it.
//!
//! Separate from the endpoints because three APIs ask for it. Invariant: the marks are tokens of the vocabulary; what looks
//! like one in the texts is text.

use tokenmill_text::{EncodeOptions, Tokenizer};

use crate::ApiError;

/// Marks before the beginning, before the end, and before the middle, of one family of models each.
///
/// Source: llama.cpp `src/llama-vocab.cpp`, and the model cards.
const MARKS: [[&str; 3]; 5] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
];

/// Whether a vocabulary has the marks.
pub(crate) fn has_marks(tokenizer: &Tokenizer) -> bool {
    marks(tokenizer).is_some()
}

fn marks(tokenizer: &Tokenizer) -> Option<[u32; 3]> {
    MARKS.iter().find_map(|[before, after, middle]| {
        let id = |text| tokenizer.special_token(text);
        Some([id(before)?, id(after)?, id(middle)?])
    })
}

/// The prompt whose answer stands between `prefix` and `suffix`.
///
/// # Errors
/// A model without the marks, by the field that asks for it.
pub(crate) fn infill_prompt(
    tokenizer: &Tokenizer,
    field: &str,
    prefix: &str,
    suffix: &str,
) -> Result<Vec<u32>, ApiError> {
    let Some([before, after, middle]) = marks(tokenizer) else {
        return Err(ApiError::UnsupportedField {
            param: field.to_owned(),
            reason: "the vocabulary of this model has no tokens for filling in the middle",
        });
    };
    let plain = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
    let mut tokens: Vec<u32> = (tokenizer.bos())
        .filter(|_| tokenizer.adds_bos())
        .into_iter()
        .collect();
    tokens.push(before);
    tokens.extend(tokenizer.encode(prefix, plain));
    tokens.push(after);
    tokens.extend(tokenizer.encode(suffix, plain));
    tokens.push(middle);
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tokenizer(marks: &[&str]) -> Tokenizer {
        let added: Vec<_> = (marks.iter().enumerate())
            .map(|(index, mark)| {
                json!({ "id": 2 + index, "content": mark, "special": true, "normalized": false,
                    "single_word": false, "lstrip": false, "rstrip": false })
            })
            .collect();
        let json = json!({
            "version": "1.0", "added_tokens": added, "normalizer": null,
            "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
            "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
            "post_processor": null,
            "model": { "type": "BPE", "vocab": { "a": 0, "b": 1 }, "merges": [] },
        });
        Tokenizer::from_tokenizer_json(json.to_string().as_bytes()).expect("a tokenizer")
    }

    #[test]
    fn the_marks_stand_around_the_texts() {
        let known = tokenizer(&MARKS[0]);
        assert!(has_marks(&known));
        assert_eq!(
            infill_prompt(&known, "suffix", "a", "ba").expect("a prompt"),
            [2, 0, 3, 1, 0, 4]
        );
        let unknown = tokenizer(&MARKS[0][..2]);
        let error = infill_prompt(&unknown, "suffix", "a", "b").expect_err("a mark is missing");
        assert_eq!((error.status(), error.param()), (400, Some("suffix")));
    }
}
