//! Jinja's filters, and Hugging Face's `tojson`: one row per filter.
//!
//! Short filters are in their row; the others are in files by subject. `urlize` and `random` are missing: a template that uses one gets
//! an error that names it.

mod numbers;
mod pages;
mod sequences;
mod texts;

use std::cmp::Ordering;

use self::{
    numbers::{int, round},
    pages::{filesizeformat, pprint, striptags, wordwrap, xmlattr},
    sequences::{batch, dictsort, extreme, groupby, join, map, select, slice, sort, sum, unique},
    texts::{center, indent, tojson, truncate, urlencode},
};
use super::{
    arguments::Arguments,
    error::Fault,
    format,
    interpreter::Interpreter,
    markup::escape_html,
    meter::TextBuf,
    methods::{capitalize, items_view, replace, strip_text, title},
    value::{LazyKind, Value},
};

/// A filter: the interpreter, the filtered value, the arguments.
pub(super) type FilterFn = for<'t> fn(&mut Interpreter<'t>, &Value, &Arguments) -> Result<Value, Fault>;

/// Returns the filter of that name.
pub(super) fn find(name: &str) -> Option<FilterFn> {
    Some(match name {
        "abs" => |_, value, _| match (value, value.as_int()) {
            (_, Some(value)) => Ok(Value::Int(value.saturating_abs())),
            (Value::Float(value), None) => Ok(Value::Float(value.abs())),
            _ => Err(Fault::Type(format!(
                "bad operand type for abs(): '{}'",
                value.type_name()
            ))),
        },
        "attr" => |this, value, args| match args.bind("attr", ["name"])? {
            [Some(Value::Str(name))] => this.attribute(value, &name.body),
            _ => Err(Fault::type_error("attr needs the name of an attribute")),
        },
        "batch" => batch,
        "capitalize" => |this, value, _| convert(this, value, capitalize),
        "center" => center,
        "count" | "length" => |_, value, _| Ok(Value::Int(value.len()? as i128)),
        "d" | "default" => |this, value, args| {
            let [default, boolean] = args.bind("default", ["default_value", "boolean"])?;
            let is_replaced = matches!(value, Value::Undefined(_))
                || boolean.is_some_and(|boolean| boolean.is_truthy()) && !value.is_truthy();
            match (is_replaced, default) {
                (false, _) => Ok(value.clone()),
                (true, Some(default)) => Ok(default),
                (true, None) => this.meter.text(""),
            }
        },
        "dictsort" => dictsort,
        "e" | "escape" | "forceescape" => |this, value, _| {
            if let Value::Str(text) = value
                && text.is_markup
            {
                return Ok(value.clone());
            }
            let plain = this.printer().to_text(value)?;
            let mut out = TextBuf::new(&this.meter);
            escape_html(plain.as_str().unwrap_or_default(), &mut out)?;
            this.meter.marked_text(out.into_string(), true)
        },
        "filesizeformat" => filesizeformat,
        "pprint" => pprint,
        "striptags" => striptags,
        "wordwrap" => wordwrap,
        "xmlattr" => xmlattr,
        "first" => |this, value, _| {
            let items = value.iterate(&this.meter)?;
            Ok(items.items.first().cloned().unwrap_or_else(|| empty("first")))
        },
        "last" => |this, value, _| {
            if let Value::Lazy(lazy) = value
                && lazy.kind == LazyKind::Generator
            {
                return Err(Fault::type_error("'generator' object is not reversible"));
            }
            let items = value.iterate(&this.meter)?;
            Ok(items.items.last().cloned().unwrap_or_else(|| empty("last")))
        },
        "float" => |_, value, args| {
            let [default] = args.bind("float", ["default"])?;
            let parsed = value
                .as_float()
                .or_else(|| value.as_str().and_then(|text| text.trim().parse().ok()));
            Ok(parsed.map_or_else(|| default.unwrap_or(Value::Float(0.0)), Value::Float))
        },
        "format" => |this, value, args| {
            let template = this.printer().to_text(value)?;
            let args = this.meter.tuple(args.positional.clone())?;
            let Value::Str(template) = &template else {
                unreachable!("`to_text` makes strings")
            };
            let mut out = TextBuf::new(&this.meter);
            format::printf(template, &args, &this.printer(), &mut out)?;
            this.finish(out)
        },
        "groupby" => groupby,
        "indent" => indent,
        "int" => int,
        "items" => |this, value, _| {
            if let Value::Undefined(_) = value {
                return this.meter.lazy(LazyKind::Generator, Vec::new());
            }
            let items = items_view(this, value)?.iterate(&this.meter)?;
            this.meter.lazy(LazyKind::Generator, items.items.clone())
        },
        "join" => join,
        "list" => |this, value, _| {
            let items = value.iterate(&this.meter)?;
            this.meter.list(items.items.clone())
        },
        "lower" => |this, value, _| convert(this, value, str::to_lowercase),
        "upper" => |this, value, _| convert(this, value, str::to_uppercase),
        "title" => |this, value, _| convert(this, value, |text| title(text, true)),
        "map" => map,
        "max" => |this, value, args| extreme(this, value, args, Ordering::Greater),
        "min" => |this, value, args| extreme(this, value, args, Ordering::Less),
        "reject" => |this, value, args| select(this, value, args, false, false),
        "rejectattr" => |this, value, args| select(this, value, args, true, false),
        "select" => |this, value, args| select(this, value, args, false, true),
        "selectattr" => |this, value, args| select(this, value, args, true, true),
        "replace" => |this, value, args| {
            let [old, new, count] = args.bind("replace", ["old", "new", "count"])?;
            let text = this.printer().to_text(value)?;
            let [Some(old), Some(new)] = [old, new] else {
                return Err(Fault::type_error("replace needs what to replace and with what"));
            };
            let old = this.printer().to_text(&old)?;
            let new = this.printer().to_text(&new)?;
            let count = count
                .and_then(|count| count.as_int())
                .and_then(|count| usize::try_from(count).ok());
            let (Value::Str(text), Value::Str(old), Value::Str(new)) = (&text, &old, &new) else {
                unreachable!("`to_text` makes strings")
            };
            replace(this, text, &old.body, new, count)
        },
        "reverse" => |this, value, _| {
            if let Value::Str(text) = value {
                this.meter.check_room(text.body.len())?;
                return this.meter.text(text.body.chars().rev().collect::<String>());
            }
            let mut items = value.iterate(&this.meter)?.items.clone();
            items.reverse();
            this.meter.lazy(LazyKind::Generator, items)
        },
        "round" => round,
        "safe" => |this, value, _| {
            let text = this.printer().to_text(value)?;
            let Value::Str(text) = &text else {
                unreachable!("`to_text` makes strings")
            };
            this.meter.part_of(text, &text.body, true)
        },
        "slice" => slice,
        "sort" => sort,
        "string" => |this, value, _| this.printer().to_text(value),
        "sum" => sum,
        "tojson" => tojson,
        "trim" => |this, value, args| {
            let [chars] = args.bind("trim", ["chars"])?;
            let chars = match &chars {
                None | Some(Value::None) => None,
                Some(chars) => Some(
                    chars
                        .as_str()
                        .ok_or_else(|| Fault::type_error("strip arg must be None or str"))?,
                ),
            };
            let text = this.printer().to_text(value)?;
            let Value::Str(text) = &text else {
                unreachable!("`to_text` makes strings")
            };
            this.meter
                .burn_bytes(text.body.len().saturating_mul(chars.map_or(1, str::len)))?;
            this.meter
                .part_of(text, strip_text(&text.body, chars, true, true), text.is_markup)
        },
        "truncate" => truncate,
        "unique" => unique,
        "urlencode" => urlencode,
        "wordcount" => |this, value, _| {
            let text = this.printer().to_text(value)?;
            Ok(Value::Int(
                text.as_str()
                    .unwrap_or_default()
                    .split(|c: char| c != '_' && !c.is_alphanumeric())
                    .filter(|word| !word.is_empty())
                    .count() as i128,
            ))
        },
        _ => return None,
    })
}

fn empty(filter: &str) -> Value {
    Value::undefined(format!("No {filter} item, sequence was empty."))
}

fn convert(this: &Interpreter<'_>, value: &Value, convert: fn(&str) -> String) -> Result<Value, Fault> {
    let text = this.printer().to_text(value)?;
    let Value::Str(text) = &text else {
        unreachable!("`to_text` makes strings")
    };
    this.meter.check_room(text.body.len().saturating_mul(3))?;
    this.meter
        .derived_text(convert(&text.body), text.is_markup, &[text])
}

fn truthy(value: Option<&Value>) -> bool {
    value.is_some_and(Value::is_truthy)
}
