//! [`Source`]: a Rust file with code and comments separated, line by line.
//!
//! A rule about code must ignore comments and strings that mention it, and a rule about words must ignore code. This
//! is a lexer just deep enough for that. Invariant: every line of the file has a line here.

/// One line of a Rust file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    /// The code, without the contents of strings and characters.
    pub(super) code: String,
    /// The text of comments, doc comments included.
    pub(super) comment: String,
}

/// A Rust file, split into lines.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) lines: Vec<Line>,
    /// The first line of a `#[cfg(test)] mod ... {` at the end of the file; the file's length if there is none.
    pub(super) tests_start: usize,
}

/// The state of the lexer.
#[derive(Clone, Copy)]
enum State {
    Code,
    LineComment,
    /// A block comment, and the number of comments around it.
    BlockComment(usize),
    /// A string that ends at a quote, with escapes.
    Text,
    /// A string that ends at a quote and this many hashes.
    RawText(usize),
}

impl Source {
    /// Splits the text of a file.
    pub(super) fn parse(text: &str) -> Self {
        let lines = split(text);
        let tests_start = lines
            .windows(2)
            .position(|pair| {
                let head = pair[1].code.trim();
                pair[0].code.trim() == "#[cfg(test)]" && head.starts_with("mod ") && head.ends_with('{')
            })
            .unwrap_or(lines.len());
        Self { lines, tests_start }
    }

    /// Lists the lines that are not tests, with their numbers from 1.
    pub(super) fn product_lines(&self) -> impl Iterator<Item = (usize, &Line)> {
        (1..).zip(&self.lines[..self.tests_start])
    }
}

fn split(text: &str) -> Vec<Line> {
    let mut lines = vec![Line::default()];
    let mut state = State::Code;
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let line = lines.last_mut().expect("one line at least");
        let mut taken = next.len_utf8();
        if next == '\n' {
            if matches!(state, State::LineComment) {
                state = State::Code;
            }
            lines.push(Line::default());
            rest = &rest[taken..];
            continue;
        }
        match state {
            State::Code => {
                if rest.starts_with("//") {
                    state = State::LineComment;
                    taken = 2;
                } else if rest.starts_with("/*") {
                    state = State::BlockComment(0);
                    taken = 2;
                } else if let Some((opening, n_hashes)) = raw_string_opening(rest, &line.code) {
                    state = State::RawText(n_hashes);
                    taken = opening;
                    line.code.push('"');
                } else if next == '"' {
                    state = State::Text;
                    line.code.push('"');
                } else if let Some(n_bytes) = char_literal(rest) {
                    taken = n_bytes;
                    line.code.push_str("''");
                } else {
                    line.code.push(next);
                }
            }
            State::LineComment => line.comment.push(next),
            State::BlockComment(depth) => {
                if rest.starts_with("/*") {
                    state = State::BlockComment(depth + 1);
                    taken = 2;
                } else if rest.starts_with("*/") {
                    state = depth.checked_sub(1).map_or(State::Code, State::BlockComment);
                    taken = 2;
                } else {
                    line.comment.push(next);
                }
            }
            State::Text => match next {
                // An escaped line break must still end the line.
                '\\' if !rest.starts_with("\\\n") => {
                    taken += rest[1..].chars().next().map_or(0, char::len_utf8);
                }
                '"' => {
                    state = State::Code;
                    line.code.push('"');
                }
                _ => {}
            },
            State::RawText(n_hashes) => {
                let ends_here = rest
                    .strip_prefix('"')
                    .is_some_and(|after| after.bytes().take_while(|&byte| byte == b'#').count() >= n_hashes);
                if ends_here {
                    state = State::Code;
                    taken += n_hashes;
                    line.code.push('"');
                }
            }
        }
        rest = &rest[taken..];
    }
    lines
}

/// Returns the length of a raw string's opening and its number of hashes, if `rest` starts with one.
fn raw_string_opening(rest: &str, code_before: &str) -> Option<(usize, usize)> {
    let is_in_word = code_before.ends_with(|last: char| last.is_alphanumeric() || last == '_');
    let after_r = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
    let after_hashes = after_r.trim_start_matches('#');
    let n_hashes = after_r.len() - after_hashes.len();
    (!is_in_word && after_hashes.starts_with('"')).then(|| (rest.len() - after_hashes.len() + 1, n_hashes))
}

/// Returns the length of a character literal, if `rest` starts with one and not with a lifetime.
fn char_literal(rest: &str) -> Option<usize> {
    let inner = rest.strip_prefix('\'')?;
    if let Some(escape) = inner.strip_prefix('\\') {
        let first = escape.chars().next()?.len_utf8();
        let end = escape[first..].find('\'')?;
        return Some(2 + first + end + 1);
    }
    let first = inner.chars().next()?.len_utf8();
    inner[first..].starts_with('\'').then_some(first + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[(&str, &str)]) {
        let found: Vec<_> = split(text)
            .into_iter()
            .map(|line| (line.code, line.comment))
            .collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(code, comment)| ((*code).to_owned(), (*comment).to_owned()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn code_and_comments_are_told_apart() {
        check("a // b\nc", &[("a ", " b"), ("c", "")]);
        check("a /* b /* c */ d */ e", &[("a  e", " b  c  d ")]);
        check("a /* b\nc */ d", &[("a ", " b"), (" d", "c ")]);
    }

    #[test]
    fn strings_and_characters_are_left_out() {
        check(r#"f("// \" x") // y"#, &[(r#"f("") "#, " y")]);
        check("r#\"a \" // b\"# c", &[("\"\" c", "")]);
        check(
            "r\"\u{2026}\" '\u{2026}' \"\u{2026}\" c",
            &[("\"\" '' \"\" c", "")],
        );
        check("\"a \\\n b\" c", &[("\"", ""), ("\" c", "")]);
        check(r"'\'' '/' b'\n' &'a str", &[("'' '' b'' &'a str", "")]);
    }

    #[test]
    fn tests_at_the_end_are_found() {
        let source = Source::parse("a\n#[cfg(test)]\nmod tests {\n}\n");
        assert_eq!(source.tests_start, 1);
        assert_eq!(Source::parse("a\n#[cfg(test)]\nmod tests;\n").tests_start, 4);
    }
}
