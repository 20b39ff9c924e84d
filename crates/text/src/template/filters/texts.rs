//! Filters that lay out or encode text, and Hugging Face's `tojson`.
//!
//! Each makes a new text of a length that the template chooses. Invariant: the text is counted while it grows, and a fill
//! is counted before it is made.

use super::truthy;
use crate::template::{
    arguments::Arguments,
    error::Fault,
    interpreter::Interpreter,
    json::{JsonStyle, write_json},
    meter::TextBuf,
    methods::{center_left, width_of},
    value::Value,
};

pub(super) fn indent(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"])?;
    let (fill, n_fill) = match &width {
        None => (" ", 4),
        Some(Value::Str(text)) => (&*text.body, 1),
        width => (" ", width_of(width.as_ref())?),
    };
    this.meter.check_room(n_fill.saturating_mul(fill.len()))?;
    let fill = fill.repeat(n_fill);
    let Some(text) = value.as_str() else {
        return Err(Fault::Type(format!(
            "'{}' object cannot be indented",
            value.type_name()
        )));
    };
    let mut out = TextBuf::new(&this.meter);
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            out.push('\n')?;
        }
        let is_indented = if index == 0 {
            truthy(first.as_ref())
        } else {
            truthy(blank.as_ref()) || !line.is_empty()
        };
        if is_indented {
            out.push_str(&fill)?;
        }
        out.push_str(line)?;
    }
    this.finish(out)
}

pub(super) fn center(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
    let [width] = args.bind("center", ["width"])?;
    let width = match &width {
        None => 80,
        width => width_of(width.as_ref())?,
    };
    let text = this.printer().to_text(value)?;
    let text = text.as_str().unwrap_or_default();
    let missing = width.saturating_sub(text.chars().count());
    let before = center_left(missing, width);
    let mut out = TextBuf::new(&this.meter);
    out.push_repeated(' ', before)?;
    out.push_str(text)?;
    out.push_repeated(' ', missing - before)?;
    this.finish(out)
}

pub(super) fn truncate(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
    let [length, kills_words, end, leeway] =
        args.bind("truncate", ["length", "killwords", "end", "leeway"])?;
    let or = |value: Option<&Value>, default| value.map_or(Ok(default), |value| width_of(Some(value)));
    let (length, leeway) = (or(length.as_ref(), 255)?, or(leeway.as_ref(), 5)?);
    let end = match &end {
        None => this.meter.text("...")?,
        Some(end) => this.printer().to_text(end)?,
    };
    let end = end.as_str().unwrap_or_default();
    let text = this.printer().to_text(value)?;
    let full = text.as_str().unwrap_or_default();
    if full.chars().count() <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let n_kept = length
        .checked_sub(end.chars().count())
        .ok_or_else(|| Fault::type_error("expected length to be at least that of the end"))?;
    let cut = full.char_indices().nth(n_kept).map_or(full.len(), |(at, _)| at);
    let mut kept = &full[..cut];
    if !truthy(kills_words.as_ref()) {
        kept = kept.rsplit_once(' ').map_or(kept, |(before, _)| before);
    }
    let mut out = TextBuf::new(&this.meter);
    out.push_str(kept)?;
    out.push_str(end)?;
    this.finish(out)
}

pub(super) fn urlencode(this: &mut Interpreter<'_>, value: &Value, _: &Arguments) -> Result<Value, Fault> {
    let text = this.printer().to_text(value)?;
    let mut out = TextBuf::new(&this.meter);
    for byte in text.as_str().unwrap_or_default().bytes() {
        if byte.is_ascii_alphanumeric() || b"_.-~/".contains(&byte) {
            out.push(char::from(byte))?;
        } else {
            out.push_str(&format!("%{byte:02X}"))?;
        }
    }
    this.finish(out)
}

pub(super) fn tojson(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
    let [ensure_ascii, indent, separators, sort_keys] =
        args.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = match &indent {
        None | Some(Value::None) => None,
        Some(Value::Str(text)) => Some(text.body.to_string()),
        width => {
            let width = width_of(width.as_ref())?;
            this.meter.check_room(width)?;
            Some(" ".repeat(width))
        }
    };
    let (mut item_separator, mut key_separator) = (
        (if indent.is_some() { "," } else { ", " }).to_owned(),
        ": ".to_owned(),
    );
    if let Some(separators) = separators.filter(|value| !matches!(value, Value::None)) {
        let pair = separators.iterate(&this.meter)?;
        let [Value::Str(item), Value::Str(key)] = &pair.items[..] else {
            return Err(Fault::type_error("separators must be two strings"));
        };
        item_separator = item.body.to_string();
        key_separator = key.body.to_string();
    }
    let style = JsonStyle {
        indent,
        item_separator,
        key_separator,
        is_ascii_only: truthy(ensure_ascii.as_ref()),
        sorts_keys: truthy(sort_keys.as_ref()),
    };
    let mut out = TextBuf::new(&this.meter);
    write_json(value, &style, &this.meter, &mut out, 0)?;
    this.finish(out)
}
