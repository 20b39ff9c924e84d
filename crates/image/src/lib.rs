//! Images on their way into a model: a file's bytes to an [`Rgb`] image, resized and normalized.
//!
//! **The key decision:** resizing is Pillow's, to the bit, because the models were trained on what it gives; so it is written here
//! and not taken from a library with other coefficients. Files are untrusted: [`ImageLimits`] are checked against the header
//! before anything is decoded, and bound what decoding takes. Without the feature `decoders`, on by default, every file is refused.
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

/// An image of three channels of 8 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rgb {
    width: usize,
    height: usize,
    /// `[height, width, 3]`.
    bytes: Vec<u8>,
}

impl Rgb {
    /// Takes the bytes of an image, `[height, width, 3]`.
    ///
    /// # Panics
    /// Where their number is another, or a side is 0.
    pub fn new(width: usize, height: usize, bytes: Vec<u8>) -> Self {
        assert!(width > 0 && height > 0, "an image has a pixel");
        assert_eq!(
            bytes.len(),
            width * height * 3,
            "bytes of {width} x {height} pixels"
        );
        Self { width, height, bytes }
    }

    /// Pixels of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows of pixels.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Its bytes, `[height, width, 3]`.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its values between 0 and 1, less the mean of their channel, divided by its deviation: `[height, width, 3]`.
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
