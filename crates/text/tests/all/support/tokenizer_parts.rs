//! Pieces of `tokenizer.json` for mutations: one of each part that is known, and some that are not.

use serde_json::{Value, json};

/// Normalizers, pre-tokenizers, post-processors, decoders, models and added tokens.
pub(crate) fn parts() -> Vec<Value> {
    vec![
        json!({"type": "NFC"}),
        json!({"type": "NFKD"}),
        json!({"type": "Lowercase"}),
        json!({"type": "StripAccents"}),
        json!({"type": "Strip", "strip_left": true, "strip_right": false}),
        json!({"type": "Prepend", "prepend": "\u{2581}"}),
        json!({"type": "Replace", "pattern": {"String": "e"}, "content": "eeeeeeee"}),
        json!({"type": "Replace", "pattern": {"Regex": "e*"}, "content": "ee"}),
        json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true}),
        json!({"type": "Precompiled", "precompiled_charsmap": "BAAAAAACAAAAAA=="}),
        json!({"type": "Sequence", "normalizers": [], "pretokenizers": [], "processors": [], "decoders": []}),
        json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}),
        json!({"type": "Split", "pattern": {"Regex": "\\s+(?!\\S)|."}, "behavior": "MergedWithPrevious", "invert": true}),
        json!({"type": "Split", "pattern": {"String": "h"}, "behavior": "Contiguous", "invert": false}),
        json!({"type": "Digits", "individual_digits": true}),
        json!({"type": "Punctuation", "behavior": "Isolated"}),
        json!({"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": true}),
        json!({"type": "BertPreTokenizer"}),
        json!({"type": "Whitespace"}),
        json!({"type": "WhitespaceSplit"}),
        json!({"type": "CharDelimiterSplit", "delimiter": "t"}),
        json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<s>": {"id": "<s>", "ids": [6, 6, 6], "tokens": ["<s>"]}}}),
        json!({"type": "RobertaProcessing", "sep": ["<s>", 6], "cls": ["<s>", 6]}),
        json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
        json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}),
        json!({"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": {"?": 0, "a": 1, "##t": 2}}),
        json!({"type": "Unigram", "unk_id": 0, "vocab": [["?", 0.0], ["a", -1.5], ["\u{2581}", -2.0]], "byte_fallback": false}),
        json!({"type": "WordLevel", "vocab": {}}),
        json!({"id": 5, "content": "th", "single_word": true, "lstrip": true, "rstrip": true, "normalized": true, "special": true}),
    ]
}
