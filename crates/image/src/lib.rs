//! Images on their way into a model: a file's bytes to an [`Rgb`] image, resized and normalized.
//!
//! **The key decision:** resizing equals Pillow's, to the bit, because the models were trained on its output;
//! a library with other coefficients would differ. Files are untrusted: [`ImageLimits`] are checked against
//! the header before anything is decoded, and bound the decoder's memory. Without the feature `decoders`, on
//! by default, every file is refused.
#![forbid(unsafe_code)]

#[cfg(feature = "decoders")]
mod decode;
#[cfg(not(feature = "decoders"))]
mod left_out;
mod limits;
#[cfg(feature = "decoders")]
mod png_parts;
mod resample;

#[cfg(feature = "decoders")]
pub use decode::{media_type, size_of};
#[cfg(not(feature = "decoders"))]
pub use left_out::{media_type, size_of};
pub use limits::{ImageError, ImageLimits};
pub use resample::Filter;

/// An image with three channels of 8 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rgb {
    width: usize,
    height: usize,
    /// `[height, width, 3]`.
    bytes: Vec<u8>,
}

impl Rgb {
    /// Creates an image from its bytes, `[height, width, 3]`.
    ///
    /// # Panics
    /// If the number of bytes does not match, or a side is 0.
    pub fn new(width: usize, height: usize, bytes: Vec<u8>) -> Self {
        assert!(width > 0 && height > 0, "an image has a pixel");
        assert_eq!(
            bytes.len(),
            width * height * 3,
            "bytes of {width} x {height} pixels"
        );
        Self { width, height, bytes }
    }

    /// Returns the width in pixels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the height in pixels.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Returns its bytes, `[height, width, 3]`.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns its values, scaled to 0..1, minus the channel's mean, divided by its deviation:
    /// `[height, width, 3]`.
    pub fn normalized(&self, mean: [f32; 3], std: [f32; 3]) -> Vec<f32> {
        let channels = (0..3).cycle();
        let normalize =
            |(&byte, channel): (&u8, usize)| (f32::from(byte) * (1.0 / 255.0) - mean[channel]) / std[channel];
        self.bytes.iter().zip(channels).map(normalize).collect()
    }
}

/// The examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
