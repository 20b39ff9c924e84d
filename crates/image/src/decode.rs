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
