//! Filters that return numbers: `int` and `round`, by Python's rules. Invariant: no input panics, however
//! large.

use crate::template::{arguments::Arguments, error::Fault, interpreter::Interpreter, value::Value};

pub(super) fn int(_: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
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

pub(super) fn round(_: &mut Interpreter<'_>, value: &Value, args: &Arguments) -> Result<Value, Fault> {
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
