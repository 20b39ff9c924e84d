//! Evaluates expressions.
//!
//! It is separate from the statements because every rule here is Python's, seen through Jinja's sandbox: attributes
//! and items fall back on each other, what is missing is undefined rather than an error, and nothing can be changed.

use std::{cmp::Ordering, rc::Rc};

use super::{
    ast::{Arg, Call, CompareOp, Expr, Symbol},
    error::Fault,
    interpreter::Interpreter,
    meter::TextBuf,
    methods, operators,
    value::{Function, LazyKind, Namespace, Value, check_hashable},
};

/// Evaluated arguments of a call.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Value>,
    pub(super) keyword: Vec<(Rc<str>, Value)>,
}

impl Arguments {
    /// Positional arguments alone.
    pub(super) fn of(positional: &[Value]) -> Self {
        Self {
            positional: positional.to_vec(),
            keyword: Vec::new(),
        }
    }

    pub(super) fn take_keyword(&mut self, name: &str) -> Option<Value> {
        let at = self.keyword.iter().position(|(keyword, _)| &**keyword == name)?;
        Some(self.keyword.remove(at).1)
    }

    /// The arguments in the order of `names`, as Python binds them.
    pub(super) fn bind<const N: usize>(
        &self,
        function: &str,
        names: [&str; N],
    ) -> Result<[Option<Value>; N], Fault> {
        if self.positional.len() > N {
            return Err(Fault::Type(format!(
                "{function} takes at most {N} arguments ({} given)",
                self.positional.len()
            )));
        }
        let mut bound = [const { None }; N];
        for (slot, value) in bound.iter_mut().zip(&self.positional) {
            *slot = Some(value.clone());
        }
        for (keyword, value) in &self.keyword {
            match names.iter().position(|name| **name == **keyword) {
                Some(at) if bound[at].is_none() => bound[at] = Some(value.clone()),
                Some(_) => {
                    return Err(Fault::Type(format!(
                        "{function} got multiple values for argument '{keyword}'"
                    )));
                }
                None => {
                    return Err(Fault::Type(format!(
                        "{function} got an unexpected keyword argument '{keyword}'"
                    )));
                }
            }
        }
        Ok(bound)
    }
}

/// Escapes text for HTML as MarkupSafe does.
pub(super) fn escape_html(text: &str, out: &mut TextBuf) -> Result<(), Fault> {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;")?,
            '<' => out.push_str("&lt;")?,
            '>' => out.push_str("&gt;")?,
            '"' => out.push_str("&#34;")?,
            '\'' => out.push_str("&#39;")?,
            _ => out.push(c)?,
        }
    }
    Ok(())
}

impl<'t> Interpreter<'t> {
    pub(super) fn eval(&mut self, expr: &'t Expr) -> Result<Value, Fault> {
        self.enter()?;
        let value = match expr {
            Expr::Literal(index) => self.literals[*index].clone(),
            Expr::Name(symbol) => self.eval_name(*symbol),
            Expr::Captured => self.captured.clone().unwrap_or(Value::None),
            Expr::List(items) => {
                let items = self.eval_all(items)?;
                self.meter.list(items)?
            }
            Expr::Tuple(items) => {
                let items = self.eval_all(items)?;
                self.meter.tuple(items)?
            }
            Expr::Dict(entries) => self.eval_dict(entries)?,
            Expr::Attribute(object, name) => {
                let object = self.eval(object)?;
                let program = self.program;
                self.attribute(&object, &program.names[*name as usize])?
            }
            Expr::Item(object, index) => {
                let object = self.eval(object)?;
                let index = self.eval(index)?;
                self.item(&object, &index)?
            }
            Expr::Slice(object, bounds) => self.eval_slice(object, bounds)?,
            Expr::Call(call) => self.eval_call(call, None)?,
            Expr::Filter(filter) => {
                let Some(function) = filter.function else {
                    return Err(Fault::Type(format!("No filter named '{}'", filter.name)));
                };
                let input = self.eval(&filter.input)?;
                let args = self.eval_args(&filter.args)?;
                function(self, &input, &args)?
            }
            Expr::Test(test) => {
                let Some(function) = test.function else {
                    return Err(Fault::Type(format!("No test named '{}'", test.name)));
                };
                let input = self.eval(&test.input)?;
                let args = self.eval_args(&test.args)?;
                Value::Bool(function(self, &input, &args)?)
            }
            Expr::Negate(inner) => {
                let value = self.eval(inner)?;
                operators::negate(&value)?
            }
            Expr::Plus(inner) => {
                let value = self.eval(inner)?;
                match value.as_int() {
                    Some(value) => Value::Int(value),
                    None if matches!(value, Value::Float(_)) => value,
                    None => return Err(operators::bad_unary("+", &value)),
                }
            }
            Expr::Not(inner) => Value::Bool(!self.eval(inner)?.is_truthy()),
            Expr::Binary(op, operands) => {
                let left = self.eval(&operands.0)?;
                let right = self.eval(&operands.1)?;
                self.binary(*op, &left, &right)?
            }
            Expr::Concat(parts) => self.eval_concat(parts)?,
            Expr::Compare(first, rest) => self.eval_compare(first, rest)?,
            Expr::And(operands) => {
                let left = self.eval(&operands.0)?;
                if left.is_truthy() {
                    self.eval(&operands.1)?
                } else {
                    left
                }
            }
            Expr::Or(operands) => {
                let left = self.eval(&operands.0)?;
                if left.is_truthy() {
                    left
                } else {
                    self.eval(&operands.1)?
                }
            }
            Expr::IfElse(parts) => {
                let (condition, then, otherwise) = &**parts;
                if self.eval(condition)?.is_truthy() {
                    self.eval(then)?
                } else if let Some(otherwise) = otherwise {
                    self.eval(otherwise)?
                } else {
                    Value::undefined(
                        "the inline if-expression evaluated to false and no else section was defined",
                    )
                }
            }
        };
        self.leave();
        Ok(value)
    }

    fn eval_all(&mut self, exprs: &'t [Expr]) -> Result<Vec<Value>, Fault> {
        exprs.iter().map(|expr| self.eval(expr)).collect()
    }

    fn eval_name(&mut self, symbol: Symbol) -> Value {
        if let Some(value) = self.lookup(symbol) {
            return value.clone();
        }
        let name = &*self.program.names[symbol as usize];
        match name {
            "range" => Value::Function(Function::Range),
            "dict" => Value::Function(Function::Dict),
            "namespace" => Value::Function(Function::Namespace),
            "raise_exception" => Value::Function(Function::RaiseException),
            "strftime_now" => Value::Function(Function::StrftimeNow),
            _ => Value::undefined(format!("'{}' is undefined", shorten(name))),
        }
    }

    fn eval_dict(&mut self, entries: &'t [(Expr, Expr)]) -> Result<Value, Fault> {
        let mut pairs: Vec<(Value, Value)> = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let key = self.eval(key)?;
            let value = self.eval(value)?;
            self.insert(&mut pairs, key, value)?;
        }
        self.meter.dict(pairs)
    }

    /// Sets an entry of a mapping under construction.
    pub(super) fn insert(
        &self,
        entries: &mut Vec<(Value, Value)>,
        key: Value,
        value: Value,
    ) -> Result<(), Fault> {
        check_hashable(&key)?;
        for entry in entries.iter_mut() {
            if entry.0.equals(&key, &self.meter)? {
                entry.1 = value;
                return Ok(());
            }
        }
        entries.push((key, value));
        Ok(())
    }

    fn eval_concat(&mut self, parts: &'t [Expr]) -> Result<Value, Fault> {
        let mut text = TextBuf::new(&self.meter);
        for part in parts {
            let value = self.eval(part)?;
            self.printer().str(&value, &mut text)?;
        }
        self.finish(text)
    }

    /// The value of a finished buffer.
    pub(super) fn finish(&self, text: TextBuf) -> Result<Value, Fault> {
        let (text, trust) = text.into_parts();
        self.meter.text_with_trust(text, false, trust)
    }

    fn eval_compare(&mut self, first: &'t Expr, rest: &'t [(CompareOp, Expr)]) -> Result<Value, Fault> {
        let mut left = self.eval(first)?;
        for (op, right) in rest {
            let right = self.eval(right)?;
            if !self.compare(*op, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    fn compare(&self, op: CompareOp, left: &Value, right: &Value) -> Result<bool, Fault> {
        let meter = &self.meter;
        Ok(match op {
            CompareOp::Equal => left.equals(right, meter)?,
            CompareOp::NotEqual => !left.equals(right, meter)?,
            CompareOp::In => right.contains(left, meter)?,
            CompareOp::NotIn => !right.contains(left, meter)?,
            CompareOp::Less => left.order(right, "<", meter)? == Some(Ordering::Less),
            CompareOp::Greater => left.order(right, ">", meter)? == Some(Ordering::Greater),
            CompareOp::LessEqual => matches!(
                left.order(right, "<=", meter)?,
                Some(Ordering::Less | Ordering::Equal)
            ),
            CompareOp::GreaterEqual => matches!(
                left.order(right, ">=", meter)?,
                Some(Ordering::Greater | Ordering::Equal)
            ),
        })
    }

    // Attributes and items.

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
                // An unhashable key is no key.
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

    fn eval_slice(&mut self, object: &'t Expr, bounds: &'t [Option<Expr>; 3]) -> Result<Value, Fault> {
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

    // Calls.

    pub(super) fn eval_args(&mut self, args: &'t [Arg]) -> Result<Arguments, Fault> {
        let mut evaluated = Arguments::default();
        let program = self.program;
        for arg in args {
            match arg {
                Arg::Positional(expr) => evaluated.positional.push(self.eval(expr)?),
                Arg::Keyword(name, expr) => {
                    let value = self.eval(expr)?;
                    let name = &*program.names[*name as usize];
                    evaluated.keyword.push((name.into(), value));
                }
                Arg::Spread(expr) => {
                    let items = self.eval(expr)?.iterate(&self.meter)?;
                    self.meter.burn(items.items.len())?;
                    evaluated.positional.extend(items.items.iter().cloned());
                }
                Arg::SpreadMapping(expr) => {
                    let Value::Dict(dict) = self.eval(expr)? else {
                        return Err(Fault::type_error("argument after ** must be a mapping"));
                    };
                    for (key, value) in &dict.entries {
                        let Some(name) = key.as_str() else {
                            return Err(Fault::type_error("keywords must be strings"));
                        };
                        self.meter.burn_bytes(name.len())?;
                        self.meter.check_room(name.len())?;
                        evaluated.keyword.push((name.into(), value.clone()));
                    }
                }
            }
        }
        Ok(evaluated)
    }

    /// Calls a function, method, macro or loop; `caller` is what a `{% call %}` block passes.
    pub(super) fn eval_call(&mut self, call: &'t Call, caller: Option<Value>) -> Result<Value, Fault> {
        // A method called where it is named needs no value of its own.
        if let Expr::Attribute(object, name) = &call.callee {
            let object = self.eval(object)?;
            let program = self.program;
            let name = &*program.names[*name as usize];
            if let Some(method) = methods::find(&object, name) {
                let args = self.eval_args(&call.args)?;
                return method(self, &object, &args);
            }
            let callee = self.attribute(&object, name)?;
            let args = self.eval_args(&call.args)?;
            return self.call(&callee, args, caller);
        }
        let callee = self.eval(&call.callee)?;
        let args = self.eval_args(&call.args)?;
        self.call(&callee, args, caller)
    }

    fn call(&mut self, callee: &Value, args: Arguments, caller: Option<Value>) -> Result<Value, Fault> {
        match callee {
            Value::Macro(index) => self.call_macro(*index, args, caller),
            Value::Function(function) => self.call_function(*function, &args),
            Value::Loop(index) => {
                let [items] = args.bind("loop()", ["iterable"])?;
                let items = items.ok_or_else(|| Fault::type_error("loop() needs what to iterate"))?;
                self.recurse(*index, &items)
            }
            Value::Method(method) => {
                if let Value::Loop(index) = method.receiver {
                    return self.call_loop_method(index, &method.name, &args);
                }
                let function =
                    methods::find(&method.receiver, &method.name).expect("it was found when it was bound");
                function(self, &method.receiver, &args)
            }
            Value::Undefined(what) => Err(Fault::Undefined(what.to_string())),
            _ => Err(Fault::Type(format!(
                "'{}' object is not callable",
                callee.type_name()
            ))),
        }
    }

    fn call_loop_method(&mut self, loop_idx: usize, name: &str, args: &Arguments) -> Result<Value, Fault> {
        let current = self.meter.tuple(args.positional.clone())?;
        let Some(state) = self.loops.get_mut(loop_idx) else {
            return Err(Fault::type_error("the loop is over"));
        };
        if name == "cycle" {
            return match args.positional.len() {
                0 => Err(Fault::type_error("no items for cycling given")),
                n => Ok(args.positional[state.index % n].clone()),
            };
        }
        let last = state.last_changed.replace(current.clone());
        let is_same = match last {
            Some(last) => last.equals(&current, &self.meter)?,
            None => false,
        };
        Ok(Value::Bool(!is_same))
    }

    fn call_function(&mut self, function: Function, args: &Arguments) -> Result<Value, Fault> {
        match function {
            Function::Range => self.range(args),
            Function::Dict | Function::Namespace => {
                let mut entries = Vec::new();
                match &args.positional[..] {
                    [] => {}
                    [Value::Dict(dict)] => entries.clone_from(&dict.entries),
                    [pairs] => {
                        for pair in &pairs.iterate(&self.meter)?.items {
                            match &pair.iterate(&self.meter)?.items[..] {
                                [key, value] => self.insert(&mut entries, key.clone(), value.clone())?,
                                _ => return Err(Fault::type_error("dict() needs pairs")),
                            }
                        }
                    }
                    _ => return Err(Fault::type_error("dict expected at most 1 argument")),
                }
                for (name, value) in &args.keyword {
                    let key = self.meter.text(&**name)?;
                    self.insert(&mut entries, key, value.clone())?;
                }
                let dict = self.meter.dict(entries)?;
                if function == Function::Dict {
                    return Ok(dict);
                }
                self.namespace(&dict)
            }
            Function::RaiseException => {
                let [message] = args.bind("raise_exception()", ["message"])?;
                let mut text = TextBuf::new(&self.meter);
                self.printer().str(&message.unwrap_or(Value::None), &mut text)?;
                Err(Fault::Raised(text.into_string()))
            }
            Function::StrftimeNow => {
                let [format] = args.bind("strftime_now()", ["format"])?;
                let format = format.unwrap_or(Value::None);
                let Some(format) = format.as_str().filter(|format| format.len() <= 1024) else {
                    return Err(Fault::type_error(
                        "strftime_now() needs a format of at most 1024 bytes",
                    ));
                };
                self.meter.text(self.now.strftime(format)?)
            }
        }
    }

    fn namespace(&mut self, attributes: &Value) -> Result<Value, Fault> {
        let index = self.namespaces.len();
        self.namespaces.push(Namespace::new(&self.meter)?);
        if let Value::Dict(dict) = attributes {
            for (key, value) in &dict.entries {
                let Some(name) = key.as_str() else {
                    return Err(Fault::type_error("a namespace's attributes have names"));
                };
                self.set_attribute(index, name, value.clone())?;
            }
        }
        Ok(Value::Namespace(index))
    }

    fn range(&self, args: &Arguments) -> Result<Value, Fault> {
        /// As Jinja's sandbox has it.
        const MAX_RANGE: i128 = 100_000;
        let mut numbers = Vec::with_capacity(3);
        for value in &args.positional {
            numbers.push(value.as_int().ok_or_else(|| {
                Fault::Type(format!(
                    "'{}' object cannot be interpreted as an integer",
                    value.type_name()
                ))
            })?);
        }
        let (start, stop, step) = match numbers[..] {
            [stop] => (0, stop, 1),
            [start, stop] => (start, stop, 1),
            [start, stop, step] if step != 0 => (start, stop, step),
            [_, _, _] => return Err(Fault::type_error("range() arg 3 must not be zero")),
            _ => return Err(Fault::type_error("range expected from 1 to 3 arguments")),
        };
        let too_big = || Fault::Type(format!("range too big, the maximum is {MAX_RANGE}"));
        let span = if step > 0 {
            stop.checked_sub(start)
        } else {
            start.checked_sub(stop)
        };
        let step_size = step.checked_abs().ok_or_else(too_big)?;
        let span = span.ok_or_else(too_big)?.max(0);
        let n_items = span / step_size + i128::from(span % step_size > 0);
        if n_items > MAX_RANGE {
            return Err(too_big());
        }
        let items = (0..n_items)
            .map(|index| Value::Int(start + index * step))
            .collect();
        self.meter.lazy(LazyKind::Range(start, stop, step), items)
    }
}

fn shorten(name: &str) -> String {
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
