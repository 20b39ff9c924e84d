//! Files of every format, decoded, and those that are refused.

use std::io::Cursor;

use image::{DynamicImage, ImageBuffer, ImageFormat, Rgb as Pixel, Rgba};
use tokenmill_image::{ImageError, ImageLimits, Rgb, size_of};
use tokenmill_testkit::crc32;

/// The formats that this build of the library below writes; the crate decodes each.
fn formats() -> impl Iterator<Item = ImageFormat> {
    ImageFormat::all().filter(ImageFormat::writing_enabled)
}

fn encoded(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

fn gradient(width: u32, height: u32) -> DynamicImage {
    let pixel = |x: u32, y: u32| Pixel([(x * 5) as u8, (y * 3) as u8, (x + y) as u8]);
    DynamicImage::ImageRgb8(ImageBuffer::from_fn(width, height, pixel))
}

#[test]
fn what_was_encoded_without_loss_comes_back() {
    let image = gradient(7, 5);
    for format in [ImageFormat::Png, ImageFormat::Bmp, ImageFormat::WebP] {
        let decoded = Rgb::decode(&encoded(&image, format), &ImageLimits::default()).unwrap();
        assert_eq!((decoded.width(), decoded.height()), (7, 5), "{format:?}");
        assert_eq!(decoded.as_bytes(), image.as_bytes(), "{format:?}");
    }
    let transparent = DynamicImage::ImageRgba8(ImageBuffer::from_pixel(2, 1, Rgba([1, 2, 3, 0])));
    let decoded = Rgb::decode(&encoded(&transparent, ImageFormat::Png), &ImageLimits::default());
    assert_eq!(decoded.unwrap().as_bytes(), [1, 2, 3, 1, 2, 3]);
}

#[test]
fn a_size_is_that_of_the_decoded_image() {
    let image = gradient(7, 5);
    assert!(formats().count() > 1);
    for format in formats() {
        let size = size_of(&encoded(&image, format), &ImageLimits::default());
        assert_eq!(size, Ok([7, 5]), "{format:?}");
    }
    // An EXIF block with orientation 6: rotated by a quarter turn.
    let mut jpeg = encoded(&image, ImageFormat::Jpeg);
    let exif = b"\xff\xe1\x00\x22Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
    jpeg.splice(2..2, exif.iter().copied());
    let limits = ImageLimits::default();
    let decoded = Rgb::decode(&jpeg, &limits).unwrap();
    assert_eq!([decoded.width(), decoded.height()], [5, 7]);
    assert_eq!(size_of(&jpeg, &limits), Ok([5, 7]));
}

#[test]
fn jpeg_comes_back_almost_and_gif_in_its_palette() {
    let image = DynamicImage::ImageRgb8(ImageBuffer::from_pixel(16, 8, Pixel([200, 100, 50])));
    for format in [ImageFormat::Jpeg, ImageFormat::Gif] {
        let decoded = Rgb::decode(&encoded(&image, format), &ImageLimits::default()).unwrap();
        let distance = decoded.as_bytes().iter().zip(image.as_bytes());
        assert!(distance.clone().all(|(a, b)| a.abs_diff(*b) <= 8), "{format:?}");
    }
}

#[test]
fn what_is_no_image_is_refused() {
    let check = |bytes: &[u8], expected| {
        assert_eq!(Rgb::decode(bytes, &ImageLimits::default()), Err(expected));
    };
    check(b"", ImageError::Empty);
    check(b"Once upon a time", ImageError::UnknownFormat);
    check(b"GI", ImageError::UnknownFormat);
    let whole = encoded(&gradient(64, 64), ImageFormat::Png);
    for n in [8, 20, 40, whole.len() / 2] {
        let cut = Rgb::decode(&whole[..n], &ImageLimits::default());
        assert!(matches!(cut, Err(ImageError::Damaged { .. })), "{n}: {cut:?}");
    }
}

#[test]
fn a_size_beyond_the_limits_is_refused_from_the_header() {
    // The header of a PNG of 100,000 by 100,000 pixels, and nothing after it.
    let mut png = encoded(&gradient(3, 3), ImageFormat::Png);
    png[16..20].copy_from_slice(&100_000u32.to_be_bytes());
    png[20..24].copy_from_slice(&100_000u32.to_be_bytes());
    let crc = crc32(&png[12..29]);
    png[29..33].copy_from_slice(&crc.to_be_bytes());
    let refused = Rgb::decode(&png, &ImageLimits::default()).unwrap_err();
    assert!(
        matches!(refused, ImageError::TooLarge { width: 100_000, .. }),
        "{refused}"
    );
    let limits = ImageLimits {
        max_side: 8,
        max_pixels: 32,
    };
    let file = |width, height| encoded(&gradient(width, height), ImageFormat::Png);
    assert!(Rgb::decode(&file(8, 4), &limits).is_ok());
    assert!(Rgb::decode(&file(9, 1), &limits).is_err());
    assert!(Rgb::decode(&file(7, 5), &limits).is_err());
}
