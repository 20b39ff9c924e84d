//! Evaluates expressions.
//!
//! Every rule here is Python's, seen through Jinja's sandbox: a missing value is undefined rather than an
//! error, and nothing can be changed. Attributes and subscripts are in `lookup`, calls are in `calls`.

use std::cmp::Ordering;

use super::{
    ast::{CompareOp, Expr, Symbol},
    error::Fault,
    interpreter::Interpreter,
    lookup::shorten,
    meter::TextBuf,
    operators,
    value::{Function, Value, check_hashable},
};

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
            "joiner" => Value::Function(Function::Joiner),
            "cycler" => Value::Function(Function::Cycler),
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

    /// Returns the value of a finished buffer.
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
}
