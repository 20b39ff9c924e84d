//! [`SessionHeader`]: what a session file says before the memory: whose it is, its tokens and the caller's notes.
//!
//! Separate because this is where bytes are parsed that no one vouches for. Numbers are little-endian:
//!
//! | part | bytes |
//! |---|---|
//! | `tmllsess` | 8 |
//! | version of the format | 4 |
//! | length of the part up to the sum, `n` | 4 |
//! | identity of the model | 16 |
//! | arrangement of the memory, types and sizes: the length of a text in 4 bytes, and the text | |
//! | tokens whose memory follows | 4 |
//! | snapshots: their number, and of each the tokens that it has seen | 4 each |
//! | tokens: their number, and their ids | 4 each |
//! | notes: their length in 4 bytes, and the bytes | |
//! | XXH64 of all before | 8 |
//!
//! Behind it lies the memory, in chunks of some MiB, each followed by its XXH64 with its number as the seed. Invariant: nothing is
//! allocated that is longer than the file.

use std::io::{self, Read};

use tokenmill_backend::PAGE_TOKENS;

use crate::{checksum::checksum, session_error::SessionError};

const MAGIC: [u8; 8] = *b"tmllsess";
const VERSION: u32 = 1;

/// Bytes before the part whose length they say.
const FIXED_BYTES: usize = 16;
/// Bytes of a sum.
pub(super) const SUM_BYTES: usize = 8;
/// Longer headers are taken for nonsense: tokens take 4 bytes each, and notes are some text.
const MAX_HEADER_BYTES: usize = 256 << 20;
/// Snapshots that a file has at most.
const MAX_SNAPSHOTS: usize = 64;

/// The header of a session file. [`SessionHeader::read`] checks only that it is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionHeader {
    /// The identity of the model that computed the memory.
    pub(super) identity: u128,
    /// The format of the memory.
    pub(super) format: String,
    /// The tokens of the conversation.
    pub tokens: Vec<u32>,
    /// Notes that the caller keeps with it.
    pub notes: Vec<u8>,
    /// The number of tokens, from the first one on, whose memory the file holds.
    pub n_stored: usize,
    /// The numbers of tokens that its recurrent states have seen, ascending.
    pub snapshots: Vec<u32>,
}

impl SessionHeader {
    /// The header as it stands in a file.
    ///
    /// # Errors
    /// [`SessionError::TooLarge`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, SessionError> {
        let mut bytes = Vec::with_capacity(self.tokens.len() * 4 + self.notes.len() + 256);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.identity.to_le_bytes());
        put_number(&mut bytes, self.format.len());
        bytes.extend_from_slice(self.format.as_bytes());
        put_number(&mut bytes, self.n_stored);
        for list in [&self.snapshots, &self.tokens] {
            put_number(&mut bytes, list.len());
            bytes.extend(list.iter().flat_map(|n| n.to_le_bytes()));
        }
        put_number(&mut bytes, self.notes.len());
        bytes.extend_from_slice(&self.notes);
        let n_bytes = bytes.len() - FIXED_BYTES;
        if n_bytes > MAX_HEADER_BYTES {
            return Err(SessionError::TooLarge { n_bytes });
        }
        bytes[12..FIXED_BYTES].copy_from_slice(&(n_bytes as u32).to_le_bytes());
        let sum = checksum(&bytes, 0);
        bytes.extend_from_slice(&sum.to_le_bytes());
        Ok(bytes)
    }

    /// Reads the header of a file of `file_bytes` bytes from its beginning.
    ///
    /// # Errors
    /// [`SessionError`]: the file is no session, of another version, cut or damaged; or it cannot be read.
    pub fn read(file: &mut impl Read, file_bytes: u64) -> Result<Self, SessionError> {
        let mut fixed = [0; FIXED_BYTES];
        file.read_exact(&mut fixed).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => SessionError::NotASession,
            _ => SessionError::Io(error),
        })?;
        let (magic, numbers) = fixed.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(SessionError::NotASession);
        }
        let [version, n_bytes] =
            [0, 4].map(|at| u32::from_le_bytes(numbers[at..at + 4].try_into().expect("4 bytes")));
        if version != VERSION {
            return Err(SessionError::Version {
                found: version,
                known: VERSION,
            });
        }
        let n_bytes = n_bytes as usize;
        let whole = (FIXED_BYTES + n_bytes + SUM_BYTES) as u64;
        if n_bytes > MAX_HEADER_BYTES {
            return Err(SessionError::Damaged);
        }
        if whole > file_bytes {
            return Err(SessionError::Cut {
                found: file_bytes,
                expected: whole,
            });
        }
        let mut bytes = fixed.to_vec();
        bytes.resize(FIXED_BYTES + n_bytes + SUM_BYTES, 0);
        file.read_exact(&mut bytes[FIXED_BYTES..])?;
        let (header, sum) = bytes.split_at(FIXED_BYTES + n_bytes);
        if sum != checksum(header, 0).to_le_bytes() {
            return Err(SessionError::Damaged);
        }
        Self::parse(&header[FIXED_BYTES..])
    }

    /// Parses what lies between the length and the sum.
    ///
    /// # Errors
    /// [`SessionError::Damaged`]: its parts do not fit together. The sum is right where someone wrote it to be read here.
    pub fn parse(header: &[u8]) -> Result<Self, SessionError> {
        Self::parse_parts(header).ok_or(SessionError::Damaged)
    }

    fn parse_parts(header: &[u8]) -> Option<Self> {
        let mut parts = Parts(header);
        let identity = u128::from_le_bytes(parts.take()?);
        let format = std::str::from_utf8(parts.bytes()?).ok()?.to_owned();
        let n_stored = parts.number()?;
        let snapshots = parts.list()?;
        let tokens = parts.list()?;
        let notes = parts.bytes()?.to_vec();
        let is_consistent = parts.0.is_empty()
            && n_stored <= tokens.len()
            && n_stored.is_multiple_of(PAGE_TOKENS)
            && snapshots.len() <= MAX_SNAPSHOTS;
        is_consistent.then_some(Self {
            identity,
            format,
            tokens,
            notes,
            n_stored,
            snapshots,
        })
    }
}

/// The unread rest of a header.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*chunk)
    }

    fn number(&mut self) -> Option<usize> {
        Some(u32::from_le_bytes(self.take()?) as usize)
    }

    /// As many bytes as the number before them says.
    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.number()?;
        self.split(len)
    }

    /// As many numbers as the number before them says.
    fn list(&mut self) -> Option<Vec<u32>> {
        let len = self.number()?.checked_mul(4)?;
        let (words, _) = self.split(len)?.as_chunks::<4>();
        Some(words.iter().map(|word| u32::from_le_bytes(*word)).collect())
    }

    fn split(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }
}

/// Adds a length as [`Parts::number`] reads it. One that does not fit makes a header that is too long anyway.
fn put_number(bytes: &mut Vec<u8>, n: usize) {
    bytes.extend_from_slice(&u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use tokenmill_testkit::Random;

    use super::*;

    fn header() -> SessionHeader {
        SessionHeader {
            identity: 7 << 100 | 5,
            format: "cpu-1 keys f16 values f16 pages 64 0 states 0".to_owned(),
            tokens: (0..40).collect(),
            notes: b"{}".to_vec(),
            n_stored: 32,
            snapshots: vec![16, 32],
        }
    }

    fn read(bytes: &[u8]) -> Result<SessionHeader, SessionError> {
        SessionHeader::read(&mut &bytes[..], bytes.len() as u64)
    }

    #[test]
    fn a_header_reads_back_as_it_was_written() {
        let bytes = header().to_bytes().unwrap();
        assert_eq!(read(&bytes).unwrap(), header());
        for len in 0..bytes.len() {
            let error = read(&bytes[..len]).unwrap_err();
            let is_right = if len < FIXED_BYTES {
                matches!(error, SessionError::NotASession)
            } else {
                matches!(error, SessionError::Cut { .. })
            };
            assert!(is_right, "{len}: {error}");
        }
        let mut newer = bytes.clone();
        newer[8] = 2;
        assert!(matches!(
            read(&newer),
            Err(SessionError::Version { found: 2, known: 1 })
        ));
    }

    #[test]
    fn a_changed_bit_is_damage() {
        let bytes = header().to_bytes().unwrap();
        for at in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            assert!(read(&damaged).is_err(), "bit {at}");
        }
    }

    /// The sum is right, as someone would write it who wants to be read.
    #[test]
    fn any_header_under_a_right_sum_is_read_or_refused() {
        let mut random = Random::new(3);
        let mut n_read = 0;
        for _ in 0..20_000 {
            let mut bytes = header().to_bytes().unwrap();
            bytes.truncate(bytes.len() - SUM_BYTES);
            for _ in 0..=random.below(3) {
                let at = FIXED_BYTES + random.below(bytes.len() - FIXED_BYTES);
                bytes[at] = [0, 1, 0x7f, 0xff, random.below(256) as u8][random.below(5)];
            }
            bytes.truncate(bytes.len() - random.below(2) * random.below(bytes.len() - FIXED_BYTES));
            let n_bytes = (bytes.len() - FIXED_BYTES) as u32;
            bytes[12..FIXED_BYTES].copy_from_slice(&n_bytes.to_le_bytes());
            let sum = checksum(&bytes, 0);
            bytes.extend_from_slice(&sum.to_le_bytes());
            match read(&bytes) {
                Ok(read) => {
                    n_read += 1;
                    assert_eq!(read.to_bytes().unwrap(), bytes);
                }
                Err(error) => assert!(matches!(error, SessionError::Damaged), "{error}"),
            }
        }
        assert!(n_read > 1000, "{n_read}");
    }
}
