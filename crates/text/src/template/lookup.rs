//! Attributes, items and slices: `object.name`, `object[index]`, `object[start:stop:step]`.
//!
//! The rules are Jinja's: attributes and items fall back on each other, and a missing one is undefined rather than an
//! error. Invariant: only a template's own values are reached, none of the interpreter.

use super::{
    ast::Expr,
    error::Fault,
    interpreter::Interpreter,
    meter::TextBuf,
    methods,
    value::{LazyKind, Value},
};

impl<'t> Interpreter<'t> {
    /// `object.name`.
    pub(super) fn attribute(&self, object: &Value, name: &str) -> Result<Value, Fault> {
        if let Value::Undefined(what) = object {
            return Err(Fault::Undefined(what.to_string()));
        }
        if methods::find(object, name).is_some() {
            return self.meter.method(object, name);
        }
        let found = match object {
            Value::Dict(dict) => {
                self.meter.burn(dict.entries.len() / 16)?;
                dict.get_str(name).cloned()
            }
            Value::Namespace(index) => self
                .namespaces
                .get(*index)
                .and_then(|namespace| namespace.get(name).cloned()),
            Value::Loop(index) => self.loop_attribute(*index, name)?,
            Value::Macro(index) if name == "name" => {
                let program = self.program;
                let symbol = self.macros.get(*index).map(|this| program.macros[this.def].name);
                match symbol {
                    Some(symbol) => Some(self.meter.text(&*program.names[symbol as usize])?),
                    None => None,
                }
            }
            _ => None,
        };
        Ok(found.unwrap_or_else(|| missing_attribute(object, name)))
    }

    fn loop_attribute(&self, loop_idx: usize, name: &str) -> Result<Option<Value>, Fault> {
        let Some(state) = self.loops.get(loop_idx) else {
            return Ok(None);
        };
        let (index, n) = (state.index, state.items.items.len());
        let int = |value: usize| Value::Int(value as i128);
        Ok(Some(match name {
            "index" => int(index + 1),
            "index0" => int(index),
            "revindex" => int(n - index),
            "revindex0" => int(n - index - 1),
            "first" => Value::Bool(index == 0),
            "last" => Value::Bool(index + 1 == n),
            "length" => int(n),
            "depth" => int(state.depth),
            "depth0" => int(state.depth - 1),
            "previtem" => match index.checked_sub(1) {
                Some(previous) => state.items.items[previous].clone(),
                None => Value::undefined("there is no previous item"),
            },
            "nextitem" => match state.items.items.get(index + 1) {
                Some(next) => next.clone(),
                None => Value::undefined("there is no next item"),
            },
            "cycle" | "changed" => self.meter.method(&Value::Loop(loop_idx), name)?,
            _ => return Ok(None),
        }))
    }

    /// `object[index]`.
    pub(super) fn item(&self, object: &Value, index: &Value) -> Result<Value, Fault> {
        let found = match object {
            Value::Undefined(what) => return Err(Fault::Undefined(what.to_string())),
            Value::List(seq) | Value::Tuple(seq) => index
                .as_int()
                .and_then(|index| wrap_index(index, seq.items.len()))
                .map(|index| seq.items[index].clone()),
            Value::Lazy(lazy) if matches!(lazy.kind, LazyKind::Range(..)) => lazy.peek().and_then(|items| {
                let index = wrap_index(index.as_int()?, items.items.len())?;
                Some(items.items[index].clone())
            }),
            Value::Str(text) => match index.as_int() {
                Some(index) => {
                    self.meter.burn_bytes(text.body.len())?;
                    let n_chars = text.body.chars().count();
                    match wrap_index(index, n_chars).and_then(|index| text.body.chars().nth(index)) {
                        Some(c) => Some(self.meter.text(c.to_string())?),
                        None => None,
                    }
                }
                None => None,
            },
            Value::Dict(dict) => match index {
                // An unhashable value is never a key.
                Value::List(_) | Value::Dict(_) => None,
                _ => dict.get(index, &self.meter)?.cloned(),
            },
            _ => None,
        };
        match (found, index.as_str()) {
            (Some(found), _) => Ok(found),
            (None, Some(name)) => self.attribute(object, name),
            (None, None) => {
                let mut what = TextBuf::new(&self.meter);
                self.printer().repr(index, &mut what, 0)?;
                let what = what.into_string();
                Ok(missing_attribute(object, &what))
            }
        }
    }

    pub(super) fn eval_slice(
        &mut self,
        object: &'t Expr,
        bounds: &'t [Option<Expr>; 3],
    ) -> Result<Value, Fault> {
        let object = self.eval(object)?;
        let mut numbers = [None; 3];
        for (number, bound) in numbers.iter_mut().zip(bounds) {
            let Some(bound) = bound else { continue };
            let value = self.eval(bound)?;
            *number = match (&value, value.as_int()) {
                (Value::None, _) => None,
                (_, Some(value)) => Some(value),
                _ => {
                    return Err(Fault::type_error(
                        "slice indices must be integers or None or have an __index__ method",
                    ));
                }
            };
        }
        let pick = |n: usize| slice_indices(n, numbers);
        match &object {
            Value::Undefined(what) => Err(Fault::Undefined(what.to_string())),
            Value::Str(text) => {
                self.meter
                    .check_room(text.body.len().saturating_mul(size_of::<char>()))?;
                self.meter.burn_bytes(text.body.len())?;
                let chars: Vec<char> = text.body.chars().collect();
                let sliced: String = pick(chars.len())?.into_iter().map(|index| chars[index]).collect();
                self.meter.derived_text(sliced, text.is_markup, &[text])
            }
            Value::List(seq) => {
                let items = pick(seq.items.len())?;
                self.meter
                    .list(items.into_iter().map(|index| seq.items[index].clone()).collect())
            }
            Value::Tuple(seq) => {
                let items = pick(seq.items.len())?;
                self.meter
                    .tuple(items.into_iter().map(|index| seq.items[index].clone()).collect())
            }
            Value::Lazy(lazy) if matches!(lazy.kind, LazyKind::Range(..)) => {
                let seq = lazy.peek().expect("a range keeps its items");
                let items = pick(seq.items.len())?;
                self.meter
                    .list(items.into_iter().map(|index| seq.items[index].clone()).collect())
            }
            Value::Dict(_) => Err(Fault::type_error("unhashable type: 'slice'")),
            _ => Err(Fault::Type(format!(
                "'{}' object is not subscriptable",
                object.type_name()
            ))),
        }
    }
}

pub(super) fn shorten(name: &str) -> String {
    name.chars().take(64).collect()
}

fn missing_attribute(object: &Value, name: &str) -> Value {
    let name = shorten(name);
    Value::undefined(match object {
        Value::None => format!("'None' has no attribute '{name}'"),
        _ => format!("'{} object' has no attribute '{name}'", object.type_name()),
    })
}

fn wrap_index(index: i128, n: usize) -> Option<usize> {
    let index = if index < 0 { index + n as i128 } else { index };
    usize::try_from(index).ok().filter(|index| *index < n)
}

/// The indices that a slice of a sequence of `n` items picks.
fn slice_indices(n: usize, [start, stop, step]: [Option<i128>; 3]) -> Result<Vec<usize>, Fault> {
    let n = n as i128;
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(Fault::type_error("slice step cannot be zero"));
    }
    let (lowest, highest) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let clamp = |bound: Option<i128>, default: i128| match bound {
        None => default,
        Some(bound) if bound < 0 => bound.saturating_add(n).clamp(lowest, highest),
        Some(bound) => bound.clamp(lowest, highest),
    };
    let (start, stop) = if step > 0 {
        (clamp(start, lowest), clamp(stop, highest))
    } else {
        (clamp(start, highest), clamp(stop, lowest))
    };
    let mut indices = Vec::new();
    let mut index = start;
    while if step > 0 { index < stop } else { index > stop } {
        indices.push(index as usize);
        index = index.saturating_add(step);
    }
    Ok(indices)
}
