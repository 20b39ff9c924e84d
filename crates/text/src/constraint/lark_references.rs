//! Finds the references of a grammar in Lark's notation.
//!
//! The compiler parses that notation itself and exposes no list of rules. Invariant: every name that the compiler finds is found here,
//! so no reference is missed; false positives only raise the count.
//!
//! Source: the tokens of `llguidance`, `src/lark/lexer.rs`.

use serde_json::Value;

use super::chains::{Longest, NamedReferences};

/// Counts the string literals and regular expressions of a grammar, each of which is a terminal.
pub(super) fn n_terminals(grammar: &str) -> usize {
    let mut scanner = Scanner { rest: grammar };
    let tokens = std::iter::from_fn(|| scanner.next());
    tokens.filter(|token| matches!(token, Token::Terminal)).count()
}

/// Finds the longest path along the references of a grammar; `of_schema` measures the schemas in it.
pub(super) fn longest(grammar: &str, of_schema: &mut impl FnMut(&Value) -> Longest) -> Longest {
    let mut found = NamedReferences::default();
    let mut scanner = Scanner { rest: grammar };
    // Tokens before the first rule belong to no name.
    let mut of = found.node("");
    // The names of a line, each with its level. The first names a new rule if a colon follows.
    let mut line: Vec<(usize, usize)> = Vec::new();
    let (mut n_open, mut n_brackets) = (0_usize, 0_usize);
    let mut schemas = Longest::default();
    let (mut n_rules, mut n_levels, mut is_nested) = (0, 0, false);
    loop {
        let token = scanner.next();
        n_levels = n_levels.max(n_open + 1);
        match token {
            Some(Token::Name(name)) => line.push((found.node(name), n_open + 1)),
            Some(Token::Colon) => {
                if !line.is_empty() {
                    (of, _) = line.remove(0);
                }
                n_rules += 1;
                (n_open, n_brackets) = (0, 0);
            }
            Some(Token::Newline) | None => {
                // Attributes and parameters of a rule may span lines.
                if token.is_none() || n_brackets == 0 {
                    for (node, level) in line.drain(..) {
                        found.references().refer(of, node, level);
                    }
                }
                if token.is_none() {
                    break;
                }
            }
            Some(Token::Open(byte)) => {
                n_open += 1;
                n_brackets += usize::from(byte != b'(');
            }
            Some(Token::Close(byte)) => {
                n_open = n_open.saturating_sub(1);
                n_brackets = n_brackets.saturating_sub(usize::from(byte != b')'));
            }
            Some(Token::Json(value)) => {
                let own = of_schema(&value);
                schemas.n_nodes = schemas.n_nodes.max(own.n_nodes);
                schemas.n_levels = schemas.n_levels.max(own.n_levels);
            }
            Some(Token::Nested) => is_nested = true,
            Some(Token::Terminal | Token::Other) => {}
        }
    }
    let mut longest = found.references().longest();
    if is_nested {
        // A nested grammar may repeat the names of rules. Counting all rules in sequence misses none.
        longest.n_nodes = longest.n_nodes.max(n_rules);
        longest.n_levels = longest.n_levels.max(n_rules * n_levels);
    }
    Longest {
        n_nodes: longest.n_nodes + schemas.n_nodes,
        n_levels: longest.n_levels + schemas.n_levels,
    }
}

enum Token<'t> {
    /// Name of a rule or a terminal.
    Name(&'t str),
    Colon,
    Newline,
    Open(u8),
    Close(u8),
    Json(Value),
    /// A string literal or a regular expression.
    Terminal,
    /// Start of a nested grammar.
    Nested,
    Other,
}

struct Scanner<'t> {
    rest: &'t str,
}

impl<'t> Scanner<'t> {
    /// Reads the next token; `None` at the end, and at an error of the compiler's lexer.
    fn next(&mut self) -> Option<Token<'t>> {
        let bytes = self.rest.as_bytes();
        let first = *bytes.first()?;
        let second = bytes.get(1).copied().unwrap_or_default();
        let (n_bytes, token) = match first {
            b'#' => (self.until_line_end(), Token::Other),
            b'/' if second == b'/' => (self.until_line_end(), Token::Other),
            b'/' => (self.regex()?, Token::Terminal),
            b'"' => (self.string()?, Token::Terminal),
            b'\n' => (1, Token::Newline),
            b'%' => return Some(self.keyword()),
            b':' if second == b':' => (2, Token::Other),
            b':' => (1, Token::Colon),
            b'(' | b'[' | b'{' => (1, Token::Open(first)),
            b')' | b']' | b'}' => (1, Token::Close(first)),
            b'<' => (self.special().unwrap_or(1), Token::Other),
            b'@' => (1 + count(&bytes[1..], is_reference_byte), Token::Other),
            b'0'..=b'9' => (number(bytes), Token::Other),
            b'a'..=b'z' => (count(bytes, is_rule_byte), Token::Other),
            b'A'..=b'Z' => (count(bytes, is_terminal_byte), Token::Other),
            b'_' => match second {
                b'a'..=b'z' => (1 + count(&bytes[1..], is_rule_byte), Token::Other),
                b'A'..=b'Z' => (1 + count(&bytes[1..], is_terminal_byte), Token::Other),
                _ => (1, Token::Other),
            },
            _ => (self.rest.chars().next()?.len_utf8(), Token::Other),
        };
        let text = &self.rest[..n_bytes];
        self.rest = &self.rest[n_bytes..];
        let is_name = text.bytes().any(|byte| byte.is_ascii_alphabetic())
            && matches!(first, b'a'..=b'z' | b'A'..=b'Z' | b'_');
        Some(if is_name { Token::Name(text) } else { token })
    }

    fn until_line_end(&self) -> usize {
        self.rest.find('\n').unwrap_or(self.rest.len())
    }

    /// Finds the end of a regular expression and its flags; `None` if it does not end.
    fn regex(&self) -> Option<usize> {
        let end = self.end_of_quoted(b'/')?;
        let flags = &self.rest.as_bytes()[end..];
        Some(end + count(flags, |byte| b"imslux".contains(&byte)))
    }

    fn string(&self) -> Option<usize> {
        let end = self.end_of_quoted(b'"')?;
        Some(end + usize::from(self.rest.as_bytes().get(end) == Some(&b'i')))
    }

    fn end_of_quoted(&self, quote: u8) -> Option<usize> {
        let bytes = self.rest.as_bytes();
        let mut at = 1;
        loop {
            match bytes.get(at)? {
                b'\\' => at += 2,
                byte if *byte == quote => return Some(at + 1),
                _ => at += 1,
            }
        }
    }

    /// Finds the end of a `<name>`.
    fn special(&self) -> Option<usize> {
        let end = self.rest[1..].find(|c: char| c == '<' || c == '>' || c.is_whitespace())? + 1;
        (self.rest.as_bytes()[end] == b'>' && end > 1).then_some(end + 1)
    }

    /// Reads a keyword, with the JSON after it if it takes any.
    fn keyword(&mut self) -> Token<'t> {
        self.rest = &self.rest[1..];
        if let Some(behind) = self.rest.strip_prefix("lark") {
            self.rest = behind;
            return Token::Nested;
        }
        for name in ["json", "llguidance", "regex"] {
            let Some(behind) = self.rest.strip_prefix(name) else {
                continue;
            };
            let mut values = serde_json::Deserializer::from_str(behind).into_iter::<Value>();
            if let Some(Ok(value)) = values.next() {
                self.rest = &behind[values.byte_offset()..];
                return Token::Json(value);
            }
        }
        Token::Other
    }
}

/// Returns the length of a number as the compiler reads it, so that no name begins inside it.
fn number(bytes: &[u8]) -> usize {
    let digits = |from: usize| count(&bytes[from..], |byte| byte.is_ascii_digit());
    if bytes[0] == b'0' && matches!(bytes.get(1), Some(b'x' | b'X')) {
        let n_digits = count(&bytes[2..], |byte| byte.is_ascii_hexdigit());
        if n_digits > 0 {
            return 2 + n_digits;
        }
    }
    let mut n_bytes = digits(0);
    if bytes.get(n_bytes) == Some(&b'.') {
        n_bytes += 1 + digits(n_bytes + 1);
    }
    if matches!(bytes.get(n_bytes), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(n_bytes + 1), Some(b'+' | b'-')));
        let n_digits = bytes
            .get(n_bytes + 1 + sign..)
            .map_or(0, |_| digits(n_bytes + 1 + sign));
        if n_digits > 0 {
            n_bytes += 1 + sign + n_digits;
        }
    }
    n_bytes
}

fn count(bytes: &[u8], is_in: impl Fn(u8) -> bool) -> usize {
    bytes.iter().take_while(|&&byte| is_in(byte)).count()
}

fn is_rule_byte(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-'
}

fn is_terminal_byte(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-'
}

fn is_reference_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(grammar: &str, expected: usize) {
        let of_schema = Longest {
            n_nodes: 100,
            n_levels: 100,
        };
        let found = longest(grammar, &mut |_| of_schema);
        assert_eq!(found.n_nodes, expected, "{grammar}");
    }

    #[test]
    fn references_are_found_as_the_compiler_finds_them() {
        check("start: \"a\"", 1);
        check("start: a\na: b\nb: \"c\"", 3);
        check("?start: !a \n!?a: _b\n_b.2: C\nC: /x/", 4);
        // Names end where the compiler's lexer ends them.
        check("start: aB\na: \"x\"\nB: c\nc: \"x\"", 3);
        check("start: \"x\"ia\na: b\nb: \"x\"", 3);
        check("start: /x/ia\na: \"x\"\nia: \"x\"", 2);
        check("start: a~1..2b\na: \"x\"\nb: c\nc: \"x\"", 3);
        check("start: a~1e5b\nb: c\nc: \"x\"", 3);
        check("start: a{0x1f}g\na: \"x\"\ng: \"x\"", 2);
        check("start: <a>b\na: c\nc: d\nd: \"x\"\nb: \"x\"", 3);
        // Comments, string literals and expressions hold no references.
        check("start: \"a \\\" b\" # b\n// b\nb: c\nc: /b \\/ b/", 2);
        // Attributes on lines of their own, and rules of one line each.
        check("start[capture,\n stop=\"x\"]: a\na: \"x\"", 2);
        check("start: \"a\"\n  | b\nb: \"c\"", 2);
        // Schemas add their own depth.
        check("start: a\na: %json {\"a\": \"b: c\"} b\nb: \"x\"", 103);
        // A nested grammar blurs which references belong to which rule.
        check("start: a\na: %lark { start: b\n b: \"x\" } c\nc: \"y\"", 5);
    }
}
