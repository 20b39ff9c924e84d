//! [`ImageLimits`] and [`ImageError`]: limits of an image, and reasons to refuse a file.
//!
//! Separate from the decoding because a build can leave that out.

/// Limits the size of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageLimits {
    /// Most pixels of a side.
    pub max_side: usize,
    /// Most pixels in all.
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

/// Says why a file gives no image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// There are no bytes.
    #[error("the image is empty")]
    Empty,
    /// The bytes are not an image.
    #[error("this is no image: PNG, JPEG, WebP, BMP and GIF are read")]
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
        /// Pixels of a row.
        width: usize,
        /// Rows of pixels.
        height: usize,
        /// Most pixels of a side.
        max_side: usize,
        /// Most pixels in all.
        max_pixels: usize,
    },
    /// One side is too long for the other.
    #[error("the image is {width} x {height}; one side may be 200 times as long as the other, and no more")]
    TooNarrow {
        /// Pixels of a row.
        width: usize,
        /// Rows of pixels.
        height: usize,
    },
    /// It cannot be decoded.
    #[error("the image is damaged: {reason}")]
    Damaged {
        /// Error of the decoder.
        reason: String,
    },
}
