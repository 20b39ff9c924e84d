//! Jinja's filters, and Hugging Face's `tojson`.
//!
//! One row per filter. Left out are those that make HTML or belong to a web page (`urlize`, `xmlattr`, `striptags`,
//! `filesizeformat`, `pprint`, `random`, `wordwrap`): a template that uses one gets an error that names it.

use std::cmp::Ordering;

use super::{
    error::Fault,
    evaluate::{Arguments, escape_html},
    format,
    interpreter::Interpreter,
    json::{JsonStyle, write_json},
    meter::TextBuf,
    methods::{capitalize, center_left, items_view, replace, strip_text, title, width_of},
    predicates,
    value::{LazyKind, Value, check_hashable},
};

/// A filter: the interpreter, what is filtered, the arguments.
pub(super) type FilterFn = for<'t> fn(&mut Interpreter<'t>, &Value, &Arguments) -> Result<Value, Fault>;

/// The filter of that name.
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

/// Follows `a.b.0` from each of the items that filters such as `map(attribute=…)` look at.
fn follow(this: &Interpreter<'_>, value: &Value, path: &Value) -> Result<Value, Fault> {
    let Some(path) = path.as_str() else {
        return this.item(value, path);
    };
    let mut value = value.clone();
    for part in path.split('.') {
        let index = match part.parse::<i128>() {
            Ok(index) => Value::Int(index),
            Err(_) => this.meter.text(part)?,
        };
        value = this.item(&value, &index)?;
    }
    Ok(value)
}

/// The key that a filter compares by: the attribute, if one is named, in lower case unless case matters.
fn sort_key(
    this: &Interpreter<'_>,
    value: &Value,
    attribute: Option<&Value>,
    is_case_sensitive: bool,
) -> Result<Value, Fault> {
    let key = match attribute {
        None | Some(Value::None) => value.clone(),
        Some(path) => follow(this, value, path)?,
    };
    match &key {
        Value::Str(text) if !is_case_sensitive => this.meter.text(text.body.to_lowercase()),
        _ => Ok(key),
    }
}

/// Sorts by keys, stable; stops at the first pair that has no order.
fn sort_by_keys(
    this: &Interpreter<'_>,
    mut keyed: Vec<(Value, Value)>,
    is_reversed: bool,
) -> Result<Vec<Value>, Fault> {
    let mut failure = None;
    keyed.sort_by(|(a, _), (b, _)| {
        if failure.is_some() {
            return Ordering::Equal;
        }
        let order = match a.order(b, "<", &this.meter) {
            Ok(order) => order.unwrap_or(Ordering::Equal),
            Err(fault) => {
                failure = Some(fault);
                Ordering::Equal
            }
        };
        if is_reversed { order.reverse() } else { order }
    });
    match failure {
        Some(fault) => Err(fault),
        None => Ok(keyed.into_iter().map(|(_, value)| value).collect()),
    }
}

fn truthy(value: Option<&Value>) -> bool {
    value.is_some_and(Value::is_truthy)
}

fn sort(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
    let [reverse, case_sensitive, attribute] =
        args.bind("sort", ["reverse", "case_sensitive", "attribute"])?;
    let mut keyed = Vec::new();
    for item in &value.iterate(&this.meter)?.items {
        let key = match attribute.as_ref().and_then(Value::as_str) {
            // Several attributes with commas sort by the first, then the next.
            Some(paths) if paths.contains(',') => {
                let mut keys = Vec::new();
                for path in paths.split(',') {
                    let path = this.meter.text(path.trim())?;
                    keys.push(sort_key(
                        this,
                        item,
                        Some(&path),
                        truthy(case_sensitive.as_ref()),
                    )?);
                }
                this.meter.tuple(keys)?
            }
            _ => sort_key(this, item, attribute.as_ref(), truthy(case_sensitive.as_ref()))?,
        };
        keyed.push((key, item.clone()));
    }
    let sorted = sort_by_keys(this, keyed, truthy(reverse.as_ref()))?;
    this.meter.list(sorted)
}

fn dictsort(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
    let [case_sensitive, by, reverse] = args.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
    let Value::Dict(dict) = value else {
        return Err(Fault::Type(format!(
            "'{}' object is not a mapping",
            value.type_name()
        )));
    };
    let is_by_value = match by.as_ref().map(Value::as_str) {
        None | Some(Some("key")) => false,
        Some(Some("value")) => true,
        _ => {
            return Err(Fault::type_error(
                "You can only sort by either \"key\" or \"value\"",
            ));
        }
    };
    let mut keyed = Vec::with_capacity(dict.entries.len());
    for (key, value) in &dict.entries {
        let by = if is_by_value { value } else { key };
        let by = sort_key(this, by, None, truthy(case_sensitive.as_ref()))?;
        keyed.push((by, this.meter.tuple(vec![key.clone(), value.clone()])?));
    }
    let sorted = sort_by_keys(this, keyed, truthy(reverse.as_ref()))?;
    this.meter.list(sorted)
}

fn groupby(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
    let [attribute, default, case_sensitive] =
        args.bind("groupby", ["attribute", "default", "case_sensitive"])?;
    let attribute = attribute.ok_or_else(|| Fault::type_error("groupby needs an attribute"))?;
    let mut keyed = Vec::new();
    for item in &value.iterate(&this.meter)?.items {
        let mut key = follow(this, item, &attribute)?;
        if let (Value::Undefined(_), Some(default)) = (&key, &default) {
            key = default.clone();
        }
        let by = sort_key(this, &key, None, truthy(case_sensitive.as_ref()))?;
        keyed.push((by.clone(), this.meter.tuple(vec![by, key, item.clone()])?));
    }
    let mut groups: Vec<(Value, Value, Vec<Value>)> = Vec::new();
    for row in sort_by_keys(this, keyed, false)? {
        let row = row.iterate(&this.meter)?;
        let [by, key, item] = &row.items[..] else {
            unreachable!("rows have three parts")
        };
        match groups.last_mut() {
            Some((last, _, items)) if last.equals(by, &this.meter)? => items.push(item.clone()),
            _ => groups.push((by.clone(), key.clone(), vec![item.clone()])),
        }
    }
    let mut pairs = Vec::with_capacity(groups.len());
    for (_, key, items) in groups {
        let items = this.meter.list(items)?;
        pairs.push(this.meter.tuple(vec![key, items])?);
    }
    this.meter.list(pairs)
}

fn unique(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
    let [case_sensitive, attribute] = args.bind("unique", ["case_sensitive", "attribute"])?;
    let mut seen: Vec<Value> = Vec::new();
    let mut kept = Vec::new();
    'items: for item in &value.iterate(&this.meter)?.items {
        let key = sort_key(this, item, attribute.as_ref(), truthy(case_sensitive.as_ref()))?;
        check_hashable(&key)?;
        for other in &seen {
            if other.equals(&key, &this.meter)? {
                continue 'items;
            }
        }
        seen.push(key);
        kept.push(item.clone());
    }
    this.meter.lazy(LazyKind::Generator, kept)
}

fn extreme(
    this: &mut Interpreter<'_>,
    value: &Value,
    args: &Arguments,
    wanted: Ordering,
) -> Result<Value, Fault> {
    let [case_sensitive, attribute] = args.bind("min and max", ["case_sensitive", "attribute"])?;
    let mut best: Option<(Value, Value)> = None;
    for item in &value.iterate(&this.meter)?.items {
        let key = sort_key(this, item, attribute.as_ref(), truthy(case_sensitive.as_ref()))?;
        let is_better = match &best {
            None => true,
            Some((best, _)) => key.order(best, "<", &this.meter)? == Some(wanted),
        };
        if is_better {
            best = Some((key, item.clone()));
        }
    }
    Ok(best.map_or_else(
        || Value::undefined("No aggregated item, sequence was empty."),
        |(_, item)| item,
    ))
}

fn map(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
    let mut mapped = Vec::new();
    if !value.is_truthy() {
        return this.meter.lazy(LazyKind::Generator, mapped);
    }
    let items = value.iterate(&this.meter)?;
    if args.positional.is_empty() {
        let mut args = Arguments {
            positional: Vec::new(),
            keyword: args.keyword.clone(),
        };
        let attribute = args.take_keyword("attribute");
        let default = args.take_keyword("default");
        let Some(attribute) = attribute.filter(|_| args.keyword.is_empty()) else {
            return Err(Fault::type_error("map requires a filter argument"));
        };
        for item in &items.items {
            let found = follow(this, item, &attribute)?;
            mapped.push(match (&found, &default) {
                (Value::Undefined(_), Some(default)) => default.clone(),
                _ => found,
            });
        }
    } else {
        let (function, rest) = filter_argument(args)?;
        for item in &items.items {
            mapped.push(function(this, item, &rest)?);
        }
    }
    this.meter.lazy(LazyKind::Generator, mapped)
}

/// The filter that `map` names, and its arguments.
fn filter_argument(args: &Arguments) -> Result<(FilterFn, Arguments), Fault> {
    let name = args.positional[0]
        .as_str()
        .ok_or_else(|| Fault::type_error("map needs the name of a filter"))?;
    let function = find(name).ok_or_else(|| Fault::Type(format!("No filter named '{name}'")))?;
    Ok((
        function,
        Arguments {
            positional: args.positional[1..].to_vec(),
            keyword: args.keyword.clone(),
        },
    ))
}

fn select(
    this: &mut Interpreter<'_>,
    value: &Value,
    args: &Arguments,
    by_attribute: bool,
    keeps: bool,
) -> Result<Value, Fault> {
    let mut rest = args.positional.iter();
    let attribute = if by_attribute {
        Some(
            rest.next()
                .ok_or_else(|| Fault::type_error("Missing parameter for attribute name"))?,
        )
    } else {
        None
    };
    let predicate = match rest.next() {
        None => None,
        Some(name) => {
            let name = name
                .as_str()
                .ok_or_else(|| Fault::type_error("select needs the name of a test"))?;
            Some(predicates::find(name).ok_or_else(|| Fault::Type(format!("No test named '{name}'")))?)
        }
    };
    let rest = Arguments::of(rest.as_slice());
    let mut kept = Vec::new();
    if !value.is_truthy() {
        return this.meter.lazy(LazyKind::Generator, kept);
    }
    for item in &value.iterate(&this.meter)?.items {
        this.meter.burn(1)?;
        let tested = match attribute {
            Some(attribute) => follow(this, item, attribute)?,
            None => item.clone(),
        };
        let holds = match predicate {
            Some(predicate) => predicate(this, &tested, &rest)?,
            None => tested.is_truthy(),
        };
        if holds == keeps {
            kept.push(item.clone());
        }
    }
    this.meter.lazy(LazyKind::Generator, kept)
}

fn join(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
    let [separator, attribute] = args.bind("join", ["d", "attribute"])?;
    let separator = match &separator {
        Some(separator) => this.printer().to_text(separator)?,
        None => this.meter.text("")?,
    };
    let mut out = TextBuf::new(&this.meter);
    for (index, item) in value.iterate(&this.meter)?.items.iter().enumerate() {
        if index > 0 {
            this.printer().str(&separator, &mut out)?;
        }
        match &attribute {
            Some(attribute) => {
                let item = follow(this, item, attribute)?;
                this.printer().str(&item, &mut out)?;
            }
            None => this.printer().str(item, &mut out)?,
        }
    }
    this.finish(out)
}

fn sum(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
    let [attribute, start] = args.bind("sum", ["attribute", "start"])?;
    let mut total = start.unwrap_or(Value::Int(0));
    for item in &value.iterate(&this.meter)?.items {
        let item = match &attribute {
            None | Some(Value::None) => item.clone(),
            Some(attribute) => follow(this, item, attribute)?,
        };
        total = this.binary(super::ast::BinaryOp::Add, &total, &item)?;
    }
    Ok(total)
}

fn batch(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
    let [size, fill] = args.bind("batch", ["linecount", "fill_with"])?;
    let size = width_of(size.as_ref())?.max(1);
    let mut batches = Vec::new();
    for batch in value.iterate(&this.meter)?.items.chunks(size) {
        let mut batch = batch.to_vec();
        if let Some(fill) = &fill {
            this.meter.check_room(size.saturating_mul(size_of::<Value>()))?;
            batch.resize(size, fill.clone());
        }
        batches.push(this.meter.list(batch)?);
    }
    this.meter.lazy(LazyKind::Generator, batches)
}

fn slice(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
    let [n, fill] = args.bind("slice", ["slices", "fill_with"])?;
    let n = width_of(n.as_ref())?.max(1);
    this.meter.check_room(n.saturating_mul(size_of::<Value>()))?;
    let items = value.iterate(&this.meter)?;
    let (per_slice, with_extra) = (items.items.len() / n, items.items.len() % n);
    let mut slices = Vec::new();
    let mut start = 0;
    for index in 0..n {
        let end = start + per_slice + usize::from(index < with_extra);
        let mut part = items.items[start..end].to_vec();
        if let (Some(fill), true) = (&fill, index >= with_extra) {
            part.push(fill.clone());
        }
        slices.push(this.meter.list(part)?);
        start = end;
    }
    this.meter.lazy(LazyKind::Generator, slices)
}

fn indent(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
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

fn int(_: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
    let [default, base] = args.bind("int", ["default", "base"])?;
    let base = base.and_then(|base| base.as_int()).unwrap_or(10);
    let parsed = match value {
        Value::Str(text) => {
            let text = text.body.trim().replace('_', "");
            let radix = u32::try_from(base).ok().filter(|base| (2..=36).contains(base));
            radix
                .and_then(|radix| i128::from_str_radix(strip_radix(&text, radix), radix).ok())
                .or_else(|| text.parse::<f64>().ok().and_then(float_to_int))
        }
        Value::Float(value) => float_to_int(*value),
        _ => value.as_int(),
    };
    Ok(parsed.map_or_else(|| default.unwrap_or(Value::Int(0)), Value::Int))
}

fn strip_radix(text: &str, radix: u32) -> &str {
    let prefixes = match radix {
        16 => ["0x", "0X"],
        8 => ["0o", "0O"],
        2 => ["0b", "0B"],
        _ => return text,
    };
    prefixes
        .iter()
        .find_map(|prefix| text.strip_prefix(prefix))
        .unwrap_or(text)
}

fn float_to_int(value: f64) -> Option<i128> {
    (value.abs() < 1e38).then_some(value as i128)
}

fn round(_: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
    let [precision, method] = args.bind("round", ["precision", "method"])?;
    let precision = precision.map_or(Some(0), |precision| precision.as_int());
    let precision = precision
        .filter(|precision| (-300..=300).contains(precision))
        .ok_or_else(|| Fault::type_error("the precision must be an integer of at most 300"))?;
    let number = value
        .as_float()
        .ok_or_else(|| Fault::Type(format!("type {} cannot be rounded", value.type_name())))?;
    let scale = 10f64.powi(precision as i32);
    let rounded = match method.as_ref().map(Value::as_str) {
        // Decimal digits decide, and a tie goes to the even one, as in Python.
        None | Some(Some("common")) if precision >= 0 => format!("{number:.0$}", precision as usize)
            .parse()
            .unwrap_or(number),
        None | Some(Some("common")) => (number * scale).round_ties_even() / scale,
        Some(Some("ceil")) => (number * scale).ceil() / scale,
        Some(Some("floor")) => (number * scale).floor() / scale,
        _ => return Err(Fault::type_error("method must be common, ceil or floor")),
    };
    // Without a method Python's own `round` keeps an integer an integer.
    Ok(match (method, value.as_int()) {
        (None, Some(_)) => float_to_int(rounded).map_or(Value::Float(rounded), Value::Int),
        _ => Value::Float(rounded),
    })
}

fn center(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
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

fn truncate(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
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

fn urlencode(this: &mut Interpreter<'_>, value: &Value, _: &Arguments) -> Result<Value, Fault> {
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

fn tojson(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
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
