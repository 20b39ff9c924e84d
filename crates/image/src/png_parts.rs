//! Removes the compressed chunks of a PNG file that do not affect its pixels.
//!
//! The decoder decompresses a colour profile even if nothing uses it, and half a megabyte of it can become
//! half a gigabyte. Invariant: the result has the same pixels as the file.
//!
//! Source: PNG specification, third edition, sections 5.2 (signature), 5.3 (chunks) and 11.3 (ancillary chunks).

use std::borrow::Cow;

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// Unused compressed chunks: a colour profile or texts.
const PACKED: [&[u8; 4]; 3] = [b"iCCP", b"zTXt", b"iTXt"];

/// Bytes of a chunk's length, name and checksum.
const FRAME_BYTES: usize = 12;

/// Returns width and height from the header, which is the first chunk.
pub(crate) fn png_size(file: &[u8]) -> Option<[u32; 2]> {
    let header = file.strip_prefix(SIGNATURE)?.get(..16)?;
    let number = |at: usize| Some(u32::from_be_bytes(header.get(at..at + 4)?.try_into().ok()?));
    (&header[4..8] == b"IHDR").then_some([number(8)?, number(12)?])
}

/// Removes the compressed texts and the colour profile. The bytes of other files are unchanged, and so is
/// everything from the first damage on.
pub(crate) fn without_packed_notes(file: &[u8]) -> Cow<'_, [u8]> {
    let mut at = SIGNATURE.len();
    if !file.starts_with(SIGNATURE) {
        return Cow::Borrowed(file);
    }
    let mut out: Option<Vec<u8>> = None;
    let mut kept_to = 0;
    while let Some(frame) = file.get(at..at + FRAME_BYTES) {
        let length = u32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize;
        let Some(end) = length
            .checked_add(at + FRAME_BYTES)
            .filter(|&end| end <= file.len())
        else {
            break;
        };
        if PACKED.iter().any(|name| *name == &frame[4..8]) {
            let out = out.get_or_insert_with(|| Vec::with_capacity(file.len()));
            out.extend_from_slice(&file[kept_to..at]);
            kept_to = end;
        }
        at = end;
    }
    match out {
        None => Cow::Borrowed(file),
        Some(mut out) => {
            out.extend_from_slice(&file[kept_to..]);
            Cow::Owned(out)
        }
    }
}
