//! Checks properties that hold for every accepted tokenizer.

use tokenmill_text::{DecodeOptions, EncodeOptions, Tokenizer};

/// Encodes and decodes the end of the input and a few texts that meet many rules.
pub(crate) fn check(tokenizer: &Tokenizer, bytes: &[u8]) {
    let tail = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(64)..]);
    for text in ["", " a\u{301} the  <s>\n77 \u{2581}\u{1f469}\u{200d}", &tail] {
        for parse_special in [false, true] {
            let options = EncodeOptions {
                add_special: true,
                parse_special,
            };
            let ids = tokenizer.encode(text, options);
            assert!(ids.iter().all(|&id| (id as usize) < tokenizer.n_vocab()));
            tokenizer.decode(&ids, DecodeOptions::default());
        }
    }
    assert!(tokenizer.bos().is_none_or(|id| (id as usize) < tokenizer.n_vocab()));
    assert!(tokenizer.eos().is_none_or(|id| (id as usize) < tokenizer.n_vocab()));
}
