//! [`ImageLimits`] and [`ImageError`]: limits of an image, and reasons to refuse a file.
//!
//! They exist even in a build without decoders.

/// Limits for the size of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// Maximum pixels per side.
    pub max_side: usize,
    /// Maximum total pixels.
    pub max_pixels: usize,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self {
            max_side: 16_384,
            max_pixels: 1 << 25,
        }
    }
}

/// The reason why a file cannot be decoded to an image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// There are no bytes.
    #[error("the image is empty")]
    Empty,
    /// The bytes are not an image.
    #[error("this is not a supported image; supported are PNG, JPEG, WebP, BMP and GIF")]
    UnknownFormat,
    /// This build decodes no images.
    #[error(
        "this build reads no images; the feature `images` of the crate tokenmill, or `decoders` of tokenmill-image, does"
    )]
    LeftOut,
    /// It has too many pixels.
    #[error(
        "the image is {width} x {height}; at most {max_side} pixels to a side and {max_pixels} in all are read"
    )]
    TooLarge {
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
        /// Maximum pixels per side.
        max_side: usize,
        /// Maximum total pixels.
        max_pixels: usize,
    },
    /// The aspect ratio is too large.
    #[error("the image is {width} x {height}; one side may be at most 200 times as long as the other")]
    TooNarrow {
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
    },
    /// It cannot be decoded.
    #[error("the image is damaged: {reason}")]
    Damaged {
        /// The decoder's error.
        reason: String,
    },
}
