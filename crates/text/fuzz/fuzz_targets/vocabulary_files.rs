//! Makes keys of GGUF files from damaged files of a folder: a `tokenizer.model`, and a `tokenizer.json` with its structure changed.
//! The keys must make a tokenizer, or an error.
//!
//! ```text
//! cd crates/text && mkdir -p fuzz/corpus/vocabulary_files
//! cargo +nightly fuzz run vocabulary_files fuzz/corpus/vocabulary_files -- -max_total_time=600
//! ```
#![no_main]

#[path = "../../../testkit/src/json_mutation.rs"]
mod json_mutation;
#[path = "../../../testkit/src/text_mutation.rs"]
#[expect(dead_code, reason = "no text is mutated here")]
mod text_mutation;
#[path = "../../tests/all/support/tokenizer_parts.rs"]
mod tokenizer_parts;

use libfuzzer_sys::fuzz_target;
use tokenmill_text::{Tokenizer, VocabularyFiles};

fuzz_target!(|bytes: &[u8]| {
    let base = include_str!("../../tests/all/support/tokenizer.json");
    let mut json = serde_json::from_str(base).expect("the file is JSON");
    let parts = tokenizer_parts::parts();
    for choices in bytes.chunks(8).take(8) {
        json_mutation::mutate_json(&mut json, &parts, &mut text_mutation::choices(choices));
    }
    for (tokenizer_json, sentencepiece) in [
        (Some(json.to_string().into_bytes()), None),
        (None, Some(bytes.to_vec())),
    ] {
        let files = VocabularyFiles {
            tokenizer_json,
            sentencepiece,
            n_vocab: 1024,
            ..VocabularyFiles::default()
        };
        if let Ok(metadata) = files.metadata() {
            let _ = Tokenizer::from_gguf(&metadata);
        }
    }
});
