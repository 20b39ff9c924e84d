//! Jinja filters that format text for pages: wrapping, file sizes, HTML attributes and text, and values for display.
//!
//! Chat templates hardly use them. Invariant: results match Jinja, and count against the limits while they grow.

use std::cmp::Ordering;

use super::truthy;
use crate::template::{
    arguments::Arguments, error::Fault, interpreter::Interpreter, markup::escape_html, meter::TextBuf,
    methods::width_of, value::Value,
};

/// Longest character reference without its `&` and `;`.
const MAX_REFERENCE_BYTES: usize = 8;

/// Columns that Python's `pprint` fills.
const PRINT_WIDTH: usize = 80;

pub(super) fn wordwrap(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
    let [width, breaks_words, wrap, breaks_hyphens] = args.bind(
        "wordwrap",
        ["width", "break_long_words", "wrapstring", "break_on_hyphens"],
    )?;
    let width = width.map_or(Ok(79), |width| width_of(Some(&width)))?.max(1);
    let is_on = |value: Option<Value>| value.is_none_or(|value| value.is_truthy());
    let (breaks_words, breaks_hyphens) = (is_on(breaks_words), is_on(breaks_hyphens));
    let wrap = match wrap {
        None | Some(Value::None) => this.meter.text("\n")?,
        Some(wrap) => this.printer().to_text(&wrap)?,
    };
    let wrap = wrap.as_str().unwrap_or_default();
    let text = this.printer().to_text(value)?;
    let text = text.as_str().unwrap_or_default();
    this.meter.burn_bytes(text.len())?;
    let mut out = TextBuf::new(&this.meter);
    for (index, line) in text.lines().enumerate() {
        if index > 0 {
            out.push_str(wrap)?;
        }
        for (index, line) in wrapped(line, width, breaks_words, breaks_hyphens)
            .iter()
            .enumerate()
        {
            if index > 0 {
                out.push_str(wrap)?;
            }
            out.push_str(line)?;
        }
    }
    this.finish(out)
}

/// Wraps a line at a width. Source: Python's `textwrap.TextWrapper`.
fn wrapped(line: &str, width: usize, breaks_words: bool, breaks_hyphens: bool) -> Vec<String> {
    let mut chunks: Vec<&str> = chunks_of(line, breaks_hyphens);
    chunks.reverse();
    // The rest of a long word is visited once for each line, so only its beginning may be counted.
    let n_chars = |text: &str| text.chars().take(width.saturating_add(1)).count();
    let is_space = |text: &str| text.trim().is_empty();
    let mut lines: Vec<String> = Vec::new();
    while !chunks.is_empty() {
        if !lines.is_empty() && chunks.last().is_some_and(|chunk| is_space(chunk)) {
            chunks.pop();
        }
        let (mut current, mut length): (Vec<&str>, usize) = (Vec::new(), 0);
        while let Some(&chunk) = chunks.last().filter(|chunk| length + n_chars(chunk) <= width) {
            length += n_chars(chunk);
            current.push(chunk);
            chunks.pop();
        }
        if let Some(&chunk) = chunks.last().filter(|chunk| n_chars(chunk) > width) {
            if breaks_words {
                let left = width - length;
                let place = |n: usize| chunk.char_indices().nth(n).map_or(chunk.len(), |(at, _)| at);
                let mut end = place(left);
                let hyphen = chunk[..end].rfind('-').filter(|&at| at > 0 && breaks_hyphens);
                if let Some(at) = hyphen
                    && chunk[..at].chars().any(|c| c != '-')
                {
                    end = at + 1;
                }
                current.push(&chunk[..end]);
                chunks.pop();
                if end < chunk.len() {
                    chunks.push(&chunk[end..]);
                }
            } else if current.is_empty() {
                current.push(chunk);
                chunks.pop();
            }
        }
        if current.last().is_some_and(|chunk| is_space(chunk)) {
            current.pop();
        }
        if !current.is_empty() {
            lines.push(current.concat());
        }
    }
    lines
}

/// Splits a line into words and the space between them, and words at hyphens between letters.
fn chunks_of(line: &str, breaks_hyphens: bool) -> Vec<&str> {
    let mut chunks = Vec::new();
    let mut start = 0;
    let letters: Vec<(usize, char)> = line.char_indices().collect();
    let is_letter = |index: Option<usize>| {
        let at = index.and_then(|index| letters.get(index));
        at.is_some_and(|(_, c)| c.is_alphabetic() || *c == '_')
    };
    for (index, &(at, c)) in letters.iter().enumerate().skip(1) {
        let before = letters[index - 1].1;
        let is_border = c.is_whitespace() != before.is_whitespace();
        let is_behind_hyphen = breaks_hyphens
            && before == '-'
            && is_letter(index.checked_sub(2))
            && (is_letter(index.checked_sub(3))
                || index >= 4 && letters[index - 3].1 == '-' && is_letter(Some(index - 4)))
            && is_letter(Some(index))
            && (is_letter(Some(index + 1))
                || letters.get(index + 1).is_some_and(|(_, c)| *c == '-') && is_letter(Some(index + 2)));
        if is_border || is_behind_hyphen {
            chunks.push(&line[start..at]);
            start = at;
        }
    }
    if start < line.len() {
        chunks.push(&line[start..]);
    }
    chunks
}

pub(super) fn filesizeformat(
    this: &mut Interpreter<'_>,
    value: &Value,
    args: &Arguments,
) -> Result<Value, Fault> {
    const DECIMAL: [&str; 8] = ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"];
    const BINARY: [&str; 8] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"];
    let [binary] = args.bind("filesizeformat", ["binary"])?;
    let (base, units) = if truthy(binary.as_ref()) {
        (1024.0_f64, BINARY)
    } else {
        (1000.0, DECIMAL)
    };
    let parsed = value.as_float().or_else(|| value.as_str()?.trim().parse().ok());
    let Some(n_bytes) = parsed else {
        return Err(Fault::type_error("filesizeformat needs a number"));
    };
    let text = if n_bytes == 1.0 {
        "1 Byte".to_owned()
    } else if n_bytes < base {
        format!("{} Bytes", n_bytes.trunc())
    } else {
        let mut unit = base;
        let mut name = units[0];
        for next in &units[1..] {
            if n_bytes < unit * base {
                break;
            }
            unit *= base;
            name = next;
        }
        format!("{:.1} {name}", n_bytes / unit)
    };
    this.meter.text(text)
}

pub(super) fn xmlattr(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
    let [spaced] = args.bind("xmlattr", ["autospace"])?;
    let Value::Dict(attributes) = value else {
        return Err(Fault::type_error("xmlattr needs a mapping"));
    };
    let mut out = TextBuf::new(&this.meter);
    let has_space = spaced.is_none_or(|spaced| spaced.is_truthy());
    for (name, value) in &attributes.entries {
        if matches!(value, Value::None | Value::Undefined(_)) {
            continue;
        }
        let name = this.printer().to_text(name)?;
        let name = name.as_str().unwrap_or_default();
        if name.contains(|c: char| c.is_whitespace() || matches!(c, '/' | '>' | '=')) {
            return Err(Fault::type_error("an attribute's name has an invalid character"));
        }
        if has_space || out.len() > 0 {
            out.push(' ')?;
        }
        escape_html(name, &mut out)?;
        out.push_str("=\"")?;
        let value = this.printer().to_text(value)?;
        escape_html(value.as_str().unwrap_or_default(), &mut out)?;
        out.push('"')?;
    }
    this.finish(out)
}

pub(super) fn striptags(this: &mut Interpreter<'_>, value: &Value, _: &Arguments) -> Result<Value, Fault> {
    let text = this.printer().to_text(value)?;
    let text = text.as_str().unwrap_or_default();
    this.meter.burn_bytes(text.len())?;
    this.meter.check_room(text.len().saturating_mul(2))?;
    let plain = without(&without(text, "<!--", "-->"), "<", ">");
    let words: Vec<&str> = plain.split_whitespace().collect();
    this.meter.text(unescaped(&words.join(" ")))
}

/// Removes two marks and the text between them.
fn without(text: &str, open: &str, close: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(open) {
        let Some(length) = rest[start + open.len()..].find(close) else {
            break;
        };
        plain.push_str(&rest[..start]);
        rest = &rest[start + open.len() + length + close.len()..];
    }
    plain + rest
}

/// Replaces the common character references of HTML.
fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('&') {
        plain.push_str(&rest[..start]);
        rest = &rest[start..];
        let mut behind = rest.bytes().skip(1).take(MAX_REFERENCE_BYTES + 1);
        let name = behind.position(|byte| byte == b';').map(|n| &rest[1..=n]);
        let number = name.and_then(|name| name.strip_prefix('#')).and_then(|number| {
            match number.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16).ok(),
                None => number.parse().ok(),
            }
        });
        let character = match name {
            Some("lt") => Some('<'),
            Some("gt") => Some('>'),
            Some("amp") => Some('&'),
            Some("quot") => Some('"'),
            Some("apos") => Some('\''),
            Some("nbsp") => Some('\u{a0}'),
            _ => number.and_then(char::from_u32),
        };
        let n_read = if let (Some(c), Some(name)) = (character, name) {
            plain.push(c);
            name.len() + 2
        } else {
            plain.push('&');
            1
        };
        rest = &rest[n_read..];
    }
    plain + rest
}

pub(super) fn pprint(this: &mut Interpreter<'_>, value: &Value, _: &Arguments) -> Result<Value, Fault> {
    let mut out = TextBuf::new(&this.meter);
    print(this, value, 0, 0, &mut out)?;
    this.finish(out)
}

/// Writes a value as Python's `pprint` does: on one line if it fits, else one item a line; mappings are sorted by their keys.
fn print(
    this: &Interpreter<'_>,
    value: &Value,
    indent: usize,
    n_behind: usize,
    out: &mut TextBuf,
) -> Result<(), Fault> {
    let value = sorted(this, value)?;
    let mut line = TextBuf::new(&this.meter);
    this.printer().repr(&value, &mut line, 0)?;
    let line = line.into_string();
    let (open, close) = match &value {
        Value::List(_) => ('[', "]"),
        Value::Tuple(items) if items.items.len() == 1 => ('(', ",)"),
        Value::Tuple(_) => ('(', ")"),
        Value::Dict(_) => ('{', "}"),
        _ => return out.push_str(&line),
    };
    if line.chars().count() + indent + n_behind <= PRINT_WIDTH {
        return out.push_str(&line);
    }
    out.push(open)?;
    let mut write = |index: usize, n_items: usize, key: Option<&Value>, item: &Value| -> Result<(), Fault> {
        if index > 0 {
            out.push_str(",\n")?;
            out.push_repeated(' ', indent + 1)?;
        }
        let mut n_key = 0;
        if let Some(key) = key {
            let mut text = TextBuf::new(&this.meter);
            this.printer().repr(key, &mut text, 0)?;
            let text = text.into_string();
            n_key = text.chars().count() + 2;
            out.push_str(&text)?;
            out.push_str(": ")?;
        }
        let n_behind = if index + 1 == n_items {
            n_behind + close.len()
        } else {
            1
        };
        print(this, item, indent + 1 + n_key, n_behind, out)
    };
    match &value {
        Value::Dict(dict) => {
            let n_items = dict.entries.len();
            for (index, (key, item)) in dict.entries.iter().enumerate() {
                write(index, n_items, Some(key), item)?;
            }
        }
        Value::List(items) | Value::Tuple(items) => {
            let n_items = items.items.len();
            for (index, item) in items.items.iter().enumerate() {
                write(index, n_items, None, item)?;
            }
        }
        _ => {}
    }
    out.push_str(close)
}

/// Counts the comparisons of a sort before it begins: a sort cannot stop, and a comparison that fails halfway gives no order.
fn burn_sorting(this: &Interpreter<'_>, entries: &[(Value, Value)]) -> Result<(), Fault> {
    fn burn(this: &Interpreter<'_>, key: &Value, n_comparisons: usize) -> Result<(), Fault> {
        this.meter.burn(n_comparisons)?;
        match key {
            Value::Str(text) => (this.meter).burn_bytes(text.body.len().saturating_mul(n_comparisons)),
            Value::Tuple(items) => (items.items.iter()).try_for_each(|item| burn(this, item, n_comparisons)),
            _ => Ok(()),
        }
    }
    let n_comparisons = entries.len().checked_ilog2().unwrap_or(0) as usize;
    if n_comparisons == 0 {
        return Ok(());
    }
    (entries.iter()).try_for_each(|(key, _)| burn(this, key, n_comparisons))
}

/// Orders the keys of mappings by their kind, as Python's `pprint` does with the names of their types, then by their value. Numbers are one
/// kind. It is total, unlike Python's own order.
fn key_order(a: &Value, b: &Value) -> Ordering {
    fn kind(key: &Value) -> u8 {
        match key {
            Value::None => 0,
            Value::Bool(_) | Value::Int(_) | Value::Float(_) => 1,
            Value::Str(_) => 2,
            Value::Tuple(_) => 3,
            _ => 4,
        }
    }
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => a.body.cmp(&b.body),
        (Value::Tuple(a), Value::Tuple(b)) => {
            let mut pairs = a.items.iter().zip(&b.items);
            let different = pairs.find_map(|(a, b)| Some(key_order(a, b)).filter(|order| order.is_ne()));
            different.unwrap_or_else(|| a.items.len().cmp(&b.items.len()))
        }
        (a, b) if kind(a) == 1 && kind(b) == 1 => {
            let float = |key: &Value| key.as_float().unwrap_or(f64::NAN);
            // Distinct integers may be one float.
            (float(a).total_cmp(&float(b))).then_with(|| a.as_int().cmp(&b.as_int()))
        }
        (a, b) => kind(a).cmp(&kind(b)),
    }
}

/// Sorts the mappings in a value by their keys.
fn sorted(this: &Interpreter<'_>, value: &Value) -> Result<Value, Fault> {
    let all = |items: &[Value]| {
        items
            .iter()
            .map(|item| sorted(this, item))
            .collect::<Result<Vec<Value>, Fault>>()
    };
    Ok(match value {
        Value::Dict(dict) => {
            let mut entries = Vec::with_capacity(dict.entries.len());
            for (key, item) in &dict.entries {
                entries.push((key.clone(), sorted(this, item)?));
            }
            burn_sorting(this, &entries)?;
            entries.sort_by(|(a, _), (b, _)| key_order(a, b));
            this.meter.dict(entries)?
        }
        Value::List(items) => this.meter.list(all(&items.items)?)?,
        Value::Tuple(items) => this.meter.tuple(all(&items.items)?)?,
        other => other.clone(),
    })
}
