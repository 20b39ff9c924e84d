//! Our reader of `tokenizer.json` against Hugging Face's `tokenizers` on random text.

use std::fs;

use proptest::{prelude::*, test_runner::TestRunner};
use tokenmill_testkit::Comparisons;
use tokenmill_text::{DecodeOptions, EncodeOptions, Tokenizer};

const FILES: &[&str] = &[
    "trained-tokenizers/byte-level",
    "trained-tokenizers/byte-level-split",
    "trained-tokenizers/sentencepiece",
    "trained-tokenizers/unigram",
    "trained-tokenizers/wordpiece",
    "tokenizers/bert-base-uncased",
    "tokenizers/falcon",
    "tokenizers/phi-2",
    "tokenizers/phi-3-mini",
    "tokenizers/roberta-base",
    "tokenizers/t5-small",
];
/// Texts for each file.
const N_TEXTS: u32 = 300;

/// Text that meets many rules of splitting: words, digits, white space, symbols, scripts, marks and special tokens.
fn texts() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => "[a-zA-Z']{1,12}",
        3 => " {1,5}",
        1 => "[ \t\r\n\u{a0}\u{3000}\u{2003}]{1,4}",
        2 => "[0-9]{1,8}",
        2 => "[!-/:-@\\[-`{-~]{1,4}",
        2 => "[äöüßéÀŁøñçЖдЯλΩאבعربहिन्दी日本語한국어ไทย]{1,5}",
        1 => "[a-z]\u{301}[a-z]?",
        // Both sides know characters of Unicode 8; their tables of later ones differ in age. Two of the former have another category
        // since: U+166D was punctuation, and U+1734 a nonspacing mark.
        1 => "[\\p{age=8.0}&&\\PC&&[^\u{166d}\u{1734}]]{1,4}",
        1 => prop_oneof![
            Just("👩‍👩‍👧"), Just("🏳️‍🌈"), Just("½"), Just("①"), Just("ﬁ"), Just("▁"), Just("\u{feff}"), Just("\u{200d}"),
            Just("it's"), Just("I'LL"), Just("www.x.y/z?a=1&b=2"), Just("\u{0}"), Just("\u{fffd}"), Just("ſ"),
        ].prop_map(str::to_owned),
        1 => prop_oneof![
            Just("<s>"), Just("</s>"), Just("<unk>"), Just("[CLS]"), Just("[MASK]"), Just("<mask>"), Just("<|end|>"),
            Just("<|endoftext|>"), Just("<|user|>"), Just("<pad>"), Just("<extra_id_3>"), Just(">>TITLE<<"),
        ].prop_map(str::to_owned),
    ];
    prop::collection::vec(part, 0..14).prop_map(|parts| parts.concat())
}

#[test]
fn random_text_encodes_and_decodes_as_tokenizers_does() {
    let mut comparisons = Comparisons::of("random text");
    let mut failures = Vec::new();
    for name in FILES {
        let Some(path) = comparisons.find(&format!("{name}/tokenizer.json")) else {
            continue;
        };
        let json = fs::read(path).unwrap();
        let ours = Tokenizer::from_tokenizer_json(&json).unwrap();
        let reference = tokenizers::Tokenizer::from_bytes(&json).unwrap();
        let mut runner = TestRunner::new(ProptestConfig {
            cases: N_TEXTS,
            failure_persistence: None,
            ..ProptestConfig::default()
        });
        let options = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        let outcome = runner.run(&texts(), |text| {
            let expected = reference.encode_fast(text.as_str(), true).unwrap();
            let ids = ours.encode(&text, options);
            prop_assert_eq!(&ids[..], expected.get_ids());
            let decoded = ours.decode(&ids, DecodeOptions::default());
            prop_assert_eq!(decoded, reference.decode(&ids, true).unwrap());
            Ok(())
        });
        if let Err(error) = outcome {
            failures.push(format!("{name}: {error}"));
        }
        comparisons.compared(N_TEXTS as usize);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
