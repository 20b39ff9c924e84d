//! A file of a [`PrefixFolder`](super::PrefixFolder): one page, or the recurrent states behind one.
//!
//! Separate because this is where bytes are parsed that no one vouches for. Numbers are little-endian:
//!
//! | part | bytes |
//! |---|---|
//! | `tmllpage` | 8 |
//! | version of the format | 4 |
//! | kind: 0 a page, 1 a page of the layers with a window, 2 states | 4 |
//! | the model, and how its memory is arranged: a hash | 16 |
//! | key of the page | 16 |
//! | tokens of the page | 4 each, 64 |
//! | XXH64 of all before, with the length of what follows as the seed | 8 |
//! | what the backend has in it | |
//! | XXH64 of that, with the sum before as the seed | 8 |
//!
//! Invariant: what [`read`] gives is what [`write`] was given, under the same name and with the same tokens.

use std::io::{self, Read, Write};

use tokenmill_backend::{PAGE_TOKENS, PageGroup};
use tokenmill_sched::{KeptKind, KeptPage};

use crate::checksum::checksum;

const MAGIC: [u8; 8] = *b"tmllpage";
const VERSION: u32 = 1;
const SUM_BYTES: usize = 8;
const HEAD_BYTES: usize = 48 + 4 * PAGE_TOKENS + SUM_BYTES;

/// Returns the size of a file with `n_bytes` of memory.
pub(super) fn file_bytes(n_bytes: usize) -> u64 {
    (HEAD_BYTES + n_bytes + SUM_BYTES) as u64
}

/// The number of a kind.
pub(super) fn number_of(kind: KeptKind) -> u32 {
    match kind {
        KeptKind::Page(PageGroup::Main) => 0,
        KeptKind::Page(PageGroup::Window) => 1,
        KeptKind::State => 2,
    }
}

fn head(model: u128, page: &KeptPage, n_bytes: usize) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    head.extend_from_slice(&MAGIC);
    head.extend_from_slice(&VERSION.to_le_bytes());
    head.extend_from_slice(&number_of(page.name.kind).to_le_bytes());
    head.extend_from_slice(&model.to_le_bytes());
    head.extend_from_slice(&page.name.key.number().to_le_bytes());
    head.extend(page.tokens.iter().flat_map(|token| token.to_le_bytes()));
    let sum = checksum(&head, n_bytes as u64);
    head.extend_from_slice(&sum.to_le_bytes());
    head
}

/// The sum that the last bytes of a head are.
fn sum_of(head: &[u8]) -> u64 {
    let sum = head.last_chunk().expect("a head is longer than its sum");
    u64::from_le_bytes(*sum)
}

/// Writes a page.
pub(super) fn write(to: &mut impl Write, model: u128, page: &KeptPage) -> io::Result<()> {
    let head = head(model, page, page.bytes.len());
    let sum = checksum(&page.bytes, sum_of(&head));
    to.write_all(&head)?;
    to.write_all(&page.bytes)?;
    to.write_all(&sum.to_le_bytes())
}

/// Reads the `n_bytes` of a page that is wanted from a file of `file_len` bytes; `None` where the file has another length, is that of
/// another page or is damaged.
pub(super) fn read(
    from: &mut impl Read,
    file_len: u64,
    model: u128,
    wanted: &KeptPage,
    n_bytes: usize,
) -> io::Result<Option<Vec<u8>>> {
    if file_len != file_bytes(n_bytes) {
        return Ok(None);
    }
    let expected = head(model, wanted, n_bytes);
    let mut found = [0; HEAD_BYTES];
    from.read_exact(&mut found)?;
    if found[..] != expected[..] {
        return Ok(None);
    }
    let mut bytes = vec![0; n_bytes];
    from.read_exact(&mut bytes)?;
    let mut sum = [0; SUM_BYTES];
    from.read_exact(&mut sum)?;
    let is_whole = checksum(&bytes, sum_of(&expected)).to_le_bytes() == sum;
    Ok(is_whole.then_some(bytes))
}

#[cfg(test)]
mod tests {
    use tokenmill_sched::{KeptName, PageKey};

    use super::*;

    fn page() -> KeptPage {
        KeptPage {
            name: KeptName {
                key: PageKey::from_number(7 << 90 | 3),
                kind: KeptKind::Page(PageGroup::Main),
            },
            tokens: std::array::from_fn(|at| at as u32 * 1000),
            bytes: (0..200).collect(),
        }
    }

    fn file() -> Vec<u8> {
        let mut file = Vec::new();
        write(&mut file, 5, &page()).unwrap();
        file
    }

    fn read_from(file: &[u8], wanted: &KeptPage) -> Option<Vec<u8>> {
        read(&mut &file[..], file.len() as u64, 5, wanted, 200).unwrap()
    }

    #[test]
    fn a_page_reads_back_as_it_was_written() {
        assert_eq!(file().len() as u64, file_bytes(200));
        assert_eq!(read_from(&file(), &page()), Some(page().bytes));
    }

    #[test]
    fn a_changed_bit_or_another_length_is_refused() {
        let whole = file();
        for at in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            assert_eq!(read_from(&damaged, &page()), None, "bit {at}");
        }
        for len in 0..whole.len() {
            assert_eq!(read_from(&whole[..len], &page()), None, "{len} bytes");
        }
        let longer = [&whole[..], &[0]].concat();
        assert_eq!(read_from(&longer, &page()), None);
    }

    #[test]
    fn the_page_of_other_tokens_keys_kinds_or_models_is_refused() {
        let (mut tokens, mut key, mut kind) = (page(), page(), page());
        tokens.tokens[15] += 1;
        key.name.key = PageKey::from_number(8);
        kind.name.kind = KeptKind::State;
        for other in [tokens, key, kind] {
            assert_eq!(read_from(&file(), &other), None, "{other:?}");
        }
        let file = file();
        assert_eq!(
            read(&mut &file[..], file.len() as u64, 6, &page(), 200).unwrap(),
            None
        );
    }
}
