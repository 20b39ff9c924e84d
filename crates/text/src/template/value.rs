//! [`Value`]: the value of a template expression, with Python's rules for truth, equality and order.
//!
//! Strings, sequences and mappings are immutable and shared, as the sandbox that chat templates are written for
//! demands. Invariants: each holds the lease of its memory, and containers nest at most [`MAX_NESTING`] deep, so every
//! walk over a value ends without overflowing the stack; a value that can refer to itself (namespaces, macros, loops) is a
//! number, not a pointer.

use std::{cell::RefCell, cmp::Ordering, rc::Rc};

use super::{
    error::{Fault, TemplateLimit},
    meter::{Lease, Meter},
    trust::Trust,
};

/// Containers inside one another.
pub(super) const MAX_NESTING: usize = 100;

#[derive(Debug, Clone)]
pub(super) enum Value {
    /// Names the undefined thing for an error.
    Undefined(Rc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Rc<Text>),
    List(Rc<Seq>),
    Tuple(Rc<Seq>),
    Lazy(Rc<Lazy>),
    Dict(Rc<Dict>),
    /// Numbers below are places in the interpreter.
    Namespace(usize),
    Macro(usize),
    Loop(usize),
    Function(Function),
    Method(Rc<BoundMethod>),
}

#[derive(Debug)]
pub(super) struct Text {
    pub(super) body: Box<str>,
    /// Whether it is marked as HTML, so that adding to it escapes the other side.
    pub(super) is_markup: bool,
    /// Which of its bytes the template itself wrote.
    pub(super) trust: Trust,
    _lease: Lease,
}

impl Text {
    /// Returns the trust of a slice of the body; none for any other string.
    pub(super) fn trust_of(&self, part: &str) -> Trust {
        let start = part.as_ptr().addr().wrapping_sub(self.body.as_ptr().addr());
        match start.checked_add(part.len()) {
            Some(end) if end <= self.body.len() => self.trust.of_part(&(start..end)),
            _ => Trust::default(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Seq {
    pub(super) items: Vec<Value>,
    depth: usize,
    _lease: Lease,
}

#[derive(Debug)]
pub(super) struct Dict {
    pub(super) entries: Vec<(Value, Value)>,
    depth: usize,
    _lease: Lease,
}

/// Python's iterables that are not lists: they print, index and serialize differently.
#[derive(Debug)]
pub(super) struct Lazy {
    pub(super) kind: LazyKind,
    depth: usize,
    items: RefCell<Option<Rc<Seq>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LazyKind {
    /// May be iterated once.
    Generator,
    /// A view of a mapping; holds Python's name for it.
    View(&'static str),
    /// Holds start, stop and step.
    Range(i128, i128, i128),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Range,
    Dict,
    Namespace,
    RaiseException,
    StrftimeNow,
    Joiner,
    Cycler,
}

#[derive(Debug)]
pub(super) struct BoundMethod {
    pub(super) receiver: Value,
    pub(super) name: Box<str>,
    depth: usize,
    _lease: Lease,
}

/// The one value that changes: `{% set ns.name = … %}`.
#[derive(Debug)]
pub(super) struct Namespace {
    pub(super) attributes: Vec<(Rc<str>, Value)>,
    lease: Lease,
}

impl Namespace {
    pub(super) fn new(meter: &Rc<Meter>) -> Result<Self, Fault> {
        Ok(Self {
            attributes: Vec::new(),
            lease: meter.lease(size_of::<Self>())?,
        })
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        let found = self.attributes.iter().find(|(candidate, _)| &**candidate == name);
        found.map(|(_, value)| value)
    }

    pub(super) fn set(&mut self, name: &str, value: Value) -> Result<(), Fault> {
        let found = self
            .attributes
            .iter_mut()
            .find(|(candidate, _)| &**candidate == name);
        if let Some((_, slot)) = found {
            *slot = value;
        } else {
            self.lease.grow(name.len() + ITEM_BYTES)?;
            self.attributes.push((name.into(), value));
        }
        Ok(())
    }
}

/// Bytes counted for one item of a container.
const ITEM_BYTES: usize = size_of::<Value>();

impl Meter {
    /// Returns a string value that is not trusted.
    pub(super) fn text(self: &Rc<Self>, text: impl Into<Box<str>> + AsRef<str>) -> Result<Value, Fault> {
        self.marked_text(text, false)
    }

    /// Returns a string of the template itself.
    pub(super) fn trusted_text(self: &Rc<Self>, text: &str) -> Result<Value, Fault> {
        self.text_with_trust(text, false, Trust::all(text.len()))
    }

    /// Returns a part of another string, with its trust.
    pub(super) fn part_of(
        self: &Rc<Self>,
        whole: &Text,
        part: &str,
        is_markup: bool,
    ) -> Result<Value, Fault> {
        self.text_with_trust(part, is_markup, whole.trust_of(part))
    }

    /// Returns a string computed from others: trusted if all of them are completely trusted.
    pub(super) fn derived_text(
        self: &Rc<Self>,
        text: String,
        is_markup: bool,
        sources: &[&Text],
    ) -> Result<Value, Fault> {
        let is_trusted = (sources.iter()).all(|source| source.trust.is_all(source.body.len()));
        let trust = Trust::all(if is_trusted { text.len() } else { 0 });
        self.text_with_trust(text, is_markup, trust)
    }

    /// Returns a string value that may be marked as HTML and is not trusted.
    pub(super) fn marked_text(
        self: &Rc<Self>,
        text: impl Into<Box<str>> + AsRef<str>,
        is_markup: bool,
    ) -> Result<Value, Fault> {
        self.text_with_trust(text, is_markup, Trust::default())
    }

    /// Returns a string value with this mark and this trust.
    pub(super) fn text_with_trust(
        self: &Rc<Self>,
        text: impl Into<Box<str>> + AsRef<str>,
        is_markup: bool,
        trust: Trust,
    ) -> Result<Value, Fault> {
        let lease = self.lease(text.as_ref().len() + trust.n_bytes() + size_of::<Text>())?;
        Ok(Value::Str(Rc::new(Text {
            body: text.into(),
            is_markup,
            trust,
            _lease: lease,
        })))
    }

    /// Returns a sequence for the value that holds it.
    pub(super) fn seq(self: &Rc<Self>, items: Vec<Value>) -> Result<Rc<Seq>, Fault> {
        let lease = self.lease(items.len().saturating_mul(ITEM_BYTES) + size_of::<Seq>())?;
        self.burn(items.len())?;
        let depth = nest(items.iter())?;
        Ok(Rc::new(Seq {
            items,
            depth,
            _lease: lease,
        }))
    }

    pub(super) fn list(self: &Rc<Self>, items: Vec<Value>) -> Result<Value, Fault> {
        Ok(Value::List(self.seq(items)?))
    }

    pub(super) fn tuple(self: &Rc<Self>, items: Vec<Value>) -> Result<Value, Fault> {
        Ok(Value::Tuple(self.seq(items)?))
    }

    pub(super) fn lazy(self: &Rc<Self>, kind: LazyKind, items: Vec<Value>) -> Result<Value, Fault> {
        let items = self.seq(items)?;
        Ok(Value::Lazy(Rc::new(Lazy {
            kind,
            depth: items.depth,
            items: RefCell::new(Some(items)),
        })))
    }

    /// Returns a mapping of entries whose keys differ.
    pub(super) fn dict(self: &Rc<Self>, entries: Vec<(Value, Value)>) -> Result<Value, Fault> {
        let lease = self.lease(entries.len().saturating_mul(2 * ITEM_BYTES) + size_of::<Dict>())?;
        self.burn(entries.len())?;
        let depth = nest(entries.iter().flat_map(|(key, value)| [key, value]))?;
        Ok(Value::Dict(Rc::new(Dict {
            entries,
            depth,
            _lease: lease,
        })))
    }

    pub(super) fn method(self: &Rc<Self>, receiver: &Value, name: &str) -> Result<Value, Fault> {
        let lease = self.lease(name.len() + size_of::<BoundMethod>())?;
        Ok(Value::Method(Rc::new(BoundMethod {
            depth: nest(std::iter::once(receiver))?,
            receiver: receiver.clone(),
            name: name.into(),
            _lease: lease,
        })))
    }
}

/// Returns the depth of a container of `items`.
fn nest<'v>(items: impl Iterator<Item = &'v Value>) -> Result<usize, Fault> {
    let depth = 1 + items.map(Value::depth).max().unwrap_or(0);
    if depth > MAX_NESTING {
        return Err(Fault::Limit(TemplateLimit::Nesting(MAX_NESTING)));
    }
    Ok(depth)
}

impl Value {
    pub(super) fn undefined(what: impl AsRef<str>) -> Self {
        Self::Undefined(what.as_ref().into())
    }

    fn depth(&self) -> usize {
        match self {
            Self::List(seq) | Self::Tuple(seq) => seq.depth,
            Self::Lazy(lazy) => lazy.depth,
            Self::Dict(dict) => dict.depth,
            Self::Method(method) => method.depth,
            _ => 0,
        }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(&text.body),
            _ => None,
        }
    }

    /// Returns the integer if Python would accept one (`True` is 1).
    pub(super) fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(value) => Some(*value),
            Self::Bool(value) => Some(i128::from(*value)),
            _ => None,
        }
    }

    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            _ => self.as_int().map(|value| value as f64),
        }
    }

    /// Python's name for its type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) => "str",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Lazy(lazy) => match lazy.kind {
                LazyKind::Generator => "generator",
                LazyKind::View(name) => name,
                LazyKind::Range(..) => "range",
            },
            Self::Dict(_) => "dict",
            Self::Namespace(_) => "Namespace",
            Self::Macro(_) => "Macro",
            Self::Loop(_) => "LoopContext",
            Self::Function(_) => "function",
            Self::Method(_) => "builtin_function_or_method",
        }
    }

    pub(super) fn is_truthy(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Str(text) => !text.body.is_empty(),
            Self::List(seq) | Self::Tuple(seq) => !seq.items.is_empty(),
            Self::Lazy(lazy) => lazy.len() != Some(0),
            Self::Dict(dict) => !dict.entries.is_empty(),
            _ => true,
        }
    }

    /// Returns the number of items, for types that Python's `len` takes.
    pub(super) fn len(&self) -> Result<usize, Fault> {
        match self {
            Self::Undefined(_) => Ok(0),
            Self::Str(text) => Ok(text.body.chars().count()),
            Self::List(seq) | Self::Tuple(seq) => Ok(seq.items.len()),
            Self::Dict(dict) => Ok(dict.entries.len()),
            Self::Lazy(lazy) if lazy.kind != LazyKind::Generator => Ok(lazy.len().unwrap_or(0)),
            _ => Err(Fault::Type(format!(
                "object of type '{}' has no len()",
                self.type_name()
            ))),
        }
    }

    /// Its items: of a mapping the keys, of a string the characters.
    pub(super) fn iterate(&self, meter: &Rc<Meter>) -> Result<Rc<Seq>, Fault> {
        match self {
            Self::Undefined(_) => meter.seq(Vec::new()),
            Self::Str(text) => {
                meter.check_room(text.body.len().saturating_mul(ITEM_BYTES + size_of::<Text>()))?;
                let chars: Result<Vec<Value>, Fault> =
                    text.body.chars().map(|c| meter.text(c.to_string())).collect();
                meter.seq(chars?)
            }
            Self::List(seq) | Self::Tuple(seq) => Ok(Rc::clone(seq)),
            Self::Dict(dict) => meter.seq(dict.entries.iter().map(|(key, _)| key.clone()).collect()),
            Self::Lazy(lazy) => match lazy.take() {
                Some(items) => Ok(items),
                None => meter.seq(Vec::new()),
            },
            _ => Err(Fault::Type(format!(
                "'{}' object is not iterable",
                self.type_name()
            ))),
        }
    }

    /// `self == other`.
    pub(super) fn equals(&self, other: &Self, meter: &Meter) -> Result<bool, Fault> {
        meter.burn(1)?;
        Ok(match (self, other) {
            (Self::Undefined(_), Self::Undefined(_)) | (Self::None, Self::None) => true,
            (Self::Str(a), Self::Str(b)) => {
                meter.burn_bytes(a.body.len().min(b.body.len()))?;
                a.body == b.body
            }
            (Self::List(a), Self::List(b)) | (Self::Tuple(a), Self::Tuple(b)) => {
                if a.items.len() != b.items.len() {
                    return Ok(false);
                }
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b, meter)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Self::Dict(a), Self::Dict(b)) => {
                if a.entries.len() != b.entries.len() {
                    return Ok(false);
                }
                for (key, value) in &a.entries {
                    match b.get(key, meter)? {
                        Some(found) if value.equals(found, meter)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Self::Lazy(a), Self::Lazy(b)) => Rc::ptr_eq(a, b),
            (Self::Namespace(a), Self::Namespace(b))
            | (Self::Macro(a), Self::Macro(b))
            | (Self::Loop(a), Self::Loop(b)) => a == b,
            (Self::Function(a), Self::Function(b)) => a == b,
            _ => match (self.as_int(), other.as_int()) {
                (Some(a), Some(b)) => a == b,
                _ => match (self.as_float(), other.as_float()) {
                    (Some(a), Some(b)) => a == b,
                    _ => false,
                },
            },
        })
    }

    /// `self < other`, and so on; `op` is how the error names it.
    pub(super) fn order(&self, other: &Self, op: &str, meter: &Meter) -> Result<Option<Ordering>, Fault> {
        meter.burn(1)?;
        match (self, other) {
            (Self::Str(a), Self::Str(b)) => {
                meter.burn_bytes(a.body.len().min(b.body.len()))?;
                Ok(Some(a.body.cmp(&b.body)))
            }
            (Self::List(a), Self::List(b)) | (Self::Tuple(a), Self::Tuple(b)) => {
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b, meter)? {
                        return a.order(b, op, meter);
                    }
                }
                Ok(Some(a.items.len().cmp(&b.items.len())))
            }
            (Self::Undefined(what), _) | (_, Self::Undefined(what)) => {
                Err(Fault::Undefined(what.to_string()))
            }
            _ => match (self.as_int(), other.as_int()) {
                (Some(a), Some(b)) => Ok(Some(a.cmp(&b))),
                _ => match (self.as_float(), other.as_float()) {
                    (Some(a), Some(b)) => Ok(a.partial_cmp(&b)),
                    _ => Err(Fault::Type(format!(
                        "'{op}' not supported between instances of '{}' and '{}'",
                        self.type_name(),
                        other.type_name()
                    ))),
                },
            },
        }
    }

    /// `item in self`.
    pub(super) fn contains(&self, item: &Self, meter: &Rc<Meter>) -> Result<bool, Fault> {
        match self {
            Self::Str(text) => match item {
                Self::Str(needle) => {
                    meter.burn_bytes(text.body.len())?;
                    Ok(text.body.contains(&*needle.body))
                }
                _ => Err(Fault::Type(format!(
                    "'in <string>' requires string as left operand, not {}",
                    item.type_name()
                ))),
            },
            Self::Dict(dict) => Ok(dict.get(item, meter)?.is_some()),
            Self::Undefined(_) | Self::List(_) | Self::Tuple(_) | Self::Lazy(_) => {
                for candidate in &self.iterate(meter)?.items {
                    if candidate.equals(item, meter)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            _ => Err(Fault::Type(format!(
                "argument of type '{}' is not iterable",
                self.type_name()
            ))),
        }
    }
}

impl Dict {
    /// Returns the value of a key.
    pub(super) fn get(&self, key: &Value, meter: &Meter) -> Result<Option<&Value>, Fault> {
        check_hashable(key)?;
        meter.burn(self.entries.len() / 16)?;
        if let Some(name) = key.as_str() {
            return Ok(self.get_str(name));
        }
        for (candidate, value) in &self.entries {
            if candidate.equals(key, meter)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    pub(super) fn get_str(&self, key: &str) -> Option<&Value> {
        self.entries
            .iter()
            .find(|(candidate, _)| candidate.as_str() == Some(key))
            .map(|(_, value)| value)
    }
}

/// Refuses a key that Python cannot hash.
pub(super) fn check_hashable(key: &Value) -> Result<(), Fault> {
    match key {
        Value::List(_) | Value::Dict(_) => {
            Err(Fault::Type(format!("unhashable type: '{}'", key.type_name())))
        }
        Value::Tuple(seq) => seq.items.iter().try_for_each(check_hashable),
        _ => Ok(()),
    }
}

impl Lazy {
    fn len(&self) -> Option<usize> {
        match self.kind {
            LazyKind::Generator => None,
            _ => self.items.borrow().as_ref().map(|items| items.items.len()),
        }
    }

    /// Takes the items; a generator has them only once.
    fn take(&self) -> Option<Rc<Seq>> {
        match self.kind {
            LazyKind::Generator => self.items.borrow_mut().take(),
            _ => self.items.borrow().clone(),
        }
    }

    /// Returns the items and leaves them in place.
    pub(super) fn peek(&self) -> Option<Rc<Seq>> {
        self.items.borrow().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_when_values_are_dropped() {
        let meter = Meter::new(u64::MAX, 1000);
        for _ in 0..100 {
            meter.text("x".repeat(500)).unwrap();
        }
        let kept = meter.text("x".repeat(500)).unwrap();
        assert!(meter.text("x".repeat(500)).is_err());
        drop(kept);
        assert!(meter.text("x".repeat(500)).is_ok());
    }
}
