//! The tests of `is`: `is defined`, `is string`, `is divisibleby 3`, …
//!
//! One function and one row per test. Invariant: a test never changes anything and never evaluates a template.

use std::cmp::Ordering;

use super::{
    arguments::Arguments,
    ast::BinaryOp,
    error::Fault,
    filters,
    interpreter::Interpreter,
    value::{LazyKind, Value},
};

/// A test of a value.
pub(super) type PredicateFn = for<'t> fn(&mut Interpreter<'t>, &Value, &Arguments) -> Result<bool, Fault>;

/// Returns the test of that name.
pub(super) fn find(name: &str) -> Option<PredicateFn> {
    Some(match name {
        "defined" => |_, value, _| Ok(!matches!(value, Value::Undefined(_))),
        "undefined" => |_, value, _| Ok(matches!(value, Value::Undefined(_))),
        "none" => |_, value, _| Ok(matches!(value, Value::None)),
        "boolean" => |_, value, _| Ok(matches!(value, Value::Bool(_))),
        "true" => |_, value, _| Ok(matches!(value, Value::Bool(true))),
        "false" => |_, value, _| Ok(matches!(value, Value::Bool(false))),
        "integer" => |_, value, _| Ok(matches!(value, Value::Int(_))),
        "float" => |_, value, _| Ok(matches!(value, Value::Float(_))),
        "number" => |_, value, _| Ok(matches!(value, Value::Bool(_) | Value::Int(_) | Value::Float(_))),
        "string" => |_, value, _| Ok(value.as_str().is_some()),
        "mapping" => |_, value, _| Ok(matches!(value, Value::Dict(_))),
        "sequence" => |_, value, _| Ok(is_sequence(value)),
        "iterable" => |_, value, _| Ok(is_sequence(value) || matches!(value, Value::Lazy(_))),
        "callable" => |_, value, _| {
            Ok(matches!(
                value,
                Value::Macro(_)
                    | Value::Function(_)
                    | Value::Method(_)
                    | Value::Loop(_)
                    | Value::Undefined(_)
            ))
        },
        "escaped" => |_, value, _| Ok(matches!(value, Value::Str(text) if text.is_markup)),
        "lower" => |this, value, _| is_cased(this, value, char::is_lowercase, char::is_uppercase),
        "upper" => |this, value, _| is_cased(this, value, char::is_uppercase, char::is_lowercase),
        "odd" => |this, value, _| has_remainder(this, value, &Value::Int(2), 1),
        "even" => |this, value, _| has_remainder(this, value, &Value::Int(2), 0),
        "divisibleby" => |this, value, args| has_remainder(this, value, other(args)?, 0),
        "in" => |this, value, args| other(args)?.contains(value, &this.meter),
        "sameas" => |this, value, args| {
            let other = other(args)?;
            Ok(value.type_name() == other.type_name() && value.equals(other, &this.meter)?)
        },
        "eq" | "equalto" | "==" => |this, value, args| value.equals(other(args)?, &this.meter),
        "ne" | "!=" => |this, value, args| Ok(!value.equals(other(args)?, &this.meter)?),
        "lt" | "lessthan" | "<" => {
            |this, value, args| Ok(order(this, value, args, "<")? == Some(Ordering::Less))
        }
        "gt" | "greaterthan" | ">" => {
            |this, value, args| Ok(order(this, value, args, ">")? == Some(Ordering::Greater))
        }
        "le" | "<=" => |this, value, args| {
            Ok(matches!(
                order(this, value, args, "<=")?,
                Some(Ordering::Less | Ordering::Equal)
            ))
        },
        "ge" | ">=" => |this, value, args| {
            Ok(matches!(
                order(this, value, args, ">=")?,
                Some(Ordering::Greater | Ordering::Equal)
            ))
        },
        "filter" => |_, value, _| Ok(value.as_str().is_some_and(|name| filters::find(name).is_some())),
        "test" => |_, value, _| Ok(value.as_str().is_some_and(|name| find(name).is_some())),
        _ => return None,
    })
}

/// Returns whether Python finds a length and items: true also of strings, mappings and undefined values.
fn is_sequence(value: &Value) -> bool {
    match value {
        Value::Undefined(_) | Value::Str(_) | Value::List(_) | Value::Tuple(_) | Value::Dict(_) => true,
        Value::Lazy(lazy) => matches!(lazy.kind, LazyKind::Range(..)),
        _ => false,
    }
}

fn is_cased(
    this: &Interpreter<'_>,
    value: &Value,
    has: fn(char) -> bool,
    has_not: fn(char) -> bool,
) -> Result<bool, Fault> {
    let text = this.printer().to_text(value)?;
    let text = text.as_str().unwrap_or_default();
    Ok(text.chars().any(has) && !text.chars().any(has_not))
}

fn has_remainder(
    this: &Interpreter<'_>,
    value: &Value,
    divisor: &Value,
    expected: i128,
) -> Result<bool, Fault> {
    let remainder = this.binary(BinaryOp::Rem, value, divisor)?;
    remainder.equals(&Value::Int(expected), &this.meter)
}

fn other(args: &Arguments) -> Result<&Value, Fault> {
    args.positional
        .first()
        .ok_or_else(|| Fault::type_error("the test needs an argument"))
}

fn order(
    this: &Interpreter<'_>,
    value: &Value,
    args: &Arguments,
    op: &str,
) -> Result<Option<Ordering>, Fault> {
    value.order(other(args)?, op, &this.meter)
}
