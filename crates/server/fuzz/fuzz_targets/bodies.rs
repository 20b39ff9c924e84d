//! Sends request bodies of every shape to the whole API, with the mutator and the claims of the property test.
//!
//! ```text
//! cd crates/server && mkdir -p fuzz/corpus/bodies
//! cargo +nightly fuzz run bodies -- -max_total_time=600 -max_len=4096
//! ```
#![no_main]

#[path = "../../tests/all/babble.rs"]
mod babble;
#[path = "../../tests/all/bodies.rs"]
mod bodies;
#[path = "../../tests/all/demo.rs"]
mod demo;

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};
use tokenmill_testkit::Random;

thread_local! {
    static HARNESS: bodies::Harness = bodies::Harness::new().expect("the demo model is there");
}

fuzz_target!(|input: &[u8]| {
    HARNESS.with(|harness| harness.check(input));
});

// Most mutations know JSON and the fields of each endpoint, the others are libFuzzer's, which follow coverage. An empty
// input becomes one of the good requests, so the search needs no corpus to begin with.
fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    if seed % 4 == 0 {
        return fuzzer_mutate(data, size, max_size);
    }
    let mut input = data[..size].to_vec();
    let mut random = Random::new(seed.into());
    for _ in 0..1 + seed / 4 % 4 {
        bodies::mutate(&mut input, &mut random);
    }
    let n_bytes = input.len().min(max_size);
    data[..n_bytes].copy_from_slice(&input[..n_bytes]);
    n_bytes
});
