//! Images against Pillow's, decoded and resized ones, and damaged ones. One binary, so that the tests link once.
//!
//! The library is not compiled as a test (`test = false`), which would be a second time. Public functions are tested from outside;
//! the parts of PNG files, of which a caller sees only pixels, are compiled here from their source.

#[path = "../../src/png_parts.rs"]
mod png_parts;

mod damage;
mod decode;
mod packed_notes;
mod pillow;
mod resize;
