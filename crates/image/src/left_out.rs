//! Stands in for the decoding in a build without decoders: every file is refused.

use crate::{ImageError, ImageLimits, Rgb};

/// The media type of a file that can be decoded: none.
pub fn media_type(_file: &[u8]) -> Option<&'static str> {
    None
}

/// Refuses a file.
///
/// # Errors
/// [`ImageError::LeftOut`], always.
pub fn size_of(_file: &[u8], _limits: &ImageLimits) -> Result<[usize; 2], ImageError> {
    Err(ImageError::LeftOut)
}

impl Rgb {
    /// Refuses a file.
    ///
    /// # Errors
    /// [`ImageError::LeftOut`], always.
    pub fn decode(_file: &[u8], _limits: &ImageLimits) -> Result<Self, ImageError> {
        Err(ImageError::LeftOut)
    }
}
