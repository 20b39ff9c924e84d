//! Python's methods of strings, mappings and sequences.
//!
//! One row per method. Invariant: none changes its receiver. The methods that would (`list.append`, `dict.update`)
//! are absent, as in the sandbox that chat templates are written for, so calling one is an error.

use std::rc::Rc;

use super::{
    arguments::Arguments,
    error::Fault,
    format,
    interpreter::Interpreter,
    meter::TextBuf,
    value::{LazyKind, Text, Value},
};

/// A method: the interpreter, the receiver, the arguments.
pub(super) type MethodFn = for<'t> fn(&mut Interpreter<'t>, &Value, &Arguments) -> Result<Value, Fault>;

/// Returns the method of that name, for the type of `receiver`.
pub(super) fn find(receiver: &Value, name: &str) -> Option<MethodFn> {
    match receiver {
        Value::Str(_) => find_str(name),
        Value::Dict(_) => find_dict(name),
        Value::List(_) | Value::Tuple(_) => find_seq(name),
        Value::Lazy(lazy) if matches!(lazy.kind, LazyKind::Range(..)) => find_seq(name),
        _ => None,
    }
}

fn find_dict(name: &str) -> Option<MethodFn> {
    Some(match name {
        "get" => |this, receiver, args| {
            if !args.keyword.is_empty() {
                return Err(Fault::type_error("dict.get() takes no keyword arguments"));
            }
            let [key, default] = args.bind("get()", ["key", "default"])?;
            let key = key.ok_or_else(|| Fault::type_error("get expected at least 1 argument, got 0"))?;
            let Value::Dict(dict) = receiver else {
                unreachable!("`find` matched a mapping")
            };
            let found = dict.get(&key, &this.meter)?.cloned();
            Ok(found.or(default).unwrap_or(Value::None))
        },
        "items" => |this, receiver, args| {
            let [] = args.bind("items()", [])?;
            items_view(this, receiver)
        },
        "keys" => |this, receiver, args| {
            let [] = args.bind("keys()", [])?;
            let keys = receiver.iterate(&this.meter)?;
            this.meter.lazy(LazyKind::View("dict_keys"), keys.items.clone())
        },
        "values" => |this, receiver, args| {
            let [] = args.bind("values()", [])?;
            let Value::Dict(dict) = receiver else {
                unreachable!("`find` matched a mapping")
            };
            let values = dict.entries.iter().map(|(_, value)| value.clone()).collect();
            this.meter.lazy(LazyKind::View("dict_values"), values)
        },
        "copy" => |_, receiver, _| Ok(receiver.clone()),
        _ => return None,
    })
}

/// `dict.items()`.
pub(super) fn items_view(this: &Interpreter<'_>, receiver: &Value) -> Result<Value, Fault> {
    let Value::Dict(dict) = receiver else {
        return Err(Fault::type_error("Can only get item pairs from a mapping."));
    };
    let pairs: Result<Vec<Value>, Fault> = dict
        .entries
        .iter()
        .map(|(key, value)| this.meter.tuple(vec![key.clone(), value.clone()]))
        .collect();
    this.meter.lazy(LazyKind::View("dict_items"), pairs?)
}

fn find_seq(name: &str) -> Option<MethodFn> {
    Some(match name {
        "count" => |this, receiver, args| {
            let [wanted] = args.bind("count()", ["value"])?;
            let wanted = wanted.ok_or_else(|| Fault::type_error("count() takes exactly one argument"))?;
            let mut n = 0;
            for item in &receiver.iterate(&this.meter)?.items {
                n += i128::from(item.equals(&wanted, &this.meter)?);
            }
            Ok(Value::Int(n))
        },
        "index" => |this, receiver, args| {
            let [wanted] = args.bind("index()", ["value"])?;
            let wanted = wanted.ok_or_else(|| Fault::type_error("index expected at least 1 argument"))?;
            for (index, item) in receiver.iterate(&this.meter)?.items.iter().enumerate() {
                if item.equals(&wanted, &this.meter)? {
                    return Ok(Value::Int(index as i128));
                }
            }
            Err(Fault::type_error("the value is not in the list"))
        },
        "copy" => |_, receiver, _| Ok(receiver.clone()),
        _ => return None,
    })
}

fn text_of(receiver: &Value) -> &Rc<Text> {
    match receiver {
        Value::Str(text) => text,
        _ => unreachable!("`find` matched a string"),
    }
}

fn find_str(name: &str) -> Option<MethodFn> {
    Some(match name {
        "upper" => |this, receiver, args| convert(this, receiver, args, str::to_uppercase),
        "lower" | "casefold" => |this, receiver, args| convert(this, receiver, args, str::to_lowercase),
        "title" => |this, receiver, args| convert(this, receiver, args, |text| title(text, false)),
        "capitalize" => |this, receiver, args| convert(this, receiver, args, capitalize),
        "swapcase" => |this, receiver, args| convert(this, receiver, args, swap_case),
        "strip" => |this, receiver, args| strip(this, receiver, args, true, true),
        "lstrip" => |this, receiver, args| strip(this, receiver, args, true, false),
        "rstrip" => |this, receiver, args| strip(this, receiver, args, false, true),
        "removeprefix" => |this, receiver, args| {
            let text = text_of(receiver);
            let prefix = one_str(args, "removeprefix()")?;
            let rest = text.body.strip_prefix(&*prefix).unwrap_or(&text.body);
            this.meter.part_of(text, rest, false)
        },
        "removesuffix" => |this, receiver, args| {
            let text = text_of(receiver);
            let suffix = one_str(args, "removesuffix()")?;
            let rest = text.body.strip_suffix(&*suffix).unwrap_or(&text.body);
            this.meter.part_of(text, rest, false)
        },
        "startswith" => |_, receiver, args| {
            affix(receiver, args, "startswith", |text, affix| {
                text.starts_with(affix)
            })
        },
        "endswith" => {
            |_, receiver, args| affix(receiver, args, "endswith", |text, affix| text.ends_with(affix))
        }
        "replace" => |this, receiver, args| {
            let [old, new, count] = args.bind("replace()", ["old", "new", "count"])?;
            let (Some(Value::Str(old)), Some(Value::Str(new))) = (old, new) else {
                return Err(Fault::type_error("replace() needs two strings"));
            };
            replace(
                this,
                text_of(receiver),
                &old.body,
                &new,
                count_of(count.as_ref())?,
            )
        },
        "split" => |this, receiver, args| split(this, receiver, args, false),
        "rsplit" => |this, receiver, args| split(this, receiver, args, true),
        "splitlines" => split_lines,
        "partition" => |this, receiver, args| partition(this, receiver, args, false),
        "rpartition" => |this, receiver, args| partition(this, receiver, args, true),
        "find" => |_, receiver, args| position(receiver, args, |text, wanted| text.find(wanted), false),
        "rfind" => |_, receiver, args| position(receiver, args, |text, wanted| text.rfind(wanted), false),
        "index" => |_, receiver, args| position(receiver, args, |text, wanted| text.find(wanted), true),
        "rindex" => |_, receiver, args| position(receiver, args, |text, wanted| text.rfind(wanted), true),
        "count" => |_, receiver, args| {
            let wanted = one_str(args, "count()")?;
            let text = &text_of(receiver).body;
            Ok(Value::Int(if wanted.is_empty() {
                text.chars().count() as i128 + 1
            } else {
                text.matches(&*wanted).count() as i128
            }))
        },
        "join" => |this, receiver, args| {
            let [items] = args.bind("join()", ["iterable"])?;
            let items = items.ok_or_else(|| Fault::type_error("join() takes exactly one argument"))?;
            let mut out = TextBuf::new(&this.meter);
            for (index, item) in items.iterate(&this.meter)?.items.iter().enumerate() {
                if index > 0 {
                    out.push_text(text_of(receiver))?;
                }
                let Value::Str(item) = item else {
                    return Err(Fault::Type(format!(
                        "sequence item {index}: expected str instance, {} found",
                        item.type_name()
                    )));
                };
                out.push_text(item)?;
            }
            this.finish(out)
        },
        "format" => |this, receiver, args| {
            let mut out = TextBuf::new(&this.meter);
            format::str_format(text_of(receiver), args, this, &mut out)?;
            this.finish(out)
        },
        "zfill" => |this, receiver, args| {
            let text = &text_of(receiver).body;
            let [width] = args.bind("zfill()", ["width"])?;
            let missing = width_of(width.as_ref())?.saturating_sub(text.chars().count());
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            let mut out = TextBuf::new(&this.meter);
            out.push_str(sign)?;
            out.push_repeated('0', missing)?;
            out.push_str(digits)?;
            this.finish(out)
        },
        "ljust" => |this, receiver, args| justify(this, receiver, args, |_, _| 0),
        "rjust" => |this, receiver, args| justify(this, receiver, args, |missing, _| missing),
        "center" => |this, receiver, args| justify(this, receiver, args, center_left),
        "isdigit" | "isnumeric" | "isdecimal" => |_, receiver, _| Ok(every_char(receiver, char::is_numeric)),
        "isalpha" => |_, receiver, _| Ok(every_char(receiver, char::is_alphabetic)),
        "isalnum" => |_, receiver, _| Ok(every_char(receiver, char::is_alphanumeric)),
        "isspace" => |_, receiver, _| Ok(every_char(receiver, char::is_whitespace)),
        "isascii" => |_, receiver, _| Ok(Value::Bool(text_of(receiver).body.is_ascii())),
        "islower" => |_, receiver, _| Ok(has_case(receiver, char::is_lowercase, char::is_uppercase)),
        "isupper" => |_, receiver, _| Ok(has_case(receiver, char::is_uppercase, char::is_lowercase)),
        _ => return None,
    })
}

fn every_char(receiver: &Value, is_kind: fn(char) -> bool) -> Value {
    let text = &text_of(receiver).body;
    Value::Bool(!text.is_empty() && text.chars().all(is_kind))
}

fn has_case(receiver: &Value, has: fn(char) -> bool, has_not: fn(char) -> bool) -> Value {
    let text = &text_of(receiver).body;
    Value::Bool(text.chars().any(has) && !text.chars().any(has_not))
}

fn convert(
    this: &Interpreter<'_>,
    receiver: &Value,
    args: &Arguments,
    convert: fn(&str) -> String,
) -> Result<Value, Fault> {
    let [] = args.bind("the method", [])?;
    let text = text_of(receiver);
    // A character's other case has at most three characters.
    this.meter.check_room(text.body.len().saturating_mul(3))?;
    this.meter
        .derived_text(convert(&text.body), text.is_markup, &[text])
}

/// Converts to upper case after non-letters; with `keeps_words`, only after the word borders of Jinja's filter.
pub(super) fn title(text: &str, keeps_words: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut starts_word = true;
    for c in text.chars() {
        if starts_word {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        starts_word = if keeps_words {
            c.is_whitespace() || matches!(c, '-' | '(' | '{' | '[' | '<')
        } else {
            !c.is_alphabetic()
        };
    }
    out
}

pub(super) fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first
            .to_uppercase()
            .chain(chars.as_str().to_lowercase().chars())
            .collect(),
        None => String::new(),
    }
}

fn swap_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_uppercase() {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
    }
    out
}

/// Returns the one argument, a string.
fn one_str(args: &Arguments, function: &str) -> Result<Box<str>, Fault> {
    match args.bind(function, ["string"])? {
        [Some(Value::Str(text))] => Ok(text.body.clone()),
        _ => Err(Fault::Type(format!("{function} needs a string"))),
    }
}

fn count_of(count: Option<&Value>) -> Result<Option<usize>, Fault> {
    match count {
        None => Ok(None),
        Some(count) => match count.as_int() {
            Some(count) => Ok(usize::try_from(count).ok()),
            None => Err(Fault::type_error("the count must be an integer")),
        },
    }
}

pub(super) fn width_of(width: Option<&Value>) -> Result<usize, Fault> {
    match width.and_then(Value::as_int) {
        Some(width) => Ok(usize::try_from(width.max(0)).unwrap_or(usize::MAX)),
        None => Err(Fault::type_error("the width must be an integer")),
    }
}

/// Python's white space includes the four separators that Unicode calls controls.
fn is_python_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

pub(super) fn strip_text<'a>(text: &'a str, chars: Option<&str>, at_start: bool, at_end: bool) -> &'a str {
    let is_stripped = |c: char| match chars {
        Some(chars) => chars.contains(c),
        None => is_python_space(c),
    };
    let text = if at_start {
        text.trim_start_matches(is_stripped)
    } else {
        text
    };
    if at_end {
        text.trim_end_matches(is_stripped)
    } else {
        text
    }
}

fn strip(
    this: &Interpreter<'_>,
    receiver: &Value,
    args: &Arguments,
    at_start: bool,
    at_end: bool,
) -> Result<Value, Fault> {
    let chars = match args.bind("strip()", ["chars"])? {
        [None | Some(Value::None)] => None,
        [Some(Value::Str(chars))] => Some(chars),
        _ => return Err(Fault::type_error("strip arg must be None or str")),
    };
    let text = text_of(receiver);
    let chars = chars.as_ref().map(|chars| &*chars.body);
    this.meter
        .burn_bytes(text.body.len().saturating_mul(chars.map_or(1, str::len)))?;
    this.meter.part_of(
        text,
        strip_text(&text.body, chars, at_start, at_end),
        text.is_markup,
    )
}

fn affix(
    receiver: &Value,
    args: &Arguments,
    name: &str,
    matches: fn(&str, &str) -> bool,
) -> Result<Value, Fault> {
    let text = &text_of(receiver).body;
    let wrong = |value: &Value| {
        Fault::Type(format!(
            "{name} first arg must be str or a tuple of str, not {}",
            value.type_name()
        ))
    };
    let [affix] = args.bind(name, ["prefix"])?;
    match &affix {
        Some(Value::Str(affix)) => Ok(Value::Bool(matches(text, &affix.body))),
        Some(value @ Value::Tuple(affixes)) => {
            for affix in &affixes.items {
                if matches(text, affix.as_str().ok_or_else(|| wrong(value))?) {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        Some(value) => Err(wrong(value)),
        None => Err(Fault::Type(format!("{name}() takes at least 1 argument"))),
    }
}

/// `text.replace(old, new, count)`.
pub(super) fn replace(
    this: &Interpreter<'_>,
    source: &Text,
    old: &str,
    new: &Text,
    count: Option<usize>,
) -> Result<Value, Fault> {
    let text = &*source.body;
    let n_found = if old.is_empty() {
        text.chars().count() + 1
    } else {
        text.matches(old).count()
    };
    let n_replaced = n_found.min(count.unwrap_or(usize::MAX));
    this.meter.burn(n_replaced / 8)?;
    this.meter.check_room(
        text.len()
            .saturating_add(n_replaced.saturating_mul(new.body.len())),
    )?;
    this.meter
        .derived_text(text.replacen(old, &new.body, n_replaced), false, &[source, new])
}

fn split(this: &Interpreter<'_>, receiver: &Value, args: &Arguments, from_end: bool) -> Result<Value, Fault> {
    let [separator, max_splits] = args.bind("split()", ["sep", "maxsplit"])?;
    let max_splits = count_of(max_splits.as_ref())?.unwrap_or(usize::MAX);
    let text = &*text_of(receiver).body;
    let mut parts: Vec<&str> = Vec::new();
    match separator {
        None | Some(Value::None) => {
            let is_space = is_python_space as fn(char) -> bool;
            let mut rest = if from_end {
                text.trim_end_matches(is_space)
            } else {
                text.trim_start_matches(is_space)
            };
            while !rest.is_empty() {
                let cut = if from_end {
                    rest.rfind(is_space)
                } else {
                    rest.find(is_space)
                };
                let Some(at) = cut.filter(|_| parts.len() < max_splits) else {
                    parts.push(if from_end {
                        rest.trim_start_matches(is_space)
                    } else if parts.len() < max_splits {
                        rest
                    } else {
                        rest.trim_end_matches(is_space)
                    });
                    break;
                };
                let width = rest[at..].chars().next().map_or(0, char::len_utf8);
                if from_end {
                    parts.push(&rest[at + width..]);
                    rest = rest[..at].trim_end_matches(is_space);
                } else {
                    parts.push(&rest[..at]);
                    rest = rest[at..].trim_start_matches(is_space);
                }
            }
        }
        Some(Value::Str(separator)) if separator.body.is_empty() => {
            return Err(Fault::type_error("empty separator"));
        }
        Some(Value::Str(separator)) => {
            let limit = max_splits.saturating_add(1);
            this.meter.check_room(
                text.matches(&*separator.body)
                    .count()
                    .saturating_mul(size_of::<Value>() + size_of::<Text>()),
            )?;
            if from_end {
                parts.extend(text.rsplitn(limit, &*separator.body));
            } else {
                parts.extend(text.splitn(limit, &*separator.body));
            }
        }
        Some(other) => {
            return Err(Fault::Type(format!(
                "must be str or None, not {}",
                other.type_name()
            )));
        }
    }
    if from_end {
        parts.reverse();
    }
    text_list(this, text_of(receiver), parts.into_iter())
}

/// Returns the parts of a text, as strings.
fn text_list<'a>(
    this: &Interpreter<'_>,
    whole: &Text,
    parts: impl Iterator<Item = &'a str>,
) -> Result<Value, Fault> {
    let items: Result<Vec<Value>, Fault> = parts.map(|part| this.meter.part_of(whole, part, false)).collect();
    this.meter.list(items?)
}

fn split_lines(this: &mut Interpreter<'_>, receiver: &Value, args: &Arguments) -> Result<Value, Fault> {
    let [keep_ends] = args.bind("splitlines()", ["keepends"])?;
    let keeps_ends = keep_ends.is_some_and(|value| value.is_truthy());
    let mut rest = &*text_of(receiver).body;
    let mut lines = Vec::new();
    while !rest.is_empty() {
        let is_break = |c| {
            matches!(
                c,
                '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
            )
        };
        let Some(at) = rest.find(is_break) else {
            lines.push(rest);
            break;
        };
        let width = if rest[at..].starts_with("\r\n") {
            2
        } else {
            rest[at..].chars().next().map_or(0, char::len_utf8)
        };
        lines.push(&rest[..if keeps_ends { at + width } else { at }]);
        rest = &rest[at + width..];
    }
    text_list(this, text_of(receiver), lines.into_iter())
}

fn partition(
    this: &Interpreter<'_>,
    receiver: &Value,
    args: &Arguments,
    from_end: bool,
) -> Result<Value, Fault> {
    let separator = one_str(args, "partition()")?;
    if separator.is_empty() {
        return Err(Fault::type_error("empty separator"));
    }
    let text = &*text_of(receiver).body;
    let parts = if from_end {
        match text.rsplit_once(&*separator) {
            Some((before, after)) => [before, &separator, after],
            None => ["", "", text],
        }
    } else {
        match text.split_once(&*separator) {
            Some((before, after)) => [before, &separator, after],
            None => [text, "", ""],
        }
    };
    let items: Result<Vec<Value>, Fault> = parts
        .into_iter()
        .map(|part| this.meter.part_of(text_of(receiver), part, false))
        .collect();
    this.meter.tuple(items?)
}

fn position(
    receiver: &Value,
    args: &Arguments,
    find: fn(&str, &str) -> Option<usize>,
    must_exist: bool,
) -> Result<Value, Fault> {
    let wanted = one_str(args, "find()")?;
    let text = &*text_of(receiver).body;
    match find(text, &wanted) {
        Some(at) => Ok(Value::Int(text[..at].chars().count() as i128)),
        None if must_exist => Err(Fault::type_error("substring not found")),
        None => Ok(Value::Int(-1)),
    }
}

/// How much of the padding `missing` goes to the left when centring; Python gives an odd one by the width.
pub(super) fn center_left(missing: usize, width: usize) -> usize {
    missing / 2 + (missing & width & 1)
}

fn justify(
    this: &Interpreter<'_>,
    receiver: &Value,
    args: &Arguments,
    before: fn(usize, usize) -> usize,
) -> Result<Value, Fault> {
    let [width, fill] = args.bind("the method", ["width", "fillchar"])?;
    let fill = match &fill {
        None => ' ',
        Some(fill) => {
            let mut chars = fill.as_str().unwrap_or("").chars();
            match (chars.next(), chars.next()) {
                (Some(fill), None) => fill,
                _ => {
                    return Err(Fault::type_error(
                        "the fill character must be exactly one character long",
                    ));
                }
            }
        }
    };
    let text = &text_of(receiver).body;
    let width = width_of(width.as_ref())?;
    let missing = width.saturating_sub(text.chars().count());
    let before = before(missing, width);
    let mut out = TextBuf::new(&this.meter);
    out.push_repeated(fill, before)?;
    out.push_str(text)?;
    out.push_repeated(fill, missing - before)?;
    this.finish(out)
}
