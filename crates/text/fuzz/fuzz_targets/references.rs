//! Fuzzes grammars, schemas and tools whose rules refer to each other at random, with up to some thousand rules in every language. A
//! compiler must neither overflow its stack nor continue after its answer.
//!
//! ```text
//! cd crates/text && mkdir -p fuzz/corpus/references
//! cargo +nightly fuzz run references fuzz/corpus/references -- -max_total_time=600 -timeout=20
//! ```
#![no_main]

#[path = "../../tests/all/support/references.rs"]
mod references;

use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let begun = Instant::now();
    let Some(constraint) = references::constraint_of(input) else {
        return;
    };
    let _ = references::COMPILER.compile(&constraint);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
});
