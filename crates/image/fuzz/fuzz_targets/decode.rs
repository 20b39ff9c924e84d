//! Decodes damaged images within small limits, and resizes and normalizes what comes out.
//!
//! ```text
//! cd crates/image && mkdir -p fuzz/corpus/decode
//! cargo +nightly fuzz run decode fuzz/corpus/decode -- -max_total_time=600
//! ```
#![no_main]

use libfuzzer_sys::fuzz_target;
use tokenmill_image::{Filter, ImageLimits, Rgb};

fuzz_target!(|bytes: &[u8]| {
    let limits = ImageLimits {
        max_side: 512,
        max_pixels: 1 << 16,
    };
    let Ok(image) = Rgb::decode(bytes, &limits) else {
        return;
    };
    assert!(image.width() * image.height() <= limits.max_pixels);
    let resized = image.resized(33, 17, Filter::Bicubic);
    assert!(resized.normalized([0.5; 3], [0.5; 3]).iter().all(|value| value.abs() <= 1.0));
});
