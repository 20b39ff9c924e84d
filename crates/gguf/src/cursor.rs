//! [`Cursor`]: reads little-endian fields from untrusted bytes.
//!
//! Apart from the header parser so that all bounds checks stand in one place. Invariant: nothing is read past the end,
//! and nothing is allocated for a count before the bytes for it are known to be there.

use crate::GgufError;

/// Longest header that is parsed. Real ones reach some 20 MB; the limit bounds what a hostile file can make us allocate.
pub(crate) const MAX_HEADER_BYTES: usize = 1 << 28;

/// A position in the header of a file.
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    offset: usize,
    /// Whether the file continues after `bytes`.
    is_cut: bool,
}

impl<'a> Cursor<'a> {
    /// Starts at the first byte of a file.
    pub(crate) fn new(file_bytes: &'a [u8]) -> Self {
        Self {
            bytes: &file_bytes[..file_bytes.len().min(MAX_HEADER_BYTES)],
            offset: 0,
            is_cut: file_bytes.len() > MAX_HEADER_BYTES,
        }
    }

    /// Bytes read so far.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// Bytes not read yet.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.offset
    }

    /// Reads `n_bytes` bytes.
    pub(crate) fn bytes(&mut self, n_bytes: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        let end = usize::try_from(n_bytes)
            .ok()
            .and_then(|n_bytes| self.offset.checked_add(n_bytes))
            .filter(|&end| end <= self.bytes.len());
        let Some(end) = end else {
            return Err(self.end_error(n_bytes, what));
        };
        let bytes = &self.bytes[self.offset..end];
        self.offset = end;
        Ok(bytes)
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

    /// Reads a length and that many bytes of text.
    pub(crate) fn str(&mut self, what: &'static str) -> Result<&'a str, GgufError> {
        let n_bytes = self.u64(what)?;
        let offset = self.offset;
        let bytes = self.bytes(n_bytes, what)?;
        std::str::from_utf8(bytes).map_err(|_| GgufError::InvalidUtf8 { what, offset })
    }
}
