//! Reads damaged image encoders: what is accepted has sizes that can be loaded.
//!
//! ```text
//! cd crates/model && mkdir -p fuzz/corpus/vision && cp ../../tests/data/vision/*/mmproj-*.gguf fuzz/corpus/vision
//! cargo +nightly fuzz run vision fuzz/corpus/vision -- -max_total_time=600
//! ```
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokenmill_gguf::GgufFile;
use tokenmill_model::{MAX_PATCHES, VisionFile};

fuzz_target!(|bytes: &[u8]| {
    let Some(file) = GgufFile::from_bytes(bytes)
        .ok()
        .and_then(|file| VisionFile::from_gguf(file).ok())
    else {
        return;
    };
    let shape = file.shape();
    let n_patches = shape.max_patches();
    assert!((1..=MAX_PATCHES).contains(&n_patches));
    assert!((1..=n_patches).contains(&shape.size.max_rows()) && shape.n_embd > 0 && shape.n_vision > 0);
});
