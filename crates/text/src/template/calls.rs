//! Calls: of functions, macros, methods and loops, with their arguments.
//!
//! The list of callable things is closed: the environment's functions are all here. Invariant: a call makes nothing
//! larger than the meter allows, `range` included.

use super::{
    arguments::Arguments,
    ast::{Arg, Call, Expr},
    error::Fault,
    interpreter::Interpreter,
    meter::TextBuf,
    methods,
    value::{Function, LazyKind, Namespace, Value},
};

impl<'t> Interpreter<'t> {
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

    /// Calls a function, method, macro or loop; `caller` is the macro of a `{% call %}` block.
    pub(super) fn eval_call(&mut self, call: &'t Call, caller: Option<Value>) -> Result<Value, Fault> {
        // A method that is called where it is named needs no separate value.
        if let Expr::Attribute(object, name) = &call.callee {
            let object = self.eval(object)?;
            let program = self.program;
            let name = &*program.names[*name as usize];
            if let Some(method) = methods::find(&object, name) {
                let args = self.eval_args(&call.args)?;
                return method(self, &object, &args);
            }
            if let Value::Namespace(index) = &object
                && let Some(value) = self.call_cycler(*index, name)?
            {
                return Ok(value);
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
            Value::Namespace(index) => self.call_joiner(*index),
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
            Function::Joiner => self.joiner(args),
            Function::Cycler => self.cycler(args),
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
                let reason = text.into_string();
                if self.takes_any_turns && reason.contains("alternat") {
                    return self.meter.text("");
                }
                Err(Fault::Raised(reason))
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
        /// The limit of Jinja's sandbox.
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
