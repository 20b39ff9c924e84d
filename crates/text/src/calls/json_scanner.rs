//! [`JsonScanner`]: checks a JSON value that arrives in pieces and passes it on as it arrives.
//!
//! A call's arguments must be released before they are complete, and every format contains JSON. Invariant: released text is the
//! beginning of valid JSON, and all of it is valid once the scanner is done. Models write raw line breaks into strings, which are
//! escaped, and lone surrogates, which are replaced.

use std::fmt::Write as _;

use serde_json::Value;

/// Largest nesting depth of lists and objects; less than `serde_json` reads.
const MAX_NESTING: usize = 100;

/// Bytes of a number or a word such as `true`.
const MAX_SCALAR_BYTES: usize = 512;

/// Replaces a lone surrogate.
const LONE: &str = "\\ufffd";

/// State of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// The value continues.
    More,
    /// The value is complete.
    Done,
    /// This is not JSON.
    Invalid,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    CommaOrEnd,
    Text,
    Escape,
    /// Hexadecimal digits: how many are still missing, and their value so far.
    Hex(u8, u16),
    /// After a high surrogate: the backslash of the next escape, then its letter.
    LowBackslash,
    LowEscape,
    Scalar,
}

/// Reads one value.
#[derive(Clone, Debug)]
pub(super) struct JsonScanner {
    /// `true` for each open object, `false` for each open list.
    frames: Vec<bool>,
    expect: Expect,
    is_key: bool,
    /// Digits of the current escape.
    hex: String,
    /// Digits of a high surrogate that waits for its low surrogate.
    high: Option<String>,
    scalar: String,
}

impl JsonScanner {
    pub(super) fn new() -> Self {
        Self {
            frames: Vec::new(),
            expect: Expect::Value,
            is_key: false,
            hex: String::new(),
            high: None,
            scalar: String::new(),
        }
    }

    /// Continues to read; returns the number of bytes that belong to the value and appends them to `out`. A number at the top is
    /// complete only when something else follows, or at the end of the text (`is_last`).
    pub(super) fn feed(&mut self, text: &str, is_last: bool, out: &mut String) -> (usize, Scan) {
        for (at, c) in text.char_indices() {
            if self.expect == Expect::Scalar {
                if c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.') {
                    self.scalar.push(c);
                    if self.scalar.len() > MAX_SCALAR_BYTES {
                        return (at, Scan::Invalid);
                    }
                    continue;
                }
                match self.end_scalar(out) {
                    Scan::More => {}
                    end => return (at, end),
                }
            }
            match self.take(c, out) {
                Scan::More => {}
                Scan::Done => return (at + c.len_utf8(), Scan::Done),
                Scan::Invalid => return (at, Scan::Invalid),
            }
        }
        if is_last && self.expect == Expect::Scalar {
            return (text.len(), self.end_scalar(out));
        }
        (text.len(), Scan::More)
    }

    fn end_scalar(&mut self, out: &mut String) -> Scan {
        if serde_json::from_str::<Value>(&self.scalar).is_err() {
            return Scan::Invalid;
        }
        out.push_str(&self.scalar);
        self.scalar.clear();
        self.end_value()
    }

    fn end_value(&mut self) -> Scan {
        self.expect = Expect::CommaOrEnd;
        if self.frames.is_empty() {
            Scan::Done
        } else {
            Scan::More
        }
    }

    fn take(&mut self, c: char, out: &mut String) -> Scan {
        let is_in_text = matches!(
            self.expect,
            Expect::Text | Expect::Escape | Expect::Hex(..) | Expect::LowBackslash | Expect::LowEscape
        );
        if !is_in_text && matches!(c, ' ' | '\n' | '\r' | '\t') {
            out.push(c);
            return Scan::More;
        }
        match (self.expect, c) {
            (Expect::Value | Expect::ValueOrEnd, '{' | '[') => {
                if self.frames.len() == MAX_NESTING {
                    return Scan::Invalid;
                }
                self.frames.push(c == '{');
                self.expect = if c == '{' {
                    Expect::KeyOrEnd
                } else {
                    Expect::ValueOrEnd
                };
            }
            (Expect::Value | Expect::ValueOrEnd, '"') => self.begin_text(false),
            (Expect::Key | Expect::KeyOrEnd, '"') => self.begin_text(true),
            (Expect::ValueOrEnd, ']') | (Expect::KeyOrEnd, '}') => return self.close(c, out),
            (Expect::CommaOrEnd, ']' | '}') if self.frames.last() == Some(&(c == '}')) => {
                return self.close(c, out);
            }
            (Expect::Value | Expect::ValueOrEnd, c) if c.is_ascii_alphanumeric() || c == '-' => {
                self.expect = Expect::Scalar;
                self.scalar.push(c);
                return Scan::More;
            }
            (Expect::Colon, ':') => self.expect = Expect::Value,
            (Expect::CommaOrEnd, ',') => {
                let is_object = self.frames.last() == Some(&true);
                self.expect = if is_object { Expect::Key } else { Expect::Value };
            }
            (Expect::Text, '"') => {
                out.push('"');
                if self.is_key {
                    self.expect = Expect::Colon;
                    return Scan::More;
                }
                return self.end_value();
            }
            (Expect::Text, '\\') => {
                self.expect = Expect::Escape;
                return Scan::More;
            }
            (Expect::Text, c) if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
                return Scan::More;
            }
            (Expect::Text, _) => {}
            (Expect::Escape | Expect::LowEscape, 'u') => {
                self.expect = Expect::Hex(4, 0);
                self.hex.clear();
                return Scan::More;
            }
            (Expect::Escape, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => {
                out.push('\\');
                self.expect = Expect::Text;
            }
            (Expect::LowBackslash, '\\') => {
                self.expect = Expect::LowEscape;
                return Scan::More;
            }
            (Expect::LowBackslash | Expect::LowEscape, c) => {
                let is_escape = self.expect == Expect::LowEscape;
                self.expect = if is_escape { Expect::Escape } else { Expect::Text };
                self.high = None;
                out.push_str(LONE);
                return self.take(c, out);
            }
            (Expect::Hex(n_left, unit), c) if c.is_ascii_hexdigit() => {
                let unit = unit << 4 | c.to_digit(16).unwrap_or_default() as u16;
                self.hex.push(c);
                if n_left > 1 {
                    self.expect = Expect::Hex(n_left - 1, unit);
                } else {
                    self.end_unit(unit, out);
                }
                return Scan::More;
            }
            _ => return Scan::Invalid,
        }
        out.push(c);
        Scan::More
    }

    fn begin_text(&mut self, is_key: bool) {
        self.is_key = is_key;
        self.expect = Expect::Text;
    }

    /// Ends an escaped UTF-16 unit and replaces a lone surrogate.
    fn end_unit(&mut self, unit: u16, out: &mut String) {
        let (is_high, is_low) = ((0xd800..0xdc00).contains(&unit), (0xdc00..0xe000).contains(&unit));
        self.expect = Expect::Text;
        match self.high.take() {
            Some(high) if is_low => {
                let _ = write!(out, "\\u{high}\\u{}", self.hex);
                return;
            }
            Some(_) => out.push_str(LONE),
            None => {}
        }
        if is_high {
            self.high = Some(std::mem::take(&mut self.hex));
            self.expect = Expect::LowBackslash;
        } else if is_low {
            out.push_str(LONE);
        } else {
            let _ = write!(out, "\\u{}", self.hex);
        }
    }

    fn close(&mut self, c: char, out: &mut String) -> Scan {
        out.push(c);
        self.frames.pop();
        self.end_value()
    }
}

/// Result of reading a JSON string at the beginning of a text.
pub(super) enum Lexeme {
    /// The string has not ended yet.
    Wait,
    /// There is no string.
    Invalid,
    /// The string and its length in bytes, quotes included.
    Text(String, usize),
}

/// Reads a string of at most `max_bytes`.
pub(super) fn string_lexeme(text: &str, max_bytes: usize) -> Lexeme {
    if text.is_empty() {
        return Lexeme::Wait;
    }
    if !text.starts_with('"') {
        return Lexeme::Invalid;
    }
    let mut scanner = JsonScanner::new();
    let mut json = String::new();
    match scanner.feed(text, false, &mut json) {
        (n, Scan::Done) => match serde_json::from_str(&json) {
            Ok(value) => Lexeme::Text(value, n),
            Err(_) => Lexeme::Invalid,
        },
        (n, Scan::More) if n <= max_bytes => Lexeme::Wait,
        _ => Lexeme::Invalid,
    }
}
