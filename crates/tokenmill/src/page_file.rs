//! [`PageFileHeader`] and the entries after it: the one format of sessions and of the files of a prefix folder.
//!
//! An entry is a page of keys and values, or the recurrent states after one. A session has the entries of a
//! conversation, each with the index of its page as the key. A file of a folder has one entry, with the
//! engine's key. The bytes are untrusted. Numbers are little-endian:
//!
//! | part | bytes |
//! |---|---|
//! | `tmllpage` | 8 |
//! | version of the format | 4 |
//! | length of the part up to the sum, `n` | 4 |
//! | identity of the model | 16 |
//! | arrangement of the memory, types and sizes: the length of a text in 4 bytes, and the text | |
//! | tokens, of the conversation or of the page: their number, and their ids | 4 each |
//! | entries: their number, and of each its key and its kind | 4, then 20 each |
//! | notes: their length in 4 bytes, and the bytes | |
//! | XXH64 of all before | 8 |
//!
//! The memory follows: the bytes of each entry, and their XXH64 with the header's sum plus the entry's index as the
//! seed. Kinds are numbered as in [`KeptKind::ALL`]. Invariants: entries are read as they were written, under the
//! same header; no allocation is longer than the file.

use std::{
    cmp::Ordering,
    io::{self, Read, Write},
};

use tokenmill_backend::MemoryFormat;
use tokenmill_sched::{KeptKind, KeptName, PageKey};

use crate::{
    checksum::checksum,
    format_text::{format_text, types_of},
    session_error::SessionError,
};

const MAGIC: [u8; 8] = *b"tmllpage";
/// The beginning of the sessions of older versions.
const FORMER_MAGIC: [u8; 8] = *b"tmllsess";
const VERSION: u32 = 2;

/// Bytes before the part whose length they say.
const FIXED_BYTES: usize = 16;
/// Bytes of a sum.
const SUM_BYTES: usize = 8;
/// Longer headers are taken for nonsense: tokens take 4 bytes each, entries 20, and notes are some text.
const MAX_HEADER_BYTES: usize = 256 << 20;

/// The header of a session or of a file of a prefix folder. [`PageFileHeader::read`] checks only that it is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageFileHeader {
    /// The identity of the model that computed the memory.
    pub(crate) identity: u128,
    /// The format of the memory.
    pub(crate) format: String,
    /// The tokens of the conversation or of the page.
    pub tokens: Vec<u32>,
    /// The entries, in the order of their memory.
    pub entries: Vec<KeptName>,
    /// Notes that the caller keeps with a conversation.
    pub notes: Vec<u8>,
}

impl PageFileHeader {
    /// The header as it stands in a file.
    ///
    /// # Errors
    /// [`SessionError::TooLarge`].
    pub fn to_bytes(&self) -> Result<Vec<u8>, SessionError> {
        let n_bytes = self.parts_bytes();
        if n_bytes > MAX_HEADER_BYTES {
            return Err(SessionError::TooLarge { n_bytes });
        }
        let mut bytes = Vec::with_capacity(FIXED_BYTES + n_bytes + SUM_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        put_number(&mut bytes, n_bytes);
        bytes.extend_from_slice(&self.identity.to_le_bytes());
        put_number(&mut bytes, self.format.len());
        bytes.extend_from_slice(self.format.as_bytes());
        put_number(&mut bytes, self.tokens.len());
        bytes.extend(self.tokens.iter().flat_map(|token| token.to_le_bytes()));
        put_number(&mut bytes, self.entries.len());
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.key.number().to_le_bytes());
            put_number(&mut bytes, entry.kind.index());
        }
        put_number(&mut bytes, self.notes.len());
        bytes.extend_from_slice(&self.notes);
        debug_assert_eq!(bytes.len(), FIXED_BYTES + n_bytes);
        let sum = checksum(&bytes, 0);
        bytes.extend_from_slice(&sum.to_le_bytes());
        Ok(bytes)
    }

    /// Reads the header of a file of `file_bytes` bytes from its beginning.
    ///
    /// # Errors
    /// [`SessionError`]: the file is of another kind or version, cut or damaged; or it cannot be read.
    pub fn read(file: &mut impl Read, file_bytes: u64) -> Result<Self, SessionError> {
        let mut fixed = [0; FIXED_BYTES];
        file.read_exact(&mut fixed).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => SessionError::NotASession,
            _ => SessionError::Io(error),
        })?;
        let (magic, numbers) = fixed.split_at(MAGIC.len());
        if magic == FORMER_MAGIC {
            return Err(SessionError::Former);
        }
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

    /// Parses the bytes between the length and the checksum.
    ///
    /// # Errors
    /// [`SessionError::Damaged`]: its parts do not fit together. The sum is right where someone wrote it to be read here.
    pub fn parse(header: &[u8]) -> Result<Self, SessionError> {
        Self::parse_parts(header).ok_or(SessionError::Damaged)
    }

    fn parse_parts(header: &[u8]) -> Option<Self> {
        let mut parts = Parts(header);
        let identity = u128::from_le_bytes(parts.take()?);
        let n_format = parts.number()?;
        let format = std::str::from_utf8(parts.split(n_format)?).ok()?.to_owned();
        let n_tokens = parts.number()?;
        let (tokens, _) = parts.split(n_tokens.checked_mul(4)?)?.as_chunks::<4>();
        let n_entries = parts.number()?;
        let (entries, _) = parts.split(n_entries.checked_mul(20)?)?.as_chunks::<20>();
        let entry = |bytes: &[u8; 20]| {
            let mut parts = Parts(bytes);
            Some(KeptName {
                key: PageKey::from_number(u128::from_le_bytes(parts.take()?)),
                kind: *KeptKind::ALL.get(parts.number()?)?,
            })
        };
        let n_notes = parts.number()?;
        let notes = parts.split(n_notes)?.to_vec();
        parts.0.is_empty().then_some(Self {
            identity,
            format,
            tokens: tokens.iter().map(|word| u32::from_le_bytes(*word)).collect(),
            entries: entries.iter().map(entry).collect::<Option<_>>()?,
            notes,
        })
    }

    /// Returns the bytes of the whole file.
    pub(crate) fn file_bytes(&self, format: &MemoryFormat) -> u64 {
        let of_entry = |entry: &KeptName| (entry.kind.n_bytes(format) + SUM_BYTES) as u64;
        let n_bytes = FIXED_BYTES + self.parts_bytes() + SUM_BYTES;
        self.entries
            .iter()
            .map(of_entry)
            .fold(n_bytes as u64, u64::saturating_add)
    }

    /// Returns the bytes between the length and the checksum.
    fn parts_bytes(&self) -> usize {
        let n_words = 4 + self.tokens.len() + 5 * self.entries.len();
        16 + self.format.len() + 4 * n_words + self.notes.len()
    }

    /// Checks that the memory is that of a model and arranged as `format` says, and that a file of `found` bytes holds
    /// all of it.
    pub(crate) fn check(
        &self,
        identity: u128,
        format: &MemoryFormat,
        found: u64,
    ) -> Result<(), SessionError> {
        let text = format_text(format);
        if self.identity != identity {
            return Err(SessionError::OtherModel);
        }
        if self.format != text {
            let types = |text: &str| types_of(text).map(|(keys, values)| format!("{keys} and {values}"));
            if let (Some(found), Some(expected)) = (types(&self.format), types(&text))
                && found != expected
            {
                return Err(SessionError::OtherTypes { found, expected });
            }
            return Err(SessionError::OtherFormat {
                found: self.format.clone(),
                expected: text,
            });
        }
        let expected = self.file_bytes(format);
        match found.cmp(&expected) {
            Ordering::Less => Err(SessionError::Cut { found, expected }),
            Ordering::Equal => Ok(()),
            Ordering::Greater => Err(SessionError::Damaged),
        }
    }
}

/// Writes or reads the memory after a header, entry by entry.
pub(crate) struct EntrySums {
    next_seed: u64,
}

impl EntrySums {
    /// Begins after a header as [`PageFileHeader::to_bytes`] gives it.
    pub(crate) fn after(header: &[u8]) -> Self {
        let sum = header.last_chunk().expect("a header is longer than its sum");
        Self {
            next_seed: u64::from_le_bytes(*sum),
        }
    }

    pub(crate) fn write(&mut self, to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
        to.write_all(bytes)?;
        to.write_all(&self.next_sum(bytes))
    }

    /// Reads the bytes of the next entry.
    ///
    /// # Errors
    /// [`SessionError::Damaged`], or the file cannot be read.
    pub(crate) fn read(&mut self, from: &mut impl Read, n_bytes: usize) -> Result<Vec<u8>, SessionError> {
        let (mut bytes, mut sum) = (vec![0; n_bytes], [0; SUM_BYTES]);
        from.read_exact(&mut bytes)?;
        from.read_exact(&mut sum)?;
        if self.next_sum(&bytes) == sum {
            Ok(bytes)
        } else {
            Err(SessionError::Damaged)
        }
    }

    fn next_sum(&mut self, bytes: &[u8]) -> [u8; SUM_BYTES] {
        let sum = checksum(bytes, self.next_seed);
        self.next_seed = self.next_seed.wrapping_add(1);
        sum.to_le_bytes()
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

    fn split(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }
}

/// Adds a length as [`Parts::number`] reads it. It fits: a header that is too long is refused before.
fn put_number(bytes: &mut Vec<u8>, n: usize) {
    bytes.extend_from_slice(&(n as u32).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use tokenmill_backend::{KvType, PageGroup};
    use tokenmill_testkit::Random;

    use super::*;

    const FORMAT: MemoryFormat = MemoryFormat {
        arrangement: "cpu-1",
        key_type: KvType::F16,
        value_type: KvType::F16,
        page_bytes: [200, 0],
        state_bytes: 30,
    };

    fn name(key: u128, kind: KeptKind) -> KeptName {
        KeptName {
            key: PageKey::from_number(key),
            kind,
        }
    }

    fn header() -> PageFileHeader {
        let page = KeptKind::Page(PageGroup::Main);
        PageFileHeader {
            identity: 7 << 100 | 5,
            format: format_text(&FORMAT),
            tokens: (0..40).collect(),
            entries: vec![name(0, page), name(7 << 90 | 3, page), name(1, KeptKind::State)],
            notes: b"{}".to_vec(),
        }
    }

    fn read(bytes: &[u8]) -> Result<PageFileHeader, SessionError> {
        PageFileHeader::read(&mut &bytes[..], bytes.len() as u64)
    }

    /// A file, and the bytes of its entries.
    fn file() -> (Vec<u8>, Vec<Vec<u8>>) {
        let header = header();
        let entries: Vec<Vec<u8>> = (header.entries.iter().enumerate())
            .map(|(at, entry)| vec![at as u8 + 9; entry.kind.n_bytes(&FORMAT)])
            .collect();
        let mut file = header.to_bytes().unwrap();
        let mut sums = EntrySums::after(&file.clone());
        for entry in &entries {
            sums.write(&mut file, entry).unwrap();
        }
        (file, entries)
    }

    /// Reads the memory of a file that is expected to have the header of [`header`].
    fn read_all(file: &[u8]) -> Result<Vec<Vec<u8>>, SessionError> {
        let mut from = file;
        let found = PageFileHeader::read(&mut from, file.len() as u64)?;
        found.check(header().identity, &FORMAT, file.len() as u64)?;
        let mut sums = EntrySums::after(&found.to_bytes()?);
        let entries = found.entries.iter();
        entries
            .map(|entry| sums.read(&mut from, entry.kind.n_bytes(&FORMAT)))
            .collect()
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
        newer[8] = 3;
        assert!(matches!(
            read(&newer),
            Err(SessionError::Version { found: 3, known: 2 })
        ));
    }

    #[test]
    fn a_session_of_an_older_version_is_told_from_other_files() {
        let mut former = header().to_bytes().unwrap();
        former[..8].copy_from_slice(b"tmllsess");
        let error = read(&former).unwrap_err();
        assert!(matches!(error, SessionError::Former));
        assert!(error.to_string().contains("older version"), "{error}");
        former[..8].copy_from_slice(b"somethin");
        assert!(matches!(read(&former), Err(SessionError::NotASession)));
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

    #[test]
    fn a_changed_bit_another_length_or_order_of_entries_is_refused() {
        let (whole, entries) = file();
        assert_eq!(read_all(&whole).unwrap(), entries);
        for at in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            assert!(read_all(&damaged).is_err(), "bit {at}");
        }
        for len in 0..whole.len() {
            assert!(read_all(&whole[..len]).is_err(), "{len} bytes");
        }
        assert!(read_all(&[&whole[..], &[0]].concat()).is_err());
        // Two pages with their sums, each in the place of the other.
        let (head, body) = whole.split_at(header().to_bytes().unwrap().len());
        let swapped = [head, &body[208..416], &body[..208], &body[416..]].concat();
        assert!(matches!(read_all(&swapped), Err(SessionError::Damaged)));
        // The memory of one header after another.
        let mut other = header();
        other.entries[1].key = PageKey::from_number(8);
        let other = [&other.to_bytes().unwrap()[..], body].concat();
        assert!(matches!(read_all(&other), Err(SessionError::Damaged)));
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
