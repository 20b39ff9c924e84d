//! [`Rgb::decode`]: a file's bytes to pixels, within limits.
//!
//! Only this file reads untrusted bytes. Invariants: a header's size is checked before any allocation for it;
//! decoding uses no more memory than an image of this size needs; unused compressed chunks are not
//! decompressed.

use std::{borrow::Cow, io::Cursor};

use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits, metadata::Orientation};

use crate::{
    ImageError, ImageLimits, Rgb,
    png_parts::{png_size, without_packed_notes},
};

/// Bytes per pixel during decoding, including the decoder's own buffers.
const DECODING_BYTES: u64 = 16;

/// Bytes that a decoder needs for an image of any size.
const DECODER_BYTES: u64 = 1 << 20;

const FORMATS: [ImageFormat; 5] = [
    ImageFormat::Png,
    ImageFormat::Jpeg,
    ImageFormat::WebP,
    ImageFormat::Bmp,
    ImageFormat::Gif,
];

/// Returns the media type of a file that can be decoded, from its first bytes; `None` for others.
pub fn media_type(file: &[u8]) -> Option<&'static str> {
    let format = image::guess_format(file).ok();
    format
        .filter(|format| FORMATS.contains(format))
        .map(|format| format.to_mime_type())
}

/// The header of a file.
struct Header<D> {
    decoder: D,
    orientation: Orientation,
    width: usize,
    height: usize,
}

/// Limits the allocations for decoding an image.
fn allowance(n_pixels: u64) -> Limits {
    let mut allowed = Limits::default();
    allowed.max_alloc = Some(
        n_pixels
            .saturating_mul(DECODING_BYTES)
            .saturating_add(DECODER_BYTES),
    );
    allowed
}

fn open<'f>(file: &'f [u8], limits: &ImageLimits) -> Result<Header<impl ImageDecoder + use<'f>>, ImageError> {
    if file.is_empty() {
        return Err(ImageError::Empty);
    }
    let format = image::guess_format(file)
        .ok()
        .filter(|format| FORMATS.contains(format));
    let format = format.ok_or(ImageError::UnknownFormat)?;
    // The PNG decoder reads everything before the pixels when it is created.
    let is_png = format == ImageFormat::Png;
    let file = if is_png {
        without_packed_notes(file)
    } else {
        Cow::Borrowed(file)
    };
    let n_pixels = png_size(&file)
        .filter(|_| is_png)
        .map_or(limits.max_pixels as u64, |[width, height]| {
            (u64::from(width) * u64::from(height)).min(limits.max_pixels as u64)
        });
    let mut reader = ImageReader::with_format(Cursor::new(file), format);
    reader.limits(allowance(n_pixels));
    let mut decoder = reader.into_decoder().map_err(damaged)?;
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    let is_small = width.max(height) <= limits.max_side && width * height <= limits.max_pixels;
    if !is_small {
        return Err(ImageError::TooLarge {
            width,
            height,
            max_side: limits.max_side,
            max_pixels: limits.max_pixels,
        });
    }
    if width == 0 || height == 0 {
        return Err(ImageError::Empty);
    }
    decoder
        .set_limits(allowance((width * height) as u64))
        .map_err(damaged)?;
    let orientation = decoder.orientation().map_err(damaged)?;
    Ok(Header {
        decoder,
        orientation,
        width,
        height,
    })
}

/// Returns the width and height of a file's image after applying its orientation; only its header is read.
///
/// # Errors
/// [`ImageError`].
pub fn size_of(file: &[u8], limits: &ImageLimits) -> Result<[usize; 2], ImageError> {
    let header = open(file, limits)?;
    let is_turned = matches!(
        header.orientation,
        Orientation::Rotate90
            | Orientation::Rotate270
            | Orientation::Rotate90FlipH
            | Orientation::Rotate270FlipH
    );
    let (width, height) = (header.width, header.height);
    Ok(if is_turned {
        [height, width]
    } else {
        [width, height]
    })
}

impl Rgb {
    /// Decodes the first frame of a file, applying its orientation and dropping its alpha channel.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn decode(file: &[u8], limits: &ImageLimits) -> Result<Self, ImageError> {
        let header = open(file, limits)?;
        let mut decoded = DynamicImage::from_decoder(header.decoder).map_err(damaged)?;
        decoded.apply_orientation(header.orientation);
        let rgb = decoded.into_rgb8();
        let (width, height) = rgb.dimensions();
        Ok(Self::new(width as usize, height as usize, rgb.into_raw()))
    }
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` hands it over")]
fn damaged(error: image::ImageError) -> ImageError {
    ImageError::Damaged {
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use image::{ImageBuffer, Rgb as Pixel, Rgba};

    use super::*;

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
        for format in FORMATS {
            let size = size_of(&encoded(&image, format), &ImageLimits::default());
            assert_eq!(size, Ok([7, 5]), "{format:?}");
        }
        // An EXIF block with orientation 6: rotated by a quarter turn.
        let mut jpeg = encoded(&image, ImageFormat::Jpeg);
        let exif =
            b"\xff\xe1\x00\x22Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
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

    fn crc32(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(u32::MAX, |crc, &byte| {
            (0..8).fold(crc ^ u32::from(byte), |crc, _| {
                (crc >> 1) ^ (0xedb8_8320 & (0u32.wrapping_sub(crc & 1)))
            })
        })
    }
}
