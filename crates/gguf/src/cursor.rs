//! [`Cursor`]: reads little-endian fields from an untrusted file.
//!
//! All bounds checks of the header parser are here. Invariant: nothing is read past the end, and nothing is
//! allocated for a count before the file is known to have the bytes for it.

use std::borrow::Cow;

use crate::{GgufError, ReadAt};

/// Longest header that is parsed. Real ones reach some 20 MB; the limit bounds the allocation for a hostile
/// file.
pub(crate) const MAX_HEADER_BYTES: usize = 1 << 28;

/// Number of bytes read at a time, unless a field is longer.
const READ_BYTES: usize = 1 << 18;

/// A position in the header of a file.
pub(crate) struct Cursor<'a> {
    source: &'a dyn ReadAt,
    /// Offset of the next field in the file.
    offset: usize,
    /// Offset at which the header must have ended: the length of the file, or the longest header.
    end: usize,
    /// Whether the file is longer than `end`.
    is_cut: bool,
    /// Bytes read from the file; the first `consumed` are used.
    buffer: Vec<u8>,
    consumed: usize,
}

impl<'a> Cursor<'a> {
    /// Starts at the first byte of a file of `n_bytes` bytes.
    pub(crate) fn new(source: &'a dyn ReadAt, n_bytes: u64) -> Self {
        Self {
            source,
            offset: 0,
            end: n_bytes.min(MAX_HEADER_BYTES as u64) as usize,
            is_cut: n_bytes > MAX_HEADER_BYTES as u64,
            buffer: Vec::new(),
            consumed: 0,
        }
    }

    /// Returns the offset of the next field.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of unread bytes.
    pub(crate) fn left(&self) -> usize {
        self.end - self.offset
    }

    /// Returns the next bytes without consuming them: `n_bytes`, or fewer at the end of the file.
    pub(crate) fn peek(&mut self, n_bytes: usize) -> Result<&[u8], GgufError> {
        let n_bytes = n_bytes.min(self.left());
        self.fill(n_bytes)?;
        Ok(&self.buffer[self.consumed..][..n_bytes])
    }

    /// Reads `n_bytes` bytes.
    pub(crate) fn bytes(&mut self, n_bytes: u64, what: &'static str) -> Result<&[u8], GgufError> {
        let Some(n_bytes) = usize::try_from(n_bytes)
            .ok()
            .filter(|&n_bytes| n_bytes <= self.left())
        else {
            return Err(self.end_error(n_bytes, what));
        };
        self.fill(n_bytes)?;
        let start = self.consumed;
        self.offset += n_bytes;
        self.consumed += n_bytes;
        Ok(&self.buffer[start..self.consumed])
    }

    /// Fills the buffer with the next `n_bytes` bytes, which the file is known to have.
    fn fill(&mut self, n_bytes: usize) -> Result<(), GgufError> {
        let n_held = self.buffer.len() - self.consumed;
        if n_bytes <= n_held {
            return Ok(());
        }
        self.buffer.drain(..self.consumed);
        self.consumed = 0;
        self.buffer.resize(n_bytes.max(READ_BYTES).min(self.left()), 0);
        let from = (self.offset + n_held) as u64;
        self.source
            .read_exact_at(from, &mut self.buffer[n_held..])
            .map_err(|reason| GgufError::ReadHeader { reason })
    }

    fn end_error(&self, needed: u64, what: &'static str) -> GgufError {
        if self.is_cut {
            return GgufError::HeaderTooLarge {
                limit: MAX_HEADER_BYTES,
            };
        }
        GgufError::Truncated {
            what,
            offset: self.offset,
            needed,
            left: self.left(),
        }
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let bytes = self.bytes(N as u64, what)?;
        Ok(bytes.try_into().expect("as many bytes as were asked for"))
    }

    /// Reads a byte.
    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, GgufError> {
        Ok(u8::from_le_bytes(self.array(what)?))
    }

    /// Reads a 16-bit number.
    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, GgufError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    /// Reads a 32-bit number.
    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    /// Reads a 64-bit number.
    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Checks a count of items that take at least `min_bytes` each against the bytes left.
    pub(crate) fn check_count(
        &self,
        count: u64,
        min_bytes: usize,
        what: &'static str,
    ) -> Result<(), GgufError> {
        let needed = count.checked_mul(min_bytes as u64);
        if needed.is_some_and(|needed| needed <= self.left() as u64) {
            return Ok(());
        }
        Err(GgufError::CountTooLarge {
            what,
            count,
            left: self.left(),
        })
    }

    /// Reads a length and that many bytes of text for display; invalid UTF-8 becomes U+FFFD.
    pub(crate) fn lossy_str(&mut self, what: &'static str) -> Result<Cow<'_, str>, GgufError> {
        let n_bytes = self.u64(what)?;
        let bytes = self.bytes(n_bytes, what)?;
        Ok(String::from_utf8_lossy(bytes))
    }

    /// Reads a length and that many bytes of text.
    pub(crate) fn str(&mut self, what: &'static str) -> Result<&str, GgufError> {
        let n_bytes = self.u64(what)?;
        let offset = self.offset;
        let bytes = self.bytes(n_bytes, what)?;
        std::str::from_utf8(bytes).map_err(|_| GgufError::InvalidUtf8 { what, offset })
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::atomic::AtomicU64, sync::atomic::Ordering};

    use super::*;

    /// A file of zeros that counts the bytes read from it.
    struct Zeros {
        n_read: AtomicU64,
    }

    impl ReadAt for Zeros {
        fn read_exact_at(&self, _: u64, out: &mut [u8]) -> io::Result<()> {
            out.fill(0);
            self.n_read.fetch_add(out.len() as u64, Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn no_more_is_read_than_fields_need() {
        let file = Zeros {
            n_read: AtomicU64::new(0),
        };
        let mut cursor = Cursor::new(&file, 4 << 30);
        let check = |expected: usize| assert_eq!(file.n_read.load(Ordering::Relaxed), expected as u64);
        assert_eq!(cursor.peek(512).unwrap().len(), 512);
        check(READ_BYTES);
        for _ in 0..READ_BYTES / 8 {
            assert_eq!(cursor.u64("a field").unwrap(), 0);
        }
        check(READ_BYTES);
        cursor.u8("a field").unwrap();
        check(2 * READ_BYTES);
        let long = 3 * READ_BYTES;
        assert_eq!(cursor.bytes(long as u64, "a field").unwrap().len(), long);
        check(READ_BYTES + 1 + long);
        assert_eq!(cursor.offset(), READ_BYTES + 1 + long);
        assert!(cursor.bytes(MAX_HEADER_BYTES as u64, "a field").is_err());
        check(READ_BYTES + 1 + long);
    }
}
