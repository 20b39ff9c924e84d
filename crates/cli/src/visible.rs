//! [`visible`]: makes text from a file safe to show on a terminal.
//!
//! Names, keys and messages of model files reach the terminal from many commands. Invariant: the result has
//! no character that moves a cursor, changes a colour or reverses the reading order.

use std::borrow::Cow;

/// Writes characters that a terminal would obey instead of showing as `\n` or `\u{1b}`.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    escape(text, is_obeyed)
}

/// As [`visible`], for texts of several lines: breaks of lines and tabs stay.
pub(crate) fn visible_lines(text: &str) -> Cow<'_, str> {
    escape(text, |c| is_obeyed(c) && !matches!(c, '\n' | '\t'))
}

fn escape(text: &str, is_escaped: fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if is_escaped(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Control characters, and the invisible ones of Unicode that direct how others are shown: marks and embeddings of
/// writing direction, line and paragraph separators, the byte order mark.
pub(crate) fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_written_out() {
        for (text, expected) in [
            ("blk.0.attn_q \"é\" 你好", "blk.0.attn_q \"é\" 你好"),
            ("a\u{1b}[2Jb\rc", r"a\u{1b}[2Jb\rc"),
            ("a\u{9b}31mb\u{7f}", r"a\u{9b}31mb\u{7f}"),
            ("a\u{202e}b\u{2066}\u{feff}", r"a\u{202e}b\u{2066}\u{feff}"),
        ] {
            assert_eq!(visible(text), expected);
        }
        assert_eq!(visible("a\n\tb"), r"a\n\tb");
        assert_eq!(visible_lines("a\n\tb\u{7}"), "a\n\tb\\u{7}");
    }
}
