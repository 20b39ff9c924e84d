//! [`png_header`]: an image that states its size and has no pixels.
//!
//! Tests of several crates show programs images that are too large to be stored. Invariant: its checksums are right, so that only the
//! size, or the missing pixels, are wrong.

/// Returns a PNG file of three channels whose pixels are missing.
pub fn png_header(width: u32, height: u32) -> Vec<u8> {
    /// 8 bits per channel, red, green and blue, and the only methods to compress, filter and order them.
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

/// Returns the checksum of PNG.
///
/// Source: the PNG specification, annex D.
pub fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (0u32.wrapping_sub(crc & 1)))
        })
    })
}
