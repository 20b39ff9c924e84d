//! Splits template source into tokens, as Jinja does with `trim_blocks` and `lstrip_blocks` on.
//!
//! All rules about white space around tags are here. Invariant: the concatenated [`Token::Text`]s are exactly what the
//! template prints outside its tags.

use super::error::TemplateError;

/// One token.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    Text(String),
    BlockStart,
    BlockEnd,
    VariableStart,
    VariableEnd,
    Name(String),
    Str(String),
    Int(i128),
    Float(f64),
    Op(&'static str),
    Eof,
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(_) => write!(f, "text"),
            Self::BlockStart => write!(f, "`{{%`"),
            Self::BlockEnd => write!(f, "`%}}`"),
            Self::VariableStart => write!(f, "`{{{{`"),
            Self::VariableEnd => write!(f, "`}}}}`"),
            Self::Name(name) => write!(f, "`{name}`"),
            Self::Str(_) => write!(f, "a string"),
            Self::Int(value) => write!(f, "`{value}`"),
            Self::Float(value) => write!(f, "`{value}`"),
            Self::Op(op) => write!(f, "`{op}`"),
            Self::Eof => write!(f, "the end of the template"),
        }
    }
}

/// Longest first, so that `//` is not read as two slashes.
const OPERATORS: [&str; 27] = [
    "//", "**", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "[", "]", "(", ")", "{", "}", "<", ">",
    "=", ".", ":", "|", ",", ";", "!",
];

/// Splits `source` into tokens with the line each starts on; the last is [`Token::Eof`].
pub(super) fn tokenize(source: &str) -> Result<Vec<(Token, u32)>, TemplateError> {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if source.ends_with('\n') {
        source.pop();
    }
    let mut lexer = Lexer {
        source: &source,
        pos: 0,
        line: 1,
        is_line_start: true,
        tokens: Vec::new(),
    };
    lexer.run()?;
    let line = lexer.line;
    lexer.tokens.push((Token::Eof, line));
    Ok(lexer.tokens)
}

struct Lexer<'s> {
    source: &'s str,
    pos: usize,
    line: u32,
    /// Whether the text consumed last ended with a line break.
    is_line_start: bool,
    tokens: Vec<(Token, u32)>,
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.pos..]
    }

    fn error<T>(&self, problem: impl Into<String>) -> Result<T, TemplateError> {
        Err(TemplateError::Syntax {
            line: self.line,
            problem: problem.into(),
        })
    }

    fn advance(&mut self, n_bytes: usize) {
        let consumed = &self.source[self.pos..self.pos + n_bytes];
        self.line += consumed.matches('\n').count() as u32;
        self.is_line_start = consumed.ends_with('\n');
        self.pos += n_bytes;
    }

    fn push(&mut self, token: Token) {
        self.tokens.push((token, self.line));
    }

    fn run(&mut self) -> Result<(), TemplateError> {
        while self.pos < self.source.len() {
            let rest = self.rest();
            let Some(start) = find_tag(rest) else {
                self.push(Token::Text(rest.to_owned()));
                self.advance(rest.len());
                return Ok(());
            };
            let opener = &rest[start..start + 2];
            let sign = rest[start + 2..]
                .chars()
                .next()
                .filter(|c| matches!(c, '-' | '+'));
            let text = self.text_before_tag(&rest[..start], opener, sign);
            if !text.is_empty() {
                self.push(Token::Text(text.to_owned()));
            }
            self.advance(start + 2 + usize::from(sign.is_some()));
            match opener {
                "{#" => self.comment()?,
                "{{" => {
                    self.push(Token::VariableStart);
                    self.tag("}}", Token::VariableEnd)?;
                }
                _ => {
                    if let Some((len, trims)) = raw_tag_len(self.rest(), "raw") {
                        self.raw(len, trims)?;
                    } else {
                        self.push(Token::BlockStart);
                        self.tag("%}", Token::BlockEnd)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the text before a tag, without the white space that the tag removes.
    fn text_before_tag<'t>(&self, text: &'t str, opener: &str, sign: Option<char>) -> &'t str {
        match sign {
            Some('-') => text.trim_end(),
            None if opener != "{{" => {
                let line_start = text.rfind('\n').map(|newline| newline + 1);
                let is_whole_line = line_start.is_some() || self.is_line_start;
                let (before, indent) = text.split_at(line_start.unwrap_or(0));
                if is_whole_line && indent.chars().all(char::is_whitespace) {
                    before
                } else {
                    text
                }
            }
            _ => text,
        }
    }

    /// Skips the white space or the line break that a closed block or comment removes.
    fn trim_after_tag(&mut self, trims_all: bool, trims_newline: bool) {
        let rest = self.rest();
        let n = if trims_all {
            rest.len() - rest.trim_start().len()
        } else {
            usize::from(trims_newline && rest.starts_with('\n'))
        };
        if n > 0 {
            self.advance(n);
        }
    }

    fn comment(&mut self) -> Result<(), TemplateError> {
        let Some(end) = self.rest().find("#}") else {
            return self.error("a comment is not closed with `#}`");
        };
        let sign = self.rest()[..end].chars().next_back();
        self.advance(end + 2);
        self.trim_after_tag(sign == Some('-'), sign != Some('+'));
        Ok(())
    }

    fn raw(&mut self, opening_len: usize, trims: bool) -> Result<(), TemplateError> {
        self.advance(opening_len);
        self.trim_after_tag(trims, false);
        let mut search = 0;
        while let Some(found) = self.rest()[search..].find("{%") {
            let start = search + found;
            let after = &self.rest()[start + 2..];
            let sign = after.chars().next().filter(|c| matches!(c, '-' | '+'));
            let sign_len = usize::from(sign.is_some());
            if let Some((len, _)) = raw_tag_len(&after[sign_len..], "endraw") {
                let text = self.text_before_tag(&self.rest()[..start], "{%", sign).to_owned();
                self.push(Token::Text(text));
                self.advance(start + 2 + sign_len + len);
                let closing = self.source[..self.pos - 2].chars().next_back();
                self.trim_after_tag(closing == Some('-'), closing != Some('+'));
                return Ok(());
            }
            search = start + 2;
        }
        self.error("`{% raw %}` is not closed with `{% endraw %}`")
    }

    /// Reads the tokens of a tag up to its end.
    fn tag(&mut self, closer: &str, end: Token) -> Result<(), TemplateError> {
        let mut open_brackets: Vec<char> = Vec::new();
        loop {
            let rest = self.rest();
            let blank = rest.len() - rest.trim_start().len();
            if blank > 0 {
                self.advance(blank);
            }
            let rest = self.rest();
            let Some(first) = rest.chars().next() else {
                return self.error(format!("a tag is not closed with `{closer}`"));
            };
            if open_brackets.is_empty() {
                let is_block = closer == "%}";
                let sign = (first == '-' || first == '+' && is_block).then_some(first);
                if rest[usize::from(sign.is_some())..].starts_with(closer) {
                    self.push(end);
                    self.advance(usize::from(sign.is_some()) + closer.len());
                    self.trim_after_tag(sign == Some('-'), is_block && sign.is_none());
                    return Ok(());
                }
            }
            if first == '_' || first.is_alphabetic() {
                let len = rest
                    .find(|c: char| c != '_' && !c.is_alphanumeric())
                    .unwrap_or(rest.len());
                self.push(Token::Name(rest[..len].to_owned()));
                self.advance(len);
            } else if first.is_ascii_digit() {
                self.number()?;
            } else if first == '"' || first == '\'' {
                self.string(first)?;
            } else {
                self.operator(&mut open_brackets)?;
            }
        }
    }

    fn operator(&mut self, open_brackets: &mut Vec<char>) -> Result<(), TemplateError> {
        let rest = self.rest();
        let Some(op) = OPERATORS.into_iter().find(|op| rest.starts_with(op)) else {
            return self.error(format!(
                "unexpected character `{}`",
                rest.chars().next().unwrap_or(' ')
            ));
        };
        match op {
            "(" => open_brackets.push(')'),
            "[" => open_brackets.push(']'),
            "{" => open_brackets.push('}'),
            ")" | "]" | "}"
                if open_brackets
                    .pop()
                    .is_none_or(|expected| !op.starts_with(expected)) =>
            {
                return self.error(format!("unexpected `{op}`"));
            }
            _ => {}
        }
        self.push(Token::Op(op));
        self.advance(op.len());
        Ok(())
    }

    fn number(&mut self) -> Result<(), TemplateError> {
        let rest = self.rest();
        let bytes = rest.as_bytes();
        let digits = |from: usize, is_digit: fn(&u8) -> bool| {
            bytes[from..]
                .iter()
                .take_while(|b| is_digit(b) || **b == b'_')
                .count()
        };
        let radix = match bytes.get(1) {
            Some(b'x' | b'X') if bytes[0] == b'0' => Some((16, u8::is_ascii_hexdigit as fn(&u8) -> bool)),
            Some(b'o' | b'O') if bytes[0] == b'0' => Some((8, u8::is_ascii_digit as fn(&u8) -> bool)),
            Some(b'b' | b'B') if bytes[0] == b'0' => Some((2, u8::is_ascii_digit as fn(&u8) -> bool)),
            _ => None,
        };
        if let Some((radix, is_digit)) = radix {
            let len = 2 + digits(2, is_digit);
            let Ok(value) = i128::from_str_radix(&rest[2..len].replace('_', ""), radix) else {
                return self.error(format!("`{}` is not a number", &rest[..len]));
            };
            self.push(Token::Int(value));
            self.advance(len);
            return Ok(());
        }
        let mut len = digits(0, u8::is_ascii_digit);
        // In `items.0.1` the digits after a dot are an index.
        let follows_dot = matches!(self.tokens.last(), Some((Token::Op("."), _)));
        let mut is_float = false;
        if !follows_dot {
            if bytes.get(len) == Some(&b'.') && bytes.get(len + 1).is_some_and(u8::is_ascii_digit) {
                is_float = true;
                len += 1 + digits(len + 1, u8::is_ascii_digit);
            }
            if matches!(bytes.get(len), Some(b'e' | b'E')) {
                let sign = usize::from(matches!(bytes.get(len + 1), Some(b'+' | b'-')));
                if bytes.get(len + 1 + sign).is_some_and(u8::is_ascii_digit) {
                    is_float = true;
                    len += 1 + sign + digits(len + 1 + sign, u8::is_ascii_digit);
                }
            }
        }
        let text = rest[..len].replace('_', "");
        let token = if is_float {
            text.parse().ok().map(Token::Float)
        } else {
            text.parse().ok().map(Token::Int)
        };
        let Some(token) = token else {
            return self.error(format!("`{text}` is not a number that fits"));
        };
        self.push(token);
        self.advance(len);
        Ok(())
    }

    fn string(&mut self, quote: char) -> Result<(), TemplateError> {
        let body = &self.rest()[1..];
        let mut is_escaped = false;
        let Some(end) = body.find(|c: char| {
            let closes = c == quote && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            closes
        }) else {
            return self.error(format!("a string is not closed with `{quote}`"));
        };
        let Some(text) = unescape(&body[..end]) else {
            return self.error("a string has an escape that names no character");
        };
        self.push(Token::Str(text));
        self.advance(end + 2);
        Ok(())
    }
}

/// Returns the position of the next tag.
fn find_tag(text: &str) -> Option<usize> {
    text.as_bytes()
        .windows(2)
        .position(|pair| pair[0] == b'{' && matches!(pair[1], b'%' | b'{' | b'#'))
}

/// If `text` continues with ` NAME %}`: the length up to and including `%}`, and whether it is `-%}`.
fn raw_tag_len(text: &str, name: &str) -> Option<(usize, bool)> {
    let after_name = text.trim_start().strip_prefix(name)?.trim_start();
    let trims = after_name.starts_with('-');
    let is_signed = trims || (name == "endraw" && after_name.starts_with('+'));
    let after = after_name[usize::from(is_signed)..].strip_prefix("%}")?;
    Some((text.len() - after.len(), trims))
}

/// Resolves the escapes of a string literal as Python's `unicode_escape` does; `None` for one that names no character.
fn unescape(body: &str) -> Option<String> {
    let mut text = String::with_capacity(body.len());
    let mut rest = body;
    while let Some(backslash) = rest.find('\\') {
        text.push_str(&rest[..backslash]);
        rest = &rest[backslash + 1..];
        let escape = rest.chars().next()?;
        let mut len = escape.len_utf8();
        let simple = match escape {
            '\n' => None,
            '\\' | '\'' | '"' => Some(escape),
            'a' => Some('\x07'),
            'b' => Some('\x08'),
            'f' => Some('\x0c'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\x0b'),
            'x' | 'u' | 'U' => {
                let n_digits = match escape {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let digits = rest.get(1..1 + n_digits)?;
                len += n_digits;
                let is_hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
                Some(
                    is_hex
                        .then(|| u32::from_str_radix(digits, 16).ok().and_then(char::from_u32))
                        .flatten()?,
                )
            }
            '0'..='7' => {
                len = rest
                    .bytes()
                    .take(3)
                    .take_while(|b| (b'0'..=b'7').contains(b))
                    .count();
                Some(
                    u32::from_str_radix(&rest[..len], 8)
                        .ok()
                        .and_then(char::from_u32)?,
                )
            }
            'N' => return None,
            _ => {
                text.push('\\');
                Some(escape)
            }
        };
        text.extend(simple);
        rest = &rest[len..];
    }
    text.push_str(rest);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> String {
        tokenize(source)
            .unwrap()
            .into_iter()
            .map(|(token, _)| match token {
                Token::Text(text) => text,
                Token::BlockStart => "<".into(),
                Token::BlockEnd => ">".into(),
                _ => String::new(),
            })
            .collect()
    }

    #[test]
    fn blocks_take_their_line_away() {
        assert_eq!(texts("a\n  {% x %}\n  b"), "a\n<>  b");
        assert_eq!(texts("a  {% x %}b"), "a  <>b");
        assert_eq!(texts("a\n  {%+ x +%}\nb"), "a\n  <>\nb");
        assert_eq!(texts("a \n {%- x -%} \n b"), "a<>b");
        assert_eq!(texts("  {# c #}\nb"), "b");
        assert_eq!(texts("{% x %}\n  {% y %}"), "<><>");
    }

    #[test]
    fn raw_blocks_are_text() {
        assert_eq!(
            texts("{% raw %}\n{{ x }}{% y %}{%- endraw -%} z"),
            "\n{{ x }}{% y %}z"
        );
    }

    #[test]
    fn one_line_break_at_the_end_is_dropped() {
        assert_eq!(texts("a\r\n\n"), "a\n");
    }

    #[test]
    fn escapes_follow_python() {
        for (body, expected) in [
            (r"\n\x41\u00e9\101", Some("\nAéA")),
            (r"a\qb", Some(r"a\qb")),
            ("a\\\nb", Some("ab")),
            (r"\ud800", None),
            (r"\x4", None),
        ] {
            assert_eq!(unescape(body).as_deref(), expected, "{body}");
        }
    }

    #[test]
    fn errors_name_their_line() {
        for (source, line) in [
            ("a\n{{ 'x }}", 2),
            ("\n\n{% if", 3),
            ("{# a", 1),
            ("{{ a ) }}", 1),
        ] {
            let Err(TemplateError::Syntax { line: found, .. }) = tokenize(source) else {
                panic!("{source:?} was accepted");
            };
            assert_eq!(found, line, "{source:?}");
        }
    }
}
