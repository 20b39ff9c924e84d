//! Damaged images: an error or an image within its limits, never a panic.

use std::io::Cursor;

use image::{DynamicImage, ImageBuffer, ImageFormat, Rgb as Pixel};
use tokenmill_image::{Filter, ImageLimits, Rgb};
use tokenmill_testkit::Random;

const LIMITS: ImageLimits = ImageLimits {
    max_side: 256,
    max_pixels: 1 << 14,
};

#[test]
fn damaged_images_are_errors_or_small_images() {
    let picture = ImageBuffer::from_fn(40, 30, |x, y| {
        Pixel([(x * 6) as u8, (y * 8) as u8, (x * y) as u8])
    });
    let picture = DynamicImage::ImageRgb8(picture);
    let mut random = Random::new(16);
    let mut n_decoded = 0;
    for format in [
        ImageFormat::Png,
        ImageFormat::Jpeg,
        ImageFormat::WebP,
        ImageFormat::Bmp,
        ImageFormat::Gif,
    ] {
        let mut whole = Cursor::new(Vec::new());
        picture.write_to(&mut whole, format).unwrap();
        let whole = whole.into_inner();
        assert!(Rgb::decode(&whole, &LIMITS).is_ok(), "{format:?}");
        for _ in 0..400 {
            let mut bytes = whole.clone();
            for _ in 0..=random.below(6) {
                // Headers are short, and most faults are there.
                let reach = if random.below(2) == 0 {
                    bytes.len().min(64)
                } else {
                    bytes.len()
                };
                let at = random.below(reach);
                bytes[at] = match random.below(3) {
                    0 => 0xff,
                    1 => 0,
                    _ => random.bits() as u8,
                };
            }
            if random.below(4) == 0 {
                bytes.truncate(random.below(bytes.len() + 1));
            }
            let Ok(image) = Rgb::decode(&bytes, &LIMITS) else {
                continue;
            };
            n_decoded += 1;
            assert!(image.width() * image.height() <= LIMITS.max_pixels);
            assert_eq!(image.as_bytes().len(), 3 * image.width() * image.height());
            let resized = image.resized(9, 11, Filter::Bicubic);
            assert_eq!(resized.as_bytes().len(), 3 * 9 * 11);
        }
    }
    assert!(n_decoded > 50, "{n_decoded} images were decoded");
}
