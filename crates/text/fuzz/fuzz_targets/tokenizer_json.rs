//! Builds tokenizers from damaged `tokenizer.json` files; what is accepted must encode and decode anything.
//!
//! ```text
//! cd crates/text && mkdir -p fuzz/corpus/tokenizer_json
//! cargo +nightly fuzz run tokenizer_json fuzz/corpus/tokenizer_json fuzz/seeds/tokenizer_json -- -max_total_time=600
//! ```
#![no_main]

#[path = "claims.rs"]
mod claims;

use libfuzzer_sys::fuzz_target;
use tokenmill_text::Tokenizer;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(tokenizer) = Tokenizer::from_tokenizer_json(bytes) {
        claims::check(&tokenizer, bytes);
    }
});
