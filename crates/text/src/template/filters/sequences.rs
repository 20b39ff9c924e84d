//! Filters of lists and mappings: sorting, grouping, choosing, joining.
//!
//! They share how an attribute is followed and by which key two items are compared. Invariant: a comparison without an
//! order, or a missing attribute, ends the filter with Python's error.

use std::cmp::Ordering;

use super::{FilterFn, find, truthy};
use crate::template::{
    arguments::Arguments,
    ast::BinaryOp,
    error::Fault,
    interpreter::Interpreter,
    meter::TextBuf,
    methods::width_of,
    predicates,
    value::{LazyKind, Value, check_hashable},
};

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

/// Returns the key that a filter compares by: the attribute, if one is named, in lower case unless case matters.
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

pub(super) fn sort(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
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

pub(super) fn dictsort(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
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

pub(super) fn groupby(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
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

pub(super) fn unique(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
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

pub(super) fn extreme(
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

pub(super) fn map(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
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

/// Returns the filter that `map` names, and its arguments.
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

pub(super) fn select(
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

pub(super) fn join(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
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

pub(super) fn sum(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
    let [attribute, start] = args.bind("sum", ["attribute", "start"])?;
    let mut total = start.unwrap_or(Value::Int(0));
    for item in &value.iterate(&this.meter)?.items {
        let item = match &attribute {
            None | Some(Value::None) => item.clone(),
            Some(attribute) => follow(this, item, attribute)?,
        };
        total = this.binary(BinaryOp::Add, &total, &item)?;
    }
    Ok(total)
}

pub(super) fn batch(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
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

pub(super) fn slice(this: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
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
