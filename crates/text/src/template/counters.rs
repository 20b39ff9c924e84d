//! Jinja's `joiner` and `cycler`, which count their calls.
//!
//! Each is a namespace with entries that no template can name. Invariant: their entries count against the limits like those of any
//! namespace.

use super::{
    arguments::Arguments,
    error::Fault,
    interpreter::Interpreter,
    value::{Namespace, Value},
};

/// Entry with a joiner's separator, and whether it was called before.
const SEPARATOR: &str = "\0separator";
const IS_BEGUN: &str = "\0is begun";

/// Entry with a cycler's items, and the index of the next.
const ITEMS: &str = "\0items";
const PLACE: &str = "\0place";

impl Interpreter<'_> {
    /// `joiner(sep=", ")` returns nothing on its first call, then the separator.
    pub(super) fn joiner(&mut self, args: &Arguments) -> Result<Value, Fault> {
        let [separator] = args.bind("joiner()", ["sep"])?;
        let separator = match separator {
            Some(separator) => separator,
            None => self.meter.trusted_text(", ")?,
        };
        self.counter([(SEPARATOR, separator), (IS_BEGUN, Value::Bool(false))])
    }

    /// `cycler(*items)`: `next()` returns the items in turn, `current` is the next one, `reset()` starts again.
    pub(super) fn cycler(&mut self, args: &Arguments) -> Result<Value, Fault> {
        let [] = Arguments {
            positional: Vec::new(),
            keyword: args.keyword.clone(),
        }
        .bind("cycler()", [])?;
        let Some(first) = args.positional.first().cloned() else {
            return Err(Fault::type_error("at least one item has to be provided"));
        };
        let items = self.meter.tuple(args.positional.clone())?;
        self.counter([(ITEMS, items), (PLACE, Value::Int(0)), ("current", first)])
    }

    fn counter<const N: usize>(&mut self, entries: [(&str, Value); N]) -> Result<Value, Fault> {
        let index = self.namespaces.len();
        let mut counter = Namespace::new(&self.meter)?;
        for (name, value) in entries {
            counter.set(name, value)?;
        }
        self.namespaces.push(counter);
        Ok(Value::Namespace(index))
    }

    /// Calls a joiner.
    pub(super) fn call_joiner(&mut self, index: usize) -> Result<Value, Fault> {
        let counter = self.namespaces.get(index);
        let entry = |name| counter.and_then(|counter| counter.get(name)).cloned();
        let (Some(separator), Some(is_begun)) = (entry(SEPARATOR), entry(IS_BEGUN)) else {
            return Err(Fault::type_error("'Namespace' object is not callable"));
        };
        if is_begun.is_truthy() {
            return Ok(separator);
        }
        self.set_attribute(index, IS_BEGUN, Value::Bool(true))?;
        self.meter.text("")
    }

    /// Calls a method of a cycler; `None` if the namespace is not a cycler.
    pub(super) fn call_cycler(&mut self, index: usize, name: &str) -> Result<Option<Value>, Fault> {
        let counter = self.namespaces.get(index);
        let entry = |name| counter.and_then(|counter| counter.get(name)).cloned();
        let (Some(Value::Tuple(items)), Some(Value::Int(place)), Some(current)) =
            (entry(ITEMS), entry(PLACE), entry("current"))
        else {
            return Ok(None);
        };
        let next = match name {
            "next" => (place as usize + 1) % items.items.len(),
            "reset" => 0,
            _ => return Ok(None),
        };
        self.set_attribute(index, PLACE, Value::Int(next as i128))?;
        self.set_attribute(index, "current", items.items[next].clone())?;
        Ok(Some(if name == "next" { current } else { Value::None }))
    }
}
