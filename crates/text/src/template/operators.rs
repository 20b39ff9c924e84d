//! Arithmetic and `+`, `*`, `%` of text and sequences, as Python has them.
//!
//! Expressions, filters and tests use them. Invariant: integers never wrap around, and a growing result is checked
//! against the memory left before it is made.

use super::{
    ast::BinaryOp, error::Fault, format, interpreter::Interpreter, markup::escape_html, meter::TextBuf,
    value::Value,
};

impl Interpreter<'_> {
    pub(super) fn binary(&self, op: BinaryOp, left: &Value, right: &Value) -> Result<Value, Fault> {
        if let (Value::Undefined(what), _) | (_, Value::Undefined(what)) = (left, right) {
            // `'…' % undefined` formats; everything else needs both sides.
            if !(op == BinaryOp::Rem && left.as_str().is_some()) {
                return Err(Fault::Undefined(what.to_string()));
            }
        }
        match (op, left, right) {
            (BinaryOp::Add, Value::Str(a), Value::Str(b)) => {
                if a.is_markup || b.is_markup {
                    let mut text = TextBuf::new(&self.meter);
                    for side in [a, b] {
                        if side.is_markup || !side.body.contains(['&', '<', '>', '"', '\'']) {
                            text.push_text(side)?;
                        } else {
                            escape_html(&side.body, &mut text)?;
                        }
                    }
                    let (text, trust) = text.into_parts();
                    return self.meter.text_with_trust(text, true, trust);
                }
                self.meter.check_room(a.body.len() + b.body.len())?;
                let mut text = TextBuf::new(&self.meter);
                text.push_text(a)?;
                text.push_text(b)?;
                self.finish(text)
            }
            (BinaryOp::Add, Value::List(a), Value::List(b)) => {
                self.meter.list([&a.items[..], &b.items].concat())
            }
            (BinaryOp::Add, Value::Tuple(a), Value::Tuple(b)) => {
                self.meter.tuple([&a.items[..], &b.items].concat())
            }
            (BinaryOp::Rem, Value::Str(template), _) => {
                let mut text = TextBuf::new(&self.meter);
                format::printf(template, right, &self.printer(), &mut text)?;
                self.finish(text)
            }
            (BinaryOp::Mul, Value::Str(_) | Value::List(_) | Value::Tuple(_), _)
                if right.as_int().is_some() =>
            {
                self.repeat(left, right.as_int().unwrap_or(0))
            }
            (BinaryOp::Mul, _, Value::Str(_) | Value::List(_) | Value::Tuple(_))
                if left.as_int().is_some() =>
            {
                self.repeat(right, left.as_int().unwrap_or(0))
            }
            _ => match (left.as_int(), right.as_int()) {
                (Some(a), Some(b)) => int_binary(op, a, b),
                _ => match (left.as_float(), right.as_float()) {
                    (Some(a), Some(b)) => float_binary(op, a, b),
                    _ => Err(bad_binary(op, left, right)),
                },
            },
        }
    }

    fn repeat(&self, value: &Value, n: i128) -> Result<Value, Fault> {
        let n = usize::try_from(n.max(0)).unwrap_or(usize::MAX);
        match value {
            Value::Str(text) => {
                self.meter.check_room(text.body.len().saturating_mul(n))?;
                self.meter.derived_text(text.body.repeat(n), false, &[text])
            }
            Value::List(seq) | Value::Tuple(seq) => {
                let n_items = seq.items.len().saturating_mul(n);
                self.meter
                    .check_room(n_items.saturating_mul(size_of::<Value>()))?;
                let items: Vec<Value> = seq.items.iter().cycle().take(n_items).cloned().collect();
                if matches!(value, Value::List(_)) {
                    self.meter.list(items)
                } else {
                    self.meter.tuple(items)
                }
            }
            _ => Err(Fault::type_error("only sequences can be repeated")),
        }
    }
}

pub(super) fn negate(value: &Value) -> Result<Value, Fault> {
    match (value.as_int(), value) {
        (Some(value), _) => value.checked_neg().map(Value::Int).ok_or_else(overflow),
        (None, Value::Float(value)) => Ok(Value::Float(-value)),
        _ => Err(bad_unary("-", value)),
    }
}

fn overflow() -> Fault {
    Fault::type_error("the integer is too large")
}

pub(super) fn bad_unary(op: &str, value: &Value) -> Fault {
    match value {
        Value::Undefined(what) => Fault::Undefined(what.to_string()),
        _ => Fault::Type(format!(
            "bad operand type for unary {op}: '{}'",
            value.type_name()
        )),
    }
}

fn bad_binary(op: BinaryOp, left: &Value, right: &Value) -> Fault {
    let (left_type, right_type) = (left.type_name(), right.type_name());
    match (op, left) {
        (BinaryOp::Add, Value::Str(_) | Value::List(_) | Value::Tuple(_)) => Fault::Type(format!(
            "can only concatenate {left_type} (not \"{right_type}\") to {left_type}"
        )),
        _ => Fault::Type(format!(
            "unsupported operand type(s) for {}: '{left_type}' and '{right_type}'",
            op.symbol()
        )),
    }
}

fn int_binary(op: BinaryOp, a: i128, b: i128) -> Result<Value, Fault> {
    let value = match op {
        BinaryOp::Add => a.checked_add(b),
        BinaryOp::Sub => a.checked_sub(b),
        BinaryOp::Mul => a.checked_mul(b),
        BinaryOp::Div if b == 0 => return Err(Fault::type_error("division by zero")),
        BinaryOp::Div => return Ok(Value::Float(a as f64 / b as f64)),
        BinaryOp::FloorDiv | BinaryOp::Rem if b == 0 => {
            return Err(Fault::type_error("integer division or modulo by zero"));
        }
        BinaryOp::FloorDiv => a.checked_div_euclid(b).map(|quotient| {
            // Python rounds down, Euclid towards a remainder of at least 0.
            if b < 0 && a.rem_euclid(b) != 0 {
                quotient - 1
            } else {
                quotient
            }
        }),
        BinaryOp::Rem => a
            .checked_rem_euclid(b)
            .map(|rest| if b < 0 && rest != 0 { rest + b } else { rest }),
        BinaryOp::Pow => match u32::try_from(b) {
            Ok(exponent) => a.checked_pow(exponent),
            Err(_) if b < 0 && a == 0 => {
                return Err(Fault::type_error("0.0 cannot be raised to a negative power"));
            }
            Err(_) if b < 0 => return Ok(Value::Float((a as f64).powf(b as f64))),
            Err(_) => None,
        },
    };
    value.map(Value::Int).ok_or_else(overflow)
}

fn float_binary(op: BinaryOp, a: f64, b: f64) -> Result<Value, Fault> {
    if b == 0.0 && matches!(op, BinaryOp::Div | BinaryOp::FloorDiv | BinaryOp::Rem) {
        return Err(Fault::type_error("float division by zero"));
    }
    Ok(Value::Float(match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::FloorDiv => (a / b).floor(),
        BinaryOp::Rem => {
            let rest = a % b;
            if rest != 0.0 && (rest < 0.0) != (b < 0.0) {
                rest + b
            } else {
                rest
            }
        }
        BinaryOp::Pow => a.powf(b),
    }))
}
