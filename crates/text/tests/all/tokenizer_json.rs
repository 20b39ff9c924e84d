//! Encodings of `tokenizer.json` files, published ones and ones trained for this test, against ids by Hugging Face's
//! tokenizers.

use std::{fs, path::Path};

use serde_json::Value;
use tokenmill_gguf::GgufFile;
use tokenmill_testkit::Comparisons;
use tokenmill_text::{DecodeOptions, EncodeOptions, Tokenizer};

fn load(path: &Path) -> Tokenizer {
    Tokenizer::from_tokenizer_json(&fs::read(path).unwrap())
        .unwrap_or_else(|error| panic!("{}: {error:?}", path.display()))
}

fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect()
}

/// Everything as Hugging Face's `encode(text)` has it.
const WHOLE: EncodeOptions = EncodeOptions {
    add_special: true,
    parse_special: true,
};

#[test]
fn tokenizer_files_encode_and_decode_as_hugging_face_does() {
    let mut comparisons = Comparisons::of("tokenizer.json");
    for set in ["trained-tokenizers", "tokenizers"] {
        let Some(folder) = comparisons.find(set) else {
            continue;
        };
        let lines = fs::read_to_string(folder.join("expected-encodings.jsonl")).unwrap();
        let mut n_cases = 0;
        for line in lines.lines() {
            let expected: Value = serde_json::from_str(line).unwrap();
            let file = expected["file"].as_str().unwrap();
            let tokenizer = load(&folder.join(file));
            assert_eq!(
                tokenizer.n_vocab() as u64,
                expected["vocab"].as_u64().unwrap(),
                "{file}"
            );
            for case in expected["cases"].as_array().unwrap() {
                let text = case["text"].as_str().unwrap();
                assert_eq!(
                    tokenizer.encode(text, WHOLE),
                    ids(&case["ids"]),
                    "{file}: {text:?}"
                );
                let bare = EncodeOptions {
                    add_special: false,
                    ..WHOLE
                };
                let bare = tokenizer.encode(text, bare);
                assert_eq!(bare, ids(&case["ids_no_special"]), "{file}: {text:?}");
                let shown = DecodeOptions {
                    skip_special: false,
                    ..DecodeOptions::default()
                };
                let decoded = tokenizer.decode(&bare, shown);
                assert_eq!(decoded, case["decoded"].as_str().unwrap(), "{file}: {text:?}");
                n_cases += 1;
            }
        }
        assert!(n_cases > 500, "only {n_cases} encodings in {set}");
        comparisons.compared(n_cases);
    }
}

#[test]
fn parity_models_tokenize_alike_from_either_file() {
    let mut comparisons = Comparisons::of("tokenizers of tiny models");
    let Some(parity) = comparisons.find("parity") else {
        return;
    };
    let cases: Value =
        serde_json::from_slice(&fs::read(parity.join("tokenizer_cases.json")).unwrap()).unwrap();
    let mut n_tokenizers = 0;
    for folder in fs::read_dir(&parity).unwrap() {
        let folder = folder.unwrap().path();
        let mut tokenizers = Vec::new();
        if folder.join("hf/tokenizer.json").exists() {
            tokenizers.push(load(&folder.join("hf/tokenizer.json")));
        }
        if let Ok(file) = GgufFile::open(folder.join("model-F32.gguf")) {
            let tokenizer = Tokenizer::from_gguf(file.metadata());
            tokenizers.push(tokenizer.unwrap_or_else(|error| panic!("{}: {error}", folder.display())));
        }
        for tokenizer in &tokenizers {
            for case in cases["cases"].as_array().unwrap() {
                let text = case["text"].as_str().unwrap();
                let expected = ids(&case["ids"]);
                assert_eq!(
                    tokenizer.encode(text, WHOLE),
                    expected,
                    "{}: {text:?}",
                    folder.display()
                );
                let decoded = tokenizer.decode(&expected, DecodeOptions::default());
                assert_eq!(decoded, case["decoded"].as_str().unwrap(), "{}", folder.display());
            }
        }
        n_tokenizers += tokenizers.len();
    }
    assert!(n_tokenizers > 3, "found only {n_tokenizers} tokenizers");
    comparisons.compared(n_tokenizers * cases["cases"].as_array().unwrap().len());
}
