//! Loads damaged PTX: bytes as they are, and a sound module with words of its language moved about.
//!
//! ```text
//! cd crates/ptx-sim && mkdir -p fuzz/corpus/module
//! cargo +nightly fuzz run module fuzz/corpus/module -- -max_total_time=600
//! ```
#![no_main]

#[path = "../../tests/all/ptx_words.rs"]
mod ptx_words;
#[path = "../../../testkit/src/text_mutation.rs"]
mod text_mutation;

use libfuzzer_sys::fuzz_target;
use tokenmill_ptx_sim::{DeviceMemory, Module};

fuzz_target!(|bytes: &[u8]| {
    let _ = Module::load(&String::from_utf8_lossy(bytes), &mut DeviceMemory::new());
    let mut ptx = ptx_words::MODULE.to_owned();
    for choices in bytes.chunks(8).take(8) {
        text_mutation::mutate_text(&mut ptx, &ptx_words::WORDS, &mut text_mutation::choices(choices));
    }
    let _ = Module::load(&ptx, &mut DeviceMemory::new());
});
