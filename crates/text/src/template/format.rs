//! Python's two ways to format: `'%s' % value` and `'{}'.format(value)`.
//!
//! Both end in one [`Spec`], so width, sign and precision mean the same. Invariant: width and precision are checked
//! against the memory left before anything is written.

use super::{
    arguments::Arguments,
    error::Fault,
    interpreter::Interpreter,
    meter::TextBuf,
    printer::Printer,
    value::{Text, Value},
};

/// How one value is laid out.
#[derive(Debug, Clone)]
struct Spec {
    fill: char,
    /// `<`, `>`, `^` or `=`; `None` for the type's default.
    align: Option<char>,
    sign: Option<char>,
    is_alternate: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

impl Spec {
    fn new() -> Self {
        Self {
            fill: ' ',
            align: None,
            sign: None,
            is_alternate: false,
            width: 0,
            grouping: None,
            precision: None,
            kind: None,
        }
    }
}

/// Digits after the point that a float may ask for; Python allows more.
const MAX_PRECISION: usize = 1000;

/// `template % args`.
pub(super) fn printf(
    template: &Text,
    args: &Value,
    printer: &Printer<'_>,
    out: &mut TextBuf,
) -> Result<(), Fault> {
    let positional = match args {
        Value::Tuple(seq) => &seq.items[..],
        value => std::slice::from_ref(value),
    };
    let mut remaining = positional.iter();
    let mut uses_mapping = false;
    let not_enough = || Fault::type_error("not enough arguments for format string");
    let mut rest = &*template.body;
    while let Some(at) = rest.find('%') {
        out.push_part(template, &rest[..at])?;
        rest = &rest[at + 1..];
        let mut named = None;
        if let Some(after) = rest.strip_prefix('(') {
            let (name, after) = after
                .split_once(')')
                .ok_or_else(|| Fault::type_error("incomplete format key"))?;
            let Value::Dict(dict) = args else {
                return Err(Fault::type_error("format requires a mapping"));
            };
            named = Some(
                dict.get_str(name)
                    .ok_or_else(|| Fault::type_error("a key of the format string is missing"))?,
            );
            uses_mapping = true;
            rest = after;
        }
        let mut spec = Spec::new();
        let mut is_zero_padded = false;
        while let Some(flag @ ('-' | '+' | ' ' | '#' | '0')) = rest.chars().next() {
            match flag {
                '-' => spec.align = Some('<'),
                '+' => spec.sign = Some('+'),
                ' ' if spec.sign.is_none() => spec.sign = Some(' '),
                '#' => spec.is_alternate = true,
                '0' => is_zero_padded = true,
                _ => {}
            }
            rest = &rest[1..];
        }
        let mut star = |rest: &mut &str| -> Result<Option<i128>, Fault> {
            if let Some(after) = rest.strip_prefix('*') {
                *rest = after;
                let value = remaining.next().ok_or_else(not_enough)?;
                return value
                    .as_int()
                    .map(Some)
                    .ok_or_else(|| Fault::type_error("* wants int"));
            }
            Ok(None)
        };
        match star(&mut rest)? {
            Some(width) => {
                if width < 0 {
                    spec.align = Some('<');
                }
                spec.width = usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX);
            }
            None => spec.width = number(&mut rest).unwrap_or(0),
        }
        if let Some(after) = rest.strip_prefix('.') {
            rest = after;
            spec.precision = Some(match star(&mut rest)? {
                Some(precision) => usize::try_from(precision.max(0)).unwrap_or(usize::MAX),
                None => number(&mut rest).unwrap_or(0),
            });
        }
        let kind = rest
            .chars()
            .next()
            .ok_or_else(|| Fault::type_error("incomplete format"))?;
        rest = &rest[kind.len_utf8()..];
        if kind == '%' {
            out.push('%')?;
            continue;
        }
        let value = match named {
            Some(value) => value,
            None => remaining.next().ok_or_else(not_enough)?,
        };
        printf_value(kind, value, spec, is_zero_padded, printer, out)?;
    }
    out.push_part(template, rest)?;
    let takes_none = matches!(args, Value::Dict(_) | Value::List(_)) || uses_mapping;
    if remaining.next().is_some() && !takes_none {
        return Err(Fault::type_error(
            "not all arguments converted during string formatting",
        ));
    }
    Ok(())
}

fn printf_value(
    kind: char,
    value: &Value,
    mut spec: Spec,
    is_zero_padded: bool,
    printer: &Printer<'_>,
    out: &mut TextBuf,
) -> Result<(), Fault> {
    if spec.align.is_none() {
        spec.align = Some('>');
        if is_zero_padded && !matches!(kind, 's' | 'r' | 'a' | 'c') {
            spec.align = Some('=');
            spec.fill = '0';
        }
    }
    match kind {
        's' if spec.width == 0 && spec.precision.is_none() => printer.str(value, out),
        's' | 'r' | 'a' => {
            let mut text = TextBuf::new(printer.meter);
            if kind == 's' {
                printer.str(value, &mut text)?;
            } else {
                printer.repr(value, &mut text, 0)?;
            }
            pad_text(&text.into_string(), &spec, out)
        }
        'c' => match (value.as_int(), value.as_str()) {
            (Some(code), _) => {
                let c = u32::try_from(code).ok().and_then(char::from_u32);
                let c = c.ok_or_else(|| Fault::type_error("%c arg not in range"))?;
                pad_text(c.encode_utf8(&mut [0; 4]), &spec, out)
            }
            (None, Some(text)) if text.chars().count() == 1 => pad_text(text, &spec, out),
            _ => Err(Fault::type_error("%c requires int or char")),
        },
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            let number = match value {
                Value::Float(number) if matches!(kind, 'd' | 'i' | 'u') && number.abs() < 1e38 => {
                    Some(*number as i128)
                }
                _ => value.as_int(),
            };
            let number = number.ok_or_else(|| {
                Fault::Type(format!(
                    "%{kind} format: a number is required, not {}",
                    value.type_name()
                ))
            })?;
            spec.kind = Some(if matches!(kind, 'i' | 'u') { 'd' } else { kind });
            let min_digits = spec.precision.take();
            int(number, min_digits, &spec, out)
        }
        'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let number = value
                .as_float()
                .ok_or_else(|| Fault::Type(format!("must be real number, not {}", value.type_name())))?;
            spec.kind = Some(kind);
            float(number, &spec, out)
        }
        _ => Err(Fault::Type(format!("unsupported format character '{kind}'"))),
    }
}

/// Reads decimal digits; `None` if there are none. A number too large for memory counts as the largest.
fn number(rest: &mut &str) -> Option<usize> {
    let n_digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, after) = rest.split_at(n_digits);
    *rest = after;
    (n_digits > 0).then(|| digits.parse().unwrap_or(usize::MAX))
}

/// `template.format(…)`.
pub(super) fn str_format(
    template: &Text,
    args: &Arguments,
    interpreter: &Interpreter<'_>,
    out: &mut TextBuf,
) -> Result<(), Fault> {
    let mut next_positional = 0;
    let mut rest = &*template.body;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_part(template, &rest[..at])?;
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push_part(template, brace)?;
            rest = after;
            continue;
        }
        if brace == "}" {
            return Err(Fault::type_error("Single '}' encountered in format string"));
        }
        let (field, after) = rest
            .split_once('}')
            .ok_or_else(|| Fault::type_error("expected '}' before end of string"))?;
        rest = after;
        let (path, spec) = field.split_once(':').unwrap_or((field, ""));
        let (path, conversion) = match path.split_once('!') {
            Some((path, conversion)) => (path, Some(conversion)),
            None => (path, None),
        };
        let mut value = field_value(path, args, interpreter, &mut next_positional)?;
        let printer = interpreter.printer();
        match conversion {
            None => {}
            Some("s") => value = printer.to_text(&value)?,
            Some("r" | "a") => {
                let mut text = TextBuf::new(printer.meter);
                printer.repr(&value, &mut text, 0)?;
                value = printer.meter.text(text.into_string())?;
            }
            Some(other) => return Err(Fault::Type(format!("unknown conversion specifier '{other}'"))),
        }
        format_value(&value, spec, &printer, out)?;
    }
    out.push_part(template, rest)
}

/// Returns the value of a field such as `0`, `name.attribute` or `rows[2]`; an empty one is the next positional argument.
fn field_value(
    path: &str,
    args: &Arguments,
    interpreter: &Interpreter<'_>,
    next_positional: &mut usize,
) -> Result<Value, Fault> {
    let head_len = path.find(['.', '[']).unwrap_or(path.len());
    let (head, mut tail) = path.split_at(head_len);
    let found = if head.is_empty() {
        *next_positional += 1;
        args.positional.get(*next_positional - 1)
    } else if let Ok(index) = head.parse::<usize>() {
        args.positional.get(index)
    } else {
        let named = args.keyword.iter().find(|(name, _)| &**name == head);
        named.map(|(_, value)| value)
    };
    let mut value = found
        .cloned()
        .ok_or_else(|| Fault::Type(format!("the format string needs an argument for '{{{path}}}'")))?;
    while !tail.is_empty() {
        if let Some(after) = tail.strip_prefix('.') {
            let len = after.find(['.', '[']).unwrap_or(after.len());
            value = interpreter.attribute(&value, &after[..len])?;
            tail = &after[len..];
        } else {
            let (index, after) = tail[1..]
                .split_once(']')
                .ok_or_else(|| Fault::type_error("Missing ']' in format string"))?;
            let index = match index.parse::<i128>() {
                Ok(index) => Value::Int(index),
                Err(_) => interpreter.meter.text(index)?,
            };
            value = interpreter.item(&value, &index)?;
            tail = after;
        }
    }
    Ok(value)
}

fn parse_spec(text: &str) -> Result<Spec, Fault> {
    let mut spec = Spec::new();
    let mut chars = text.chars();
    let mut rest = text;
    let (first, second) = (chars.next(), chars.next());
    if let (Some(fill), Some(align @ ('<' | '>' | '^' | '='))) = (first, second) {
        spec.fill = fill;
        spec.align = Some(align);
        rest = chars.as_str();
    } else if let Some(align @ ('<' | '>' | '^' | '=')) = first {
        spec.align = Some(align);
        rest = &text[1..];
    }
    if let Some(sign @ ('+' | '-' | ' ')) = rest.chars().next() {
        spec.sign = Some(sign);
        rest = &rest[1..];
    }
    if let Some(after) = rest.strip_prefix('#') {
        spec.is_alternate = true;
        rest = after;
    }
    if let Some(after) = rest.strip_prefix('0') {
        if spec.align.is_none() {
            spec.fill = '0';
            spec.align = Some('=');
        }
        rest = after;
    }
    spec.width = number(&mut rest).unwrap_or(0);
    if let Some(grouping @ (',' | '_')) = rest.chars().next() {
        spec.grouping = Some(grouping);
        rest = &rest[1..];
    }
    if let Some(after) = rest.strip_prefix('.') {
        rest = after;
        spec.precision =
            Some(number(&mut rest).ok_or_else(|| Fault::type_error("Format specifier missing precision"))?);
    }
    let mut chars = rest.chars();
    spec.kind = chars.next();
    if chars.next().is_some() {
        return Err(Fault::type_error("Invalid format specifier"));
    }
    Ok(spec)
}

fn format_value(value: &Value, spec: &str, printer: &Printer<'_>, out: &mut TextBuf) -> Result<(), Fault> {
    if spec.is_empty() {
        return printer.str(value, out);
    }
    let mut spec = parse_spec(spec)?;
    match (value, spec.kind) {
        (Value::Str(text), None | Some('s')) => {
            if spec.align == Some('=') {
                if spec.fill != '0' {
                    return Err(Fault::type_error(
                        "'=' alignment not allowed in string format specifier",
                    ));
                }
                spec.align = Some('<');
            }
            pad_text(&text.body, &spec, out)
        }
        (Value::Bool(_), None) => {
            let text = printer.to_text(value)?;
            pad_text(text.as_str().unwrap_or_default(), &spec, out)
        }
        (Value::Int(_) | Value::Bool(_), None | Some('d' | 'x' | 'X' | 'o' | 'b' | 'n')) => {
            if spec.precision.is_some() {
                return Err(Fault::type_error(
                    "Precision not allowed in integer format specifier",
                ));
            }
            int(value.as_int().unwrap_or(0), None, &spec, out)
        }
        (
            Value::Int(_) | Value::Bool(_) | Value::Float(_),
            None | Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%'),
        ) => float(value.as_float().unwrap_or(0.0), &spec, out),
        (_, Some(kind)) if matches!(value, Value::Str(_) | Value::Int(_) | Value::Float(_)) => {
            Err(Fault::Type(format!(
                "Unknown format code '{kind}' for object of type '{}'",
                value.type_name()
            )))
        }
        _ => Err(Fault::Type(format!(
            "unsupported format string passed to {}.__format__",
            value.type_name()
        ))),
    }
}

/// Lays out text: cut to the precision, padded to the width.
fn pad_text(text: &str, spec: &Spec, out: &mut TextBuf) -> Result<(), Fault> {
    let cut = spec
        .precision
        .and_then(|precision| text.char_indices().nth(precision))
        .map_or(text.len(), |(at, _)| at);
    pad("", &text[..cut], '<', spec, out)
}

/// Pads `prefix` and `body` to the width, by default as `align` says.
fn pad(prefix: &str, body: &str, align: char, spec: &Spec, out: &mut TextBuf) -> Result<(), Fault> {
    let missing = spec.width.saturating_sub(prefix.len() + body.chars().count());
    let (before, inside, after) = match spec.align.unwrap_or(align) {
        '<' => (0, 0, missing),
        '^' => (missing / 2, 0, missing - missing / 2),
        '=' => (0, missing, 0),
        _ => (missing, 0, 0),
    };
    out.push_repeated(spec.fill, before)?;
    out.push_str(prefix)?;
    out.push_repeated(spec.fill, inside)?;
    out.push_str(body)?;
    out.push_repeated(spec.fill, after)
}

fn sign_of(is_negative: bool, spec: &Spec) -> &'static str {
    match (is_negative, spec.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    }
}

fn int(value: i128, min_digits: Option<usize>, spec: &Spec, out: &mut TextBuf) -> Result<(), Fault> {
    let magnitude = value.unsigned_abs();
    let (radix_prefix, mut digits) = match spec.kind {
        Some('x') => ("0x", format!("{magnitude:x}")),
        Some('X') => ("0X", format!("{magnitude:X}")),
        Some('o') => ("0o", format!("{magnitude:o}")),
        Some('b') => ("0b", format!("{magnitude:b}")),
        _ => ("", magnitude.to_string()),
    };
    if let Some(separator) = spec.grouping {
        digits = group(&digits, separator, if radix_prefix.is_empty() { 3 } else { 4 });
    }
    let missing = min_digits
        .unwrap_or(0)
        .min(MAX_PRECISION)
        .saturating_sub(digits.len());
    digits.insert_str(0, &"0".repeat(missing));
    let mut prefix = sign_of(value < 0, spec).to_owned();
    if spec.is_alternate {
        prefix.push_str(radix_prefix);
    }
    pad(&prefix, &digits, '>', spec, out)
}

fn group(digits: &str, separator: char, size: usize) -> String {
    let mut grouped = String::with_capacity(digits.len() * 2);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(size) {
            grouped.push(separator);
        }
        grouped.push(digit);
    }
    grouped
}

fn float(value: f64, spec: &Spec, out: &mut TextBuf) -> Result<(), Fault> {
    let precision = spec.precision.unwrap_or(6);
    if precision > MAX_PRECISION {
        return Err(Fault::Type(format!("the precision is above {MAX_PRECISION}")));
    }
    let magnitude = value.abs();
    let mut body = if value.is_nan() {
        "nan".to_owned()
    } else if value.is_infinite() {
        "inf".to_owned()
    } else {
        match spec.kind {
            Some('f' | 'F') => format!("{magnitude:.precision$}"),
            Some('%') => format!("{:.precision$}%", magnitude * 100.0),
            Some('e' | 'E') => exponent_form(magnitude, precision),
            Some(_) => general_form(magnitude, precision, spec.is_alternate),
            None if spec.precision.is_some() => {
                let text = general_form(magnitude, precision, false);
                if text.contains(['.', 'e']) {
                    text
                } else {
                    text + ".0"
                }
            }
            None => super::printer::float_repr(magnitude),
        }
    };
    if let Some(separator) = spec.grouping {
        let whole_len = body.find(|c: char| !c.is_ascii_digit()).unwrap_or(body.len());
        body = group(&body[..whole_len], separator, 3) + &body[whole_len..];
    }
    if matches!(spec.kind, Some('E' | 'G' | 'F')) {
        body.make_ascii_uppercase();
    }
    pad(
        sign_of(value.is_sign_negative() && !value.is_nan(), spec),
        &body,
        '>',
        spec,
        out,
    )
}

/// C's `%e`: at least two digits of exponent.
fn exponent_form(magnitude: f64, precision: usize) -> String {
    let text = format!("{magnitude:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').expect("`{:e}` writes an exponent");
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{digits:0>2}")
}

/// C's `%g`: the shorter of `%e` and `%f` at that many significant digits.
fn general_form(magnitude: f64, precision: usize, keeps_zeros: bool) -> String {
    let precision = precision.max(1);
    let scientific = exponent_form(magnitude, precision - 1);
    let (mantissa, exponent) = scientific.split_once('e').expect("written just above");
    let exponent: i64 = exponent.parse().expect("written just above");
    let trim = |text: &str| {
        if keeps_zeros || !text.contains('.') {
            text.to_owned()
        } else {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    };
    if exponent < -4 || exponent >= precision as i64 {
        let (_, exponent_text) = scientific.split_once('e').expect("written just above");
        return format!("{}e{exponent_text}", trim(mantissa));
    }
    let n_decimals = (precision as i64 - 1 - exponent) as usize;
    trim(&format!("{magnitude:.n_decimals$}"))
}
