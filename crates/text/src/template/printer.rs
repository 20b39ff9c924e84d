//! [`Printer`]: values as Python's `str` and `repr` print them.
//!
//! Printing a namespace needs the interpreter's arena.

use std::{fmt::Write, rc::Rc};

use super::{
    error::{Fault, TemplateLimit},
    meter::{Meter, TextBuf},
    value::{LazyKind, MAX_NESTING, Namespace, Value},
};

/// Python's `str(value)` and `repr(value)`.
pub(super) struct Printer<'a> {
    pub(super) namespaces: &'a [Namespace],
    pub(super) meter: &'a Rc<Meter>,
}

impl Printer<'_> {
    pub(super) fn str(&self, value: &Value, out: &mut TextBuf) -> Result<(), Fault> {
        match value {
            Value::Str(text) => out.push_text(text),
            Value::Undefined(_) => Ok(()),
            _ => self.repr(value, out, 0),
        }
    }

    pub(super) fn to_text(&self, value: &Value) -> Result<Value, Fault> {
        if let Value::Str(_) = value {
            return Ok(value.clone());
        }
        let mut out = TextBuf::new(self.meter);
        self.str(value, &mut out)?;
        self.meter.text(out.into_string())
    }

    pub(super) fn repr(&self, value: &Value, out: &mut TextBuf, depth: usize) -> Result<(), Fault> {
        self.meter.burn(1)?;
        if depth > MAX_NESTING {
            return Err(Fault::Limit(TemplateLimit::Nesting(MAX_NESTING)));
        }
        match value {
            Value::Undefined(_) => out.push_str("Undefined"),
            Value::None => out.push_str("None"),
            Value::Bool(true) => out.push_str("True"),
            Value::Bool(false) => out.push_str("False"),
            Value::Int(value) => out.push_str(&value.to_string()),
            Value::Float(value) => out.push_str(&float_repr(*value)),
            Value::Str(text) => {
                if text.is_markup {
                    out.push_str("Markup(")?;
                }
                str_repr(&text.body, out)?;
                if text.is_markup { out.push(')') } else { Ok(()) }
            }
            Value::List(seq) => self.sequence("[", &seq.items, "]", out, depth),
            Value::Tuple(seq) => {
                let close = if seq.items.len() == 1 { ",)" } else { ")" };
                self.sequence("(", &seq.items, close, out, depth)
            }
            Value::Dict(dict) => {
                let entries = dict.entries.iter().map(|(key, value)| (key, value));
                self.mapping(entries, out, depth)
            }
            Value::Lazy(lazy) => match lazy.kind {
                LazyKind::Generator => out.push_str("<generator object>"),
                LazyKind::Range(start, stop, 1) => out.push_str(&format!("range({start}, {stop})")),
                LazyKind::Range(start, stop, step) => {
                    out.push_str(&format!("range({start}, {stop}, {step})"))
                }
                LazyKind::View(name) => {
                    out.push_str(name)?;
                    let items = lazy.peek().expect("a view keeps its items");
                    self.sequence("([", &items.items, "])", out, depth)
                }
            },
            Value::Namespace(index) => {
                out.push_str("<Namespace ")?;
                let attributes = self
                    .namespaces
                    .get(*index)
                    .map_or(&[][..], |namespace| &namespace.attributes);
                let mut keys = Vec::with_capacity(attributes.len());
                for (name, _) in attributes {
                    keys.push(self.meter.text(&**name)?);
                }
                self.mapping(
                    keys.iter().zip(attributes.iter().map(|(_, value)| value)),
                    out,
                    depth,
                )?;
                out.push('>')
            }
            Value::Macro(_) => out.push_str("<Macro>"),
            Value::Loop(_) => out.push_str("<LoopContext>"),
            Value::Function(_) => out.push_str("<function>"),
            Value::Method(_) => out.push_str("<built-in method>"),
        }
    }

    fn sequence(
        &self,
        open: &str,
        items: &[Value],
        close: &str,
        out: &mut TextBuf,
        depth: usize,
    ) -> Result<(), Fault> {
        out.push_str(open)?;
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_str(", ")?;
            }
            self.repr(item, out, depth + 1)?;
        }
        out.push_str(close)
    }

    fn mapping<'v>(
        &self,
        entries: impl Iterator<Item = (&'v Value, &'v Value)>,
        out: &mut TextBuf,
        depth: usize,
    ) -> Result<(), Fault> {
        out.push('{')?;
        for (index, (key, value)) in entries.enumerate() {
            if index > 0 {
                out.push_str(", ")?;
            }
            self.repr(key, out, depth + 1)?;
            out.push_str(": ")?;
            self.repr(value, out, depth + 1)?;
        }
        out.push('}')
    }
}

/// Python's `repr` of a float: the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.into();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').expect("`{:e}` writes an exponent");
    let exponent: i32 = exponent.parse().expect("`{:e}` writes a decimal exponent");
    if (-4..16).contains(&exponent) {
        let text = value.to_string();
        return if text.contains('.') { text } else { text + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// Python's `repr` of a string.
fn str_repr(text: &str, out: &mut TextBuf) -> Result<(), Fault> {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push(quote)?;
    let mut escape = String::new();
    // The text from here on is still to be written, as it is.
    let mut plain = 0;
    for (at, c) in text.char_indices() {
        let escaped = match c {
            '\\' => "\\\\",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            _ if c == quote => {
                escape.clear();
                escape.extend(['\\', c]);
                &escape
            }
            _ if !is_printable(c) => {
                escape.clear();
                let written = match u32::from(c) {
                    code @ ..0x100 => write!(escape, "\\x{code:02x}"),
                    code @ 0x100..0x1_0000 => write!(escape, "\\u{code:04x}"),
                    code => write!(escape, "\\U{code:08x}"),
                };
                written.expect("writing to a string does not fail");
                &escape
            }
            _ => continue,
        };
        out.push_str(&text[plain..at])?;
        out.push_str(escaped)?;
        plain = at + c.len_utf8();
    }
    out.push_str(&text[plain..])?;
    out.push(quote)
}

/// Returns whether Python prints the character unescaped; close to `str.isprintable`, from the tables of the
/// standard library.
fn is_printable(c: char) -> bool {
    if c == ' ' {
        return true;
    }
    // Combining marks are escaped by `escape_debug` only at the start of a string.
    !(c.is_control()
        || c.is_whitespace()
        || matches!(
            u32::from(c),
            0xad | 0x600..=0x605 | 0x200b..=0x200f | 0x202a..=0x202e | 0x2060..=0x206f | 0xe000..=0xf8ff | 0xfeff
                | 0xfff9..=0xffff | 0xe_0000..=0xe_0fff | 0xf_0000..
        ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_python_prints_them() {
        for (value, expected) in [
            (1.0, "1.0"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (-0.0, "-0.0"),
            (1.5e100, "1.5e+100"),
        ] {
            assert_eq!(float_repr(value), expected);
        }
    }
}
