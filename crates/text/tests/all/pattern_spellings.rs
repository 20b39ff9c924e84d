//! Compares patterns of published `tokenizer.json` files with Hugging Face's `tokenizers`, with escaped and with raw line breaks.
//!
//! The vocabulary is made here: it has all bytes, and pairs of bytes that patterns may separate, so the token ids show where the text was
//! split.

use proptest::{prelude::*, test_runner::TestRunner};
use serde_json::{Value, json};
use tokenmill_text::{EncodeOptions, Tokenizer};

/// Texts for each file.
const N_TEXTS: u32 = 200;

/// The last splitting step of DeepSeek V3, Llama 3, Qwen 2, GPT-4o and o200k (as tiktoken writes it, without its `$`), and a pattern that
/// begins with line breaks.
const PATTERNS: &[&str] = &[
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s*[\r\n]|\s+(?!\S)|\s",
    r"\s*[\r\n]+|\p{L}+|\s+(?!\S)|\s+",
    r"\p{L}+|\s+(?!\S)",
];

/// Writes a `tokenizer.json` that splits text by a pattern.
fn file(pattern: &str) -> Vec<u8> {
    // GPT-2's byte characters: printable bytes stand for themselves, the others follow U+0100.
    let is_printable = |byte: u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let others: Vec<u32> = (0..256).filter(|&byte| !is_printable(byte)).collect();
    let stand_in = |byte: u32| {
        let other = others.iter().position(|&other| other == byte);
        char::from_u32(other.map_or(byte, |idx| 256 + idx as u32)).unwrap()
    };
    let mut vocab: Vec<String> = (0..256).map(|byte| stand_in(byte).to_string()).collect();
    let mut merges = Vec::new();
    // Pairs of adjacent characters, then pairs of these.
    let ends: Vec<String> = " \n\r\tab1.'"
        .chars()
        .map(|c| stand_in(c as u32).to_string())
        .collect();
    for left in &ends {
        for right in &ends {
            merges.push(format!("{left} {right}"));
            vocab.push(format!("{left}{right}"));
        }
    }
    for pair in ["\n", " ", "\r\n"] {
        let pair: String = pair
            .repeat(2 / pair.len())
            .chars()
            .map(|c| stand_in(c as u32))
            .collect();
        merges.push(format!("{pair} {pair}"));
        vocab.push(pair.repeat(2));
    }
    let vocab: serde_json::Map<String, Value> = (vocab.into_iter().enumerate())
        .map(|(id, text)| (text, json!(id)))
        .collect();
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges},
    });
    serde_json::to_vec(&file).unwrap()
}

fn texts() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        3 => "[ab']{1,4}",
        3 => "\n{1,5}",
        2 => "(\r\n){1,3}",
        3 => " {1,5}",
        3 => "[ \t\r\n]{1,5}",
        1 => "1{1,4}",
        2 => "[.('#]{1,3}",
        1 => "[中文字]{1,3}",
    ];
    prop::collection::vec(part, 0..10).prop_map(|parts| parts.concat())
}

#[test]
fn patterns_cut_alike_with_escapes_and_with_line_breaks_of_their_own() {
    for escaped in PATTERNS {
        let literal = escaped.replace(r"\r", "\r").replace(r"\n", "\n");
        let turned = escaped.replace(r"[\r\n", r"[\n\r");
        for pattern in [*escaped, &literal, &turned] {
            let json = file(pattern);
            let ours = Tokenizer::from_tokenizer_json(&json).unwrap();
            let reference = tokenizers::Tokenizer::from_bytes(&json).unwrap();
            let options = EncodeOptions {
                add_special: true,
                parse_special: true,
            };
            let check = |text: &str| {
                let expected = reference.encode_fast(text, true).unwrap();
                (ours.encode(text, options), expected.get_ids().to_vec())
            };
            let (found, expected) = check("a\n\nb \n\n  a\r\n\r\n\r\n1");
            assert_eq!(found, expected, "{pattern:?}");
            let mut runner = TestRunner::new(ProptestConfig {
                cases: N_TEXTS,
                failure_persistence: None,
                ..ProptestConfig::default()
            });
            let outcome = runner.run(&texts(), |text| {
                let (found, expected) = check(&text);
                prop_assert_eq!(found, expected, "{:?}", pattern);
                Ok(())
            });
            outcome.unwrap_or_else(|error| panic!("{error}"));
        }
    }
}
