//! [`png_header`]: an image that says how large it is and has no pixels.
//!
//! Separate because tests of several crates show programs images that are too large to be stored. Invariant: its checksums are right, so
//! that nothing but the size, or the pixels that are missing, is wrong with it.

/// A PNG file of three channels whose pixels are missing.
pub fn png_header(width: u32, height: u32) -> Vec<u8> {
    /// 8 bits to a channel, red, green and blue, and the only ways to compress, filter and order them.
    const KIND: [u8; 5] = [8, 2, 0, 0, 0];
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let size = [width.to_be_bytes(), height.to_be_bytes()].concat();
    for (name, bytes) in [
        (b"IHDR", &[&size[..], &KIND].concat()[..]),
        (b"IDAT", &[]),
        (b"IEND", &[]),
    ] {
        let chunk = [&name[..], bytes].concat();
        file.extend((bytes.len() as u32).to_be_bytes());
        file.extend(&chunk);
        file.extend(crc32(&chunk).to_be_bytes());
    }
    file
}

/// The checksum of PNG.
///
/// Source: the PNG specification, annex D.
pub fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (0u32.wrapping_sub(crc & 1)))
        })
    })
}
