//! Character classes: the Unicode categories of a character, as bits.
//!
//! Every splitter and normalizer uses this table. Invariant: it is built once from `regex-syntax`'s Unicode data, so
//! a hand-written splitter and a regular expression agree about every character.

use std::sync::LazyLock;

/// `\p{L}`.
pub(crate) const LETTER: u16 = 1 << 0;
/// `\p{N}`.
pub(crate) const NUMBER: u16 = 1 << 1;
/// `\s`.
pub(crate) const SPACE: u16 = 1 << 2;
/// `\p{M}`.
pub(crate) const MARK: u16 = 1 << 3;
/// `\p{P}` and ASCII punctuation.
pub(crate) const PUNCTUATION: u16 = 1 << 4;
/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`.
pub(crate) const UPPER: u16 = 1 << 5;
/// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`.
pub(crate) const LOWER: u16 = 1 << 6;
/// `\p{Mn}`.
pub(crate) const NONSPACING_MARK: u16 = 1 << 7;
/// `[\p{Cc}\p{Cf}\p{Co}]`.
pub(crate) const CONTROL: u16 = 1 << 8;
/// `[\r\n]`.
pub(crate) const NEWLINE: u16 = 1 << 9;
/// `\d`.
pub(crate) const DECIMAL: u16 = 1 << 10;
/// `\w`.
pub(crate) const WORD: u16 = 1 << 11;

const BLOCK: usize = 256;

/// Classes of all characters: `blocks[block_of[c / 256]][c % 256]`; equal blocks are stored once.
struct Table {
    ascii: [u16; 128],
    block_of: Vec<u16>,
    blocks: Vec<[u16; BLOCK]>,
}

static TABLE: LazyLock<Table> = LazyLock::new(Table::new);

impl Table {
    fn new() -> Self {
        let mut classes = vec![0u16; 0x11_0000];
        for (pattern, class) in [
            (r"\p{L}", LETTER),
            (r"\p{N}", NUMBER),
            (r"\s", SPACE),
            (r"\p{M}", MARK),
            (r"[\p{P}!-/:-@\[-`{-~]", PUNCTUATION),
            (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", UPPER),
            (r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", LOWER),
            (r"\p{Mn}", NONSPACING_MARK),
            (r"[\p{Cc}\p{Cf}\p{Co}]", CONTROL),
            (r"[\r\n]", NEWLINE),
            (r"\d", DECIMAL),
            (r"\w", WORD),
        ] {
            let hir = regex_syntax::parse(pattern).expect("the class is well-formed");
            let regex_syntax::hir::HirKind::Class(regex_syntax::hir::Class::Unicode(ranges)) = hir.kind()
            else {
                unreachable!("the pattern is one class of several characters");
            };
            for range in ranges.iter() {
                for entry in &mut classes[range.start() as usize..=range.end() as usize] {
                    *entry |= class;
                }
            }
        }
        let mut table = Self {
            ascii: std::array::from_fn(|byte| classes[byte]),
            block_of: Vec::with_capacity(classes.len() / BLOCK),
            blocks: Vec::new(),
        };
        let mut seen = std::collections::HashMap::new();
        for block in classes.as_chunks::<BLOCK>().0 {
            let idx = *seen.entry(block).or_insert_with(|| {
                table.blocks.push(*block);
                table.blocks.len() as u16 - 1
            });
            table.block_of.push(idx);
        }
        table
    }
}

/// Returns the classes of one character.
pub(crate) fn classes(character: char) -> u16 {
    let code = character as usize;
    let table = &*TABLE;
    match table.ascii.get(code) {
        Some(&classes) => classes,
        None => table.blocks[table.block_of[code / BLOCK] as usize][code % BLOCK],
    }
}

/// Classes of the characters of one text, by byte offset.
#[derive(Clone, Copy)]
pub(crate) struct Classes<'t> {
    table: &'static Table,
    text: &'t str,
}

impl<'t> Classes<'t> {
    pub(crate) fn of(text: &'t str) -> Self {
        Self { table: &TABLE, text }
    }

    /// Returns the classes of the character that begins at `offset`, and its length in bytes; `(0, 0)` at the end.
    pub(crate) fn at(self, offset: usize) -> (u16, usize) {
        let Some(&byte) = self.text.as_bytes().get(offset) else {
            return (0, 0);
        };
        if byte < 128 {
            return (self.table.ascii[byte as usize], 1);
        }
        let character = self.text[offset..]
            .chars()
            .next()
            .expect("offset is before the end");
        let code = character as usize;
        let block = self.table.block_of[code / BLOCK] as usize;
        (self.table.blocks[block][code % BLOCK], character.len_utf8())
    }

    /// Returns the end of the run of characters from `offset` on that have any of `wanted` and none of `unwanted`;
    /// if `wanted` is 0, any character is wanted.
    pub(crate) fn run_end(self, mut offset: usize, wanted: u16, unwanted: u16) -> usize {
        loop {
            let (classes, n_bytes) = self.at(offset);
            let belongs = n_bytes > 0 && (wanted == 0 || classes & wanted != 0) && classes & unwanted == 0;
            if !belongs {
                return offset;
            }
            offset += n_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_agree_with_regular_expressions() {
        for (pattern, class) in [
            (r"\p{L}", LETTER),
            (r"\p{N}", NUMBER),
            (r"\s", SPACE),
            (r"\p{M}", MARK),
            (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", UPPER),
        ] {
            let regex = regex::Regex::new(&format!("^{pattern}$")).unwrap();
            for character in (0..=0x2_ffffu32).filter_map(char::from_u32) {
                let mut buffer = [0; 4];
                let text = character.encode_utf8(&mut buffer);
                assert_eq!(
                    classes(character) & class != 0,
                    regex.is_match(text),
                    "{character:?} {pattern}"
                );
                assert_eq!(Classes::of(text).at(0), (classes(character), text.len()));
            }
        }
    }
}
