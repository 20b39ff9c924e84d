//! Tests vocabularies with faults of published files: ids without tokens, merges without a result, and added words that are in the
//! vocabulary or not.

use serde_json::json;
use tokenmill_text::{EncodeOptions, Tokenizer};

use crate::support::vocabularies;

const PLAIN: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: true,
};

#[test]
fn ids_that_no_token_has_say_that_there_is_none() {
    let plain = Tokenizer::from_gguf(&vocabularies::sentencepiece()).unwrap();
    for key in ["padding", "seperator", "mask", "eos", "eot", "bos"] {
        let mut metadata = vocabularies::sentencepiece();
        let key = format!("tokenizer.ggml.{key}_token_id");
        if metadata.get(&key).is_some() {
            continue;
        }
        metadata.insert(&*key, u32::MAX).unwrap();
        let tokenizer = Tokenizer::from_gguf(&metadata).unwrap_or_else(|error| panic!("{key}: {error}"));
        assert_eq!(
            tokenizer.encode("a 77 <s", PLAIN),
            plain.encode("a 77 <s", PLAIN),
            "{key}"
        );
        let mut metadata = vocabularies::sentencepiece();
        metadata.insert(&*key, -1_i32).unwrap();
        assert!(Tokenizer::from_gguf(&metadata).is_ok(), "{key}");
    }
}

/// Splits a text by a `tokenizer.json` with this model and these added tokens.
fn pieces(
    model: &serde_json::Value,
    added: &serde_json::Value,
    pre_tokenizer: &serde_json::Value,
    text: &str,
) -> Vec<u32> {
    let file = json!({"version": "1.0", "added_tokens": added, "normalizer": null, "pre_tokenizer": pre_tokenizer,
        "post_processor": null, "decoder": null, "model": model});
    let tokenizer = Tokenizer::from_tokenizer_json(file.to_string().as_bytes()).unwrap();
    tokenizer.encode(text, PLAIN)
}

#[test]
fn added_words_are_found_by_their_rules_and_made_from_nothing_else() {
    let vocab =
        json!({"[UNK]": 0, "t": 1, "##o": 2, "##l": 3, "##s": 4, "##x": 5, "o": 6, "##a": 7, "##b": 8});
    let model = json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": vocab});
    let added = json!([{"id": 9, "content": "tool", "single_word": true, "lstrip": false, "rstrip": false,
        "normalized": false, "special": false}]);
    let pieces = |text: &str| pieces(&model, &added, &json!({"type": "WhitespaceSplit"}), text);
    assert_eq!(pieces("tool"), [9]);
    assert_eq!(pieces("tools"), [1, 2, 2, 3, 4]);
    assert_eq!(pieces("tool toolx"), [9, 1, 2, 2, 3, 5]);
    // A word that is written like a continuing piece.
    assert_eq!(pieces("##ab"), [7, 8]);
}

#[test]
fn a_space_before_a_text_is_a_space_and_no_other_white_space() {
    let letters = |text: &str| {
        let vocab = json!({"a": 0, "Ġ": 1, "Ċ": 2, "ĉ": 3});
        let model = json!({"type": "BPE", "vocab": vocab, "merges": []});
        pieces(
            &model,
            &json!([]),
            &json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": false}),
            text,
        )
    };
    assert_eq!(letters("a"), [1, 0]);
    assert_eq!(letters(" a"), [1, 0]);
    assert_eq!(letters("\na"), [1, 2, 0]);
    assert_eq!(letters("\ta"), [1, 3, 0]);
}
