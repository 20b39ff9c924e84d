//! Builds tokenizers from damaged GGUF headers; what is accepted must encode and decode anything.
//!
//! ```text
//! cd crates/text && mkdir -p fuzz/corpus/metadata
//! cargo +nightly fuzz run metadata fuzz/corpus/metadata fuzz/seeds/metadata -- -max_total_time=600
//! ```
#![no_main]

#[path = "claims.rs"]
mod claims;

use libfuzzer_sys::fuzz_target;
use tokenmill_gguf::GgufFile;
use tokenmill_text::Tokenizer;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(file) = GgufFile::from_bytes(bytes)
        && let Ok(tokenizer) = Tokenizer::from_gguf(file.metadata())
    {
        claims::check(&tokenizer, bytes);
    }
});
