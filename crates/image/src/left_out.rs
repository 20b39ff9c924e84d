//! Replaces the decoding in a build without decoders: every file is refused.

use crate::{ImageError, ImageLimits, Rgb};

/// Returns no media type, since no file can be decoded.
pub fn media_type(_file: &[u8]) -> Option<&'static str> {
    None
}

/// Refuses a file.
///
/// # Errors
/// Always [`ImageError::LeftOut`].
pub fn size_of(_file: &[u8], _limits: &ImageLimits) -> Result<[usize; 2], ImageError> {
    Err(ImageError::LeftOut)
}

impl Rgb {
    /// Refuses a file.
    ///
    /// # Errors
    /// Always [`ImageError::LeftOut`].
    pub fn decode(_file: &[u8], _limits: &ImageLimits) -> Result<Self, ImageError> {
        Err(ImageError::LeftOut)
    }
}
