//! Feeds damaged files to the parser, with the mutator and the claims of the property tests.
//!
//! ```text
//! cd crates/gguf && mkdir -p fuzz/corpus/parse
//! cargo +nightly fuzz run parse fuzz/corpus/parse fuzz/seeds -- -max_total_time=600
//! ```
#![no_main]

#[path = "../../tests/all/mutation.rs"]
mod mutation;

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use tokenmill_testkit::Random;

fuzz_target!(|bytes: &[u8]| {
    let _ = mutation::check(bytes);
});

// Half of the mutations know where files break, the other half are libFuzzer's, which follow coverage.
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    if seed % 2 == 0 {
        return fuzzer_mutate(data, size, max_size);
    }
    let mut bytes = data[..size].to_vec();
    let mut random = Random::new(seed.into());
    for _ in 0..1 + seed / 2 % 4 {
        mutation::mutate(&mut bytes, &mut random);
    }
    let n_bytes = bytes.len().min(max_size);
    data[..n_bytes].copy_from_slice(&bytes[..n_bytes]);
    n_bytes
});
