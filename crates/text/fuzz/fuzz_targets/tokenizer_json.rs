//! Builds tokenizers from damaged `tokenizer.json` files: bytes as they are, and a sound file with its structure changed.
//! An accepted tokenizer must encode and decode any text.
//!
//! ```text
//! cd crates/text && mkdir -p fuzz/corpus/tokenizer_json
//! cargo +nightly fuzz run tokenizer_json fuzz/corpus/tokenizer_json fuzz/seeds/tokenizer_json -- -max_total_time=600
//! ```
#![no_main]

#[path = "claims.rs"]
mod claims;
#[path = "../../../testkit/src/json_mutation.rs"]
mod json_mutation;
#[path = "../../../testkit/src/text_mutation.rs"]
#[expect(dead_code, reason = "no text is mutated here")]
mod text_mutation;
#[path = "../../tests/all/support/tokenizer_parts.rs"]
mod tokenizer_parts;

use libfuzzer_sys::fuzz_target;
use tokenmill_text::Tokenizer;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(tokenizer) = Tokenizer::from_tokenizer_json(bytes) {
        claims::check(&tokenizer, bytes);
    }
    let base = include_str!("../../tests/all/support/tokenizer.json");
    let mut json = serde_json::from_str(base).expect("the file is JSON");
    let parts = tokenizer_parts::parts();
    // Each mutation takes a few bytes of the input.
    for choices in bytes.chunks(8).take(8) {
        json_mutation::mutate_json(&mut json, &parts, &mut text_mutation::choices(choices));
    }
    if let Ok(tokenizer) = Tokenizer::from_tokenizer_json(json.to_string().as_bytes()) {
        claims::check(&tokenizer, bytes);
    }
});
