//! [`EscapeTokens`] lists the tokens of a vocabulary that contain JSON escapes, with the tokens of the unescaped text.
//!
//! It is made once for each model. Invariant: a token is listed for each way in which its text may be read: outside of strings, inside of
//! them, and after a backslash.

use toktrie::TokTrie;

use super::vocabulary::spelled;

/// Tracks whether a text with JSON is inside a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// Outside of strings; a quote begins one.
    Outside,
    /// Outside of strings, directly after a word, `=` or a quote. A quote belongs to an attribute or to text, as in `name="x"` and `5" wide`.
    Beside,
    Inside,
    /// After a backslash; `is_told` is false if the grammar refused the backslash and has not consumed it.
    Escaped {
        is_told: bool,
    },
}

impl Scan {
    pub(super) fn after(self, bytes: &[u8]) -> Self {
        bytes.iter().fold(self, |scan, byte| match (scan, byte) {
            (Self::Outside, b'"') => Self::Inside,
            (Self::Outside | Self::Beside, byte) if may_precede_string(*byte) => Self::Outside,
            (Self::Outside | Self::Beside, _) | (Self::Inside, b'"') => Self::Beside,
            (Self::Inside, b'\\') => Self::Escaped { is_told: true },
            (Self::Inside | Self::Escaped { .. }, _) => Self::Inside,
        })
    }
}

/// Returns whether a JSON string may begin directly after a byte: after punctuation, space, or the end of a mark.
fn may_precede_string(byte: u8) -> bool {
    byte.is_ascii_whitespace() || b"[{(,:;>|]}`".contains(&byte)
}

/// Holds a token whose text the grammar may see unescaped.
#[derive(Debug)]
pub(super) struct Unescaped {
    pub(super) id: u32,
    /// Tokens of the unescaped text.
    pub(super) ids: Box<[u32]>,
    /// Whether a slash must follow, because `ids` omit the backslash at the token's end.
    pub(super) awaits_slash: bool,
}

/// Holds a token with a `\u` escape.
#[derive(Debug)]
pub(super) struct LetterEscape {
    pub(super) id: u32,
    /// Tokens of the text up to the escape, with a digit that no control character has at this position.
    pub(super) ids: Box<[u32]>,
}

/// Lists tokens with escapes, in the order of their ids, for one place where they may begin.
#[derive(Debug, Default)]
pub(super) struct EscapesFrom {
    pub(super) unescaped: Vec<Unescaped>,
    pub(super) letters: Vec<LetterEscape>,
}

impl EscapesFrom {
    fn add(&mut self, trie: &TokTrie, id: u32, word: &[u8], scan: Scan) {
        let read = Reading::of(word, scan);
        if let Some(mut text) = read.up_to_letter {
            text.push(b'4');
            if let Some(ids) = spelled(trie, &text) {
                self.letters.push(LetterEscape { id, ids: ids.into() });
            }
        }
        let mut push = |text: &[u8], awaits_slash: bool| {
            if let Some(ids) = spelled(trie, text) {
                self.unescaped.push(Unescaped {
                    id,
                    ids: ids.into(),
                    awaits_slash,
                });
            }
        };
        if read.plain.len() < word.len() {
            push(&read.plain, false);
        }
        if let Some((b'\\', before)) = read.plain.split_last()
            && read.ends_escaping
        {
            push(before, true);
        }
    }

    /// Returns the ways to read a token unescaped.
    pub(super) fn unescaped_of(&self, id: u32) -> &[Unescaped] {
        let from = self.unescaped.partition_point(|other| other.id < id);
        let n = self.unescaped[from..].partition_point(|other| other.id == id);
        &self.unescaped[from..from + n]
    }

    /// Returns the `\u` escape that a token begins.
    pub(super) fn letter_of(&self, id: u32) -> Option<&LetterEscape> {
        let at = self.letters.binary_search_by_key(&id, |other| other.id).ok()?;
        Some(&self.letters[at])
    }
}

/// Lists the tokens of a vocabulary that hold escapes.
#[derive(Debug, Default)]
pub(super) struct EscapeTokens {
    pub(super) backslash: Option<u32>,
    pub(super) slash: Option<u32>,
    /// Tokens that begin with a slash.
    pub(super) with_slash: Vec<u32>,
    pub(super) outside: EscapesFrom,
    pub(super) beside: EscapesFrom,
    pub(super) inside: EscapesFrom,
    /// Tokens after a backslash that the grammar has consumed.
    pub(super) escaped: EscapesFrom,
}

impl EscapeTokens {
    /// Sorts the tokens of a vocabulary.
    pub(super) fn new<'w>(words: impl Iterator<Item = (u32, &'w [u8])>, trie: &TokTrie) -> Self {
        let mut tokens = Self {
            backslash: trie.token_id(b"\\"),
            slash: trie.token_id(b"/"),
            ..Self::default()
        };
        for (id, word) in words {
            let begins_with = |byte: u8| word.first() == Some(&byte);
            if begins_with(b'/') {
                tokens.with_slash.push(id);
            }
            let has_backslash = word.contains(&b'\\');
            if has_backslash {
                tokens.inside.add(trie, id, word, Scan::Inside);
                if word.contains(&b'"') {
                    tokens.outside.add(trie, id, word, Scan::Outside);
                    tokens.beside.add(trie, id, word, Scan::Beside);
                }
            }
            if has_backslash || begins_with(b'u') {
                let scan = Scan::Escaped { is_told: true };
                tokens.escaped.add(trie, id, word, scan);
            }
        }
        tokens
    }
}

/// Holds the text of a token as the grammar sees it from one place on.
struct Reading {
    /// The text with a slash for each `\/`.
    plain: Vec<u8>,
    /// The text up to the `u` of its first `\u`.
    up_to_letter: Option<Vec<u8>>,
    /// Whether the text ends in a backslash that escapes the next character.
    ends_escaping: bool,
}

impl Reading {
    fn of(word: &[u8], scan: Scan) -> Self {
        let mut read = Self {
            plain: Vec::with_capacity(word.len()),
            up_to_letter: None,
            ends_escaping: false,
        };
        let mut now = scan;
        for (idx, byte) in word.iter().enumerate() {
            match (now, byte) {
                // A slash after the backslash of an earlier token is read without both.
                (Scan::Escaped { .. }, b'/') if idx > 0 => {
                    read.plain.pop();
                    read.plain.push(b'/');
                }
                (Scan::Escaped { .. }, b'u') => {
                    read.plain.push(b'u');
                    read.up_to_letter.get_or_insert_with(|| read.plain.clone());
                }
                _ => read.plain.push(*byte),
            }
            now = now.after(&[*byte]);
        }
        read.ends_escaping = !word.is_empty() && matches!(now, Scan::Escaped { .. });
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(word: &str, scan: Scan, plain: &str, up_to_letter: Option<&str>, ends_escaping: bool) {
        let read = Reading::of(word.as_bytes(), scan);
        let letter = read.up_to_letter.map(|text| String::from_utf8(text).unwrap());
        assert_eq!(
            String::from_utf8(read.plain).unwrap(),
            plain,
            "{word} from {scan:?}"
        );
        assert_eq!(letter.as_deref(), up_to_letter, "{word} from {scan:?}");
        assert_eq!(read.ends_escaping, ends_escaping, "{word} from {scan:?}");
    }

    #[test]
    fn escapes_count_inside_of_strings_only() {
        check(r"a\/b", Scan::Inside, "a/b", None, false);
        check(r"a\/b", Scan::Outside, r"a\/b", None, false);
        check(r#""a\/b", "\/"#, Scan::Outside, r#""a/b", "/"#, None, false);
        check(r#"\/", \/"#, Scan::Inside, r#"/", \/"#, None, false);
        check(r#"\"\/"#, Scan::Inside, r#"\"/"#, None, false);
    }

    #[test]
    fn quotes_of_attributes_and_inches_begin_no_string() {
        check(r#"se">["a\/b"#, Scan::Beside, r#"se">["a/b"#, None, false);
        check(r#"x="a\/b""#, Scan::Outside, r#"x="a\/b""#, None, false);
        check(r#"5" a\/b"#, Scan::Outside, r#"5" a\/b"#, None, false);
        check(r#""a\/b"#, Scan::Beside, r#""a\/b"#, None, false);
    }

    #[test]
    fn escaped_backslashes_escape_nothing() {
        check(r"\\/", Scan::Inside, r"\\/", None, false);
        check(r"\\\/\", Scan::Inside, r"\\/\", None, true);
        check(r"\/\", Scan::Escaped { is_told: true }, r"\/\", None, true);
        check("/a", Scan::Escaped { is_told: true }, "/a", None, false);
    }

    #[test]
    fn the_first_letter_escape_is_found() {
        check(r"a\/\u00", Scan::Inside, r"a/\u00", Some(r"a/\u"), false);
        check("u0", Scan::Escaped { is_told: true }, "u0", Some("u"), false);
        check(r"\\u", Scan::Inside, r"\\u", None, false);
        check(r#""\u"#, Scan::Outside, r#""\u"#, Some(r#""\u"#), false);
    }
}
