//! JSON in both directions: reads the context, and writes Hugging Face's `tojson`.
//!
//! It is Python's `json.dumps`, not Jinja's own filter: nothing is escaped for HTML and the order of keys is kept.
//! Invariant: values that Python refuses to serialize (undefined values, generators) are refused here too.

use std::rc::Rc;

use super::{
    error::Fault,
    meter::{Meter, TextBuf},
    printer::float_repr,
    trust::is_role_name,
    value::Value,
};

/// Returns the value of a piece of JSON.
pub(super) fn from_json(json: &serde_json::Value, meter: &Rc<Meter>, depth: usize) -> Result<Value, Fault> {
    if depth > super::value::MAX_NESTING {
        return Err(Fault::Limit(super::error::TemplateLimit::Nesting(
            super::value::MAX_NESTING,
        )));
    }
    match json {
        serde_json::Value::Null => Ok(Value::None),
        serde_json::Value::Bool(value) => Ok(Value::Bool(*value)),
        serde_json::Value::Number(number) => Ok(match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::Int(i128::from(value)),
            (None, Some(value)) => Value::Int(i128::from(value)),
            (None, None) => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        }),
        serde_json::Value::String(text) => meter.text(text.as_str()),
        serde_json::Value::Array(items) => {
            let items: Result<Vec<Value>, Fault> = items
                .iter()
                .map(|item| from_json(item, meter, depth + 1))
                .collect();
            meter.list(items?)
        }
        serde_json::Value::Object(entries) => {
            let entries: Result<Vec<(Value, Value)>, Fault> = entries
                .iter()
                .map(|(key, value)| {
                    let value = match value.as_str() {
                        Some(role) if key == "role" && is_role_name(role) => meter.trusted_text(role)?,
                        _ => from_json(value, meter, depth + 1)?,
                    };
                    Ok((meter.text(key.as_str())?, value))
                })
                .collect();
            meter.dict(entries?)
        }
    }
}

/// The arguments of `tojson`.
#[derive(Debug)]
pub(super) struct JsonStyle {
    /// The text of one level of indentation; `None` for one line.
    pub(super) indent: Option<String>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
    pub(super) is_ascii_only: bool,
    pub(super) sorts_keys: bool,
}

/// Writes `value` as `json.dumps` does.
pub(super) fn write_json(
    value: &Value,
    style: &JsonStyle,
    meter: &Meter,
    out: &mut TextBuf,
    depth: usize,
) -> Result<(), Fault> {
    meter.burn(1)?;
    match value {
        Value::None => out.push_str("null"),
        Value::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Value::Int(value) => out.push_str(&value.to_string()),
        Value::Float(value) => out.push_str(&float_json(*value)),
        Value::Str(text) => write_string(&text.body, style, out),
        Value::List(seq) | Value::Tuple(seq) => {
            if seq.items.is_empty() {
                return out.push_str("[]");
            }
            out.push('[')?;
            for (index, item) in seq.items.iter().enumerate() {
                separate(index, style, out, depth + 1)?;
                write_json(item, style, meter, out, depth + 1)?;
            }
            close(']', style, out, depth)
        }
        Value::Dict(dict) => {
            if dict.entries.is_empty() {
                return out.push_str("{}");
            }
            let mut entries: Vec<(String, &Value)> = Vec::with_capacity(dict.entries.len());
            for (key, value) in &dict.entries {
                meter.burn_bytes(key.as_str().map_or(0, str::len))?;
                entries.push((json_key(key)?, value));
            }
            if style.sorts_keys {
                entries.sort_by(|(a, _), (b, _)| a.cmp(b));
            }
            out.push('{')?;
            for (index, (key, value)) in entries.into_iter().enumerate() {
                separate(index, style, out, depth + 1)?;
                write_string(&key, style, out)?;
                out.push_str(&style.key_separator)?;
                write_json(value, style, meter, out, depth + 1)?;
            }
            close('}', style, out, depth)
        }
        _ => Err(Fault::Type(format!(
            "Object of type {} is not JSON serializable",
            value.type_name()
        ))),
    }
}

fn separate(index: usize, style: &JsonStyle, out: &mut TextBuf, depth: usize) -> Result<(), Fault> {
    if index > 0 {
        out.push_str(&style.item_separator)?;
    }
    break_line(style, out, depth)
}

fn close(bracket: char, style: &JsonStyle, out: &mut TextBuf, depth: usize) -> Result<(), Fault> {
    break_line(style, out, depth)?;
    out.push(bracket)
}

fn break_line(style: &JsonStyle, out: &mut TextBuf, depth: usize) -> Result<(), Fault> {
    if let Some(indent) = &style.indent {
        out.push('\n')?;
        for _ in 0..depth {
            out.push_str(indent)?;
        }
    }
    Ok(())
}

fn json_key(key: &Value) -> Result<String, Fault> {
    Ok(match key {
        Value::Str(text) => text.body.to_string(),
        Value::None => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Int(value) => value.to_string(),
        Value::Float(value) => float_json(*value),
        _ => {
            return Err(Fault::Type(format!(
                "keys must be str, int, float, bool or None, not {}",
                key.type_name()
            )));
        }
    })
}

fn float_json(value: f64) -> String {
    match float_repr(value).as_str() {
        "nan" => "NaN".into(),
        "inf" => "Infinity".into(),
        "-inf" => "-Infinity".into(),
        finite => finite.into(),
    }
}

fn write_string(text: &str, style: &JsonStyle, out: &mut TextBuf) -> Result<(), Fault> {
    out.push('"')?;
    let needs_escape =
        |c: char| c < ' ' || c == '"' || c == '\\' || style.is_ascii_only && !(' '..='~').contains(&c);
    let mut rest = text;
    while let Some(at) = rest.find(needs_escape) {
        out.push_str(&rest[..at])?;
        let c = rest[at..].chars().next().expect("`find` points at a character");
        match c {
            '"' => out.push_str("\\\"")?,
            '\\' => out.push_str("\\\\")?,
            '\n' => out.push_str("\\n")?,
            '\r' => out.push_str("\\r")?,
            '\t' => out.push_str("\\t")?,
            '\x08' => out.push_str("\\b")?,
            '\x0c' => out.push_str("\\f")?,
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"))?;
                }
            }
        }
        rest = &rest[at + c.len_utf8()..];
    }
    out.push_str(rest)?;
    out.push('"')
}
