//! Converts values in Python's notation, or in Gemma's, to JSON.
//!
//! Values are read when they are complete: a value in single quotes cannot be passed on as it arrives. Invariant: the
//! output is JSON.

use std::fmt::Write as _;

use serde_json::Value;

/// Selects the notation of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Python: single or double quotes, `True`, `None`, dictionaries, tuples.
    Python,
    /// Texts between marks such as `<|"|>`, and keys without any.
    Marked(&'static str),
}

/// Holds the value at the start of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Literal {
    /// The value has not ended yet.
    Wait,
    /// There is no value.
    Invalid,
    /// The value as JSON, and the number of bytes read.
    Json(String, usize),
}

/// Largest nesting depth of lists and objects.
const MAX_NESTING: usize = 64;

/// Reads a value at the beginning of `text`.
pub(super) fn literal(text: &str, dialect: Dialect) -> Literal {
    let mut reader = Reader {
        text,
        at: 0,
        dialect,
        json: String::new(),
    };
    match reader.value(0) {
        Ok(()) => Literal::Json(reader.json, reader.at),
        Err(Stop::Wait) => Literal::Wait,
        Err(Stop::Invalid) => Literal::Invalid,
    }
}

enum Stop {
    Wait,
    Invalid,
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    dialect: Dialect,
    json: String,
}

impl<'t> Reader<'t> {
    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        self.at += super::space_len(self.rest());
    }

    fn peek(&self) -> Result<char, Stop> {
        self.rest().chars().next().ok_or(Stop::Wait)
    }

    fn value(&mut self, depth: usize) -> Result<(), Stop> {
        if depth > MAX_NESTING {
            return Err(Stop::Invalid);
        }
        self.skip_space();
        match self.peek()? {
            '[' => self.list(']', depth),
            '(' if self.dialect == Dialect::Python => self.list(')', depth),
            '{' => self.object(depth),
            _ => match self.string()? {
                Some(text) => {
                    let _ = write!(self.json, "{}", Value::from(text));
                    Ok(())
                }
                None => self.scalar(),
            },
        }
    }

    fn list(&mut self, end: char, depth: usize) -> Result<(), Stop> {
        self.at += 1;
        self.json.push('[');
        let mut n_items = 0;
        loop {
            self.skip_space();
            if self.peek()? == end {
                break;
            }
            if n_items > 0 {
                self.expect(',')?;
                self.skip_space();
                if self.peek()? == end {
                    break;
                }
                self.json.push_str(", ");
            }
            self.value(depth + 1)?;
            n_items += 1;
        }
        self.at += 1;
        self.json.push(']');
        Ok(())
    }

    fn object(&mut self, depth: usize) -> Result<(), Stop> {
        self.at += 1;
        self.json.push('{');
        let mut n_members = 0;
        loop {
            self.skip_space();
            if self.peek()? == '}' {
                break;
            }
            if n_members > 0 {
                self.expect(',')?;
                self.skip_space();
                if self.peek()? == '}' {
                    break;
                }
                self.json.push_str(", ");
            }
            let key = match self.string()? {
                Some(key) => key,
                None if self.dialect == Dialect::Python => return Err(Stop::Invalid),
                None => {
                    let end = self.rest().find([':', ',', '}', '{']).ok_or(Stop::Wait)?;
                    let key = self.rest()[..end].trim().to_owned();
                    self.at += end;
                    key
                }
            };
            self.skip_space();
            self.expect(':')?;
            let _ = write!(self.json, "{}: ", Value::from(key));
            self.value(depth + 1)?;
            n_members += 1;
        }
        self.at += 1;
        self.json.push('}');
        Ok(())
    }

    fn expect(&mut self, c: char) -> Result<(), Stop> {
        if self.peek()? != c {
            return Err(Stop::Invalid);
        }
        self.at += c.len_utf8();
        Ok(())
    }

    /// Reads a text, if one begins here.
    fn string(&mut self) -> Result<Option<String>, Stop> {
        match self.dialect {
            Dialect::Marked(mark) => match super::begins_with(self.rest(), mark, false) {
                super::Found::No => Ok(None),
                super::Found::Unknown => Err(Stop::Wait),
                super::Found::Yes => {
                    let start = self.at + mark.len();
                    let end = self.text[start..].find(mark).ok_or(Stop::Wait)?;
                    self.at = start + end + mark.len();
                    Ok(Some(self.text[start..start + end].to_owned()))
                }
            },
            Dialect::Python => match self.peek()? {
                quote @ ('"' | '\'') => self.quoted(quote).map(Some),
                _ => Ok(None),
            },
        }
    }

    fn quoted(&mut self, quote: char) -> Result<String, Stop> {
        let mut text = String::new();
        let start = self.at + 1;
        let mut chars = self.text[start..].char_indices();
        // A high surrogate, if it was the last unit.
        let mut next_high: Option<u32> = None;
        while let Some((offset, c)) = chars.next() {
            let high = next_high.take();
            if c == quote {
                self.at = start + offset + 1;
                return Ok(text);
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            let (_, escape) = chars.next().ok_or(Stop::Wait)?;
            let unescaped = match escape {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'a' => '\u{7}',
                'b' => '\u{8}',
                'v' => '\u{b}',
                'f' => '\u{c}',
                '0' => '\0',
                '\n' => continue,
                'x' | 'u' | 'U' => {
                    let n_digits = match escape {
                        'x' => 2,
                        'u' => 4,
                        _ => 8,
                    };
                    let mut unit = 0_u32;
                    for _ in 0..n_digits {
                        let (_, digit) = chars.next().ok_or(Stop::Wait)?;
                        unit = unit << 4 | digit.to_digit(16).ok_or(Stop::Invalid)?;
                    }
                    match (char::from_u32(unit), high) {
                        // Models write surrogate pairs, as in JSON.
                        (None, Some(high)) if (0xdc00..0xe000).contains(&unit) => {
                            text.pop();
                            char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + (unit - 0xdc00))
                                .unwrap_or(char::REPLACEMENT_CHARACTER)
                        }
                        (None, _) if (0xd800..0xe000).contains(&unit) => {
                            next_high = (unit < 0xdc00).then_some(unit);
                            char::REPLACEMENT_CHARACTER
                        }
                        (None, _) => return Err(Stop::Invalid),
                        (Some(c), _) => c,
                    }
                }
                '\\' | '\'' | '"' => escape,
                // Python keeps invalid escapes unchanged.
                other => {
                    text.push('\\');
                    other
                }
            };
            text.push(unescaped);
        }
        Err(Stop::Wait)
    }

    fn scalar(&mut self) -> Result<(), Stop> {
        let rest = self.rest();
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_');
        let end = rest.find(|c| !is_part(c)).ok_or(Stop::Wait)?;
        let word = &rest[..end];
        let json = match word {
            "True" | "true" => "true",
            "False" | "false" => "false",
            "None" | "null" => "null",
            number if serde_json::from_str::<serde_json::Number>(number).is_ok() => number,
            _ => return Err(Stop::Invalid),
        };
        self.json.push_str(json);
        self.at += end;
        Ok(())
    }
}
