//! Runs a template: statements, scopes, macros and loops. Expressions are evaluated in [`super::evaluate`].
//!
//! Invariant: whatever the template, a rendering ends by its fuel, stays within its memory, and recurses no deeper
//! than [`MAX_RECURSION`]. Scopes, namespaces, macros and loops live in arenas of the interpreter, so a value that
//! refers to itself leaks nothing.

use std::rc::Rc;

use super::{
    Rendered,
    arguments::Arguments,
    ast::{Expr, For, Literal, Program, Stmt, StmtKind, Symbol, Target},
    civil_time::CivilTime,
    error::{Fault, TemplateLimit},
    json::from_json,
    meter::{Lease, Meter, TextBuf},
    printer::Printer,
    trust::Trust,
    value::{Namespace, Seq, Value},
};

/// Statements, macro calls and expressions inside one another while rendering. A debug build uses about 2 KiB of
/// stack for each.
pub(super) const MAX_RECURSION: usize = 360;

/// Where control goes after a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

#[derive(Debug, Default)]
struct Scope {
    vars: Vec<(Symbol, Value)>,
    parent: Option<usize>,
}

/// A macro with the scope it was defined in.
#[derive(Debug)]
pub(super) struct MacroValue {
    pub(super) def: usize,
    pub(super) scope: usize,
    _lease: Lease,
}

#[derive(Debug)]
pub(super) struct LoopState<'t> {
    pub(super) items: Rc<Seq>,
    pub(super) index: usize,
    pub(super) depth: usize,
    /// The loop and its scope, if it is recursive.
    pub(super) recursion: Option<(&'t For, usize)>,
    /// The arguments of the last `loop.changed(…)`.
    pub(super) last_changed: Option<Value>,
}

pub(super) struct Interpreter<'t> {
    pub(super) program: &'t Program,
    pub(super) meter: Rc<Meter>,
    pub(super) now: CivilTime,
    pub(super) literals: Vec<Value>,
    pub(super) namespaces: Vec<Namespace>,
    pub(super) macros: Vec<MacroValue>,
    pub(super) loops: Vec<LoopState<'t>>,
    scopes: Vec<Scope>,
    pub(super) scope: usize,
    /// The text being written, innermost capture last.
    outputs: Vec<TextBuf>,
    max_output_bytes: usize,
    /// The text that filters of the enclosing block work on.
    pub(super) captured: Option<Value>,
    depth: usize,
    line: u32,
    known: KnownNames,
    /// Whether an error about the order of roles is ignored.
    pub(super) takes_any_turns: bool,
}

/// The names that Jinja predefines, if the template uses them.
#[derive(Debug)]
struct KnownNames {
    r#loop: Option<Symbol>,
    caller: Option<Symbol>,
    varargs: Option<Symbol>,
    kwargs: Option<Symbol>,
}

impl<'t> Interpreter<'t> {
    /// Creates an interpreter whose outermost scope holds those entries of `context` that the template names. Texts of the
    /// variables in `trusted` count as the template's own.
    pub(super) fn new(
        program: &'t Program,
        context: &serde_json::Map<String, serde_json::Value>,
        trusted: &[&str],
        meter: &Rc<Meter>,
        now: CivilTime,
        max_output_bytes: usize,
    ) -> Result<Self, Fault> {
        let mut literals = Vec::with_capacity(program.literals.len());
        for literal in &program.literals {
            literals.push(match literal {
                Literal::None => Value::None,
                Literal::Bool(value) => Value::Bool(*value),
                Literal::Int(value) => Value::Int(*value),
                Literal::Float(value) => Value::Float(*value),
                Literal::Str(text) => meter.trusted_text(text)?,
            });
        }
        let mut root = Scope::default();
        for (symbol, name) in program.names.iter().enumerate() {
            if let Some(json) = context.get(&**name) {
                let value = match json.as_str() {
                    Some(text) if trusted.contains(&&**name) => meter.trusted_text(text)?,
                    _ => from_json(json, meter, 0)?,
                };
                root.vars.push((symbol as Symbol, value));
            }
        }
        let find = |name: &str| {
            program
                .names
                .iter()
                .position(|candidate| &**candidate == name)
                .map(|symbol| symbol as Symbol)
        };
        Ok(Self {
            program,
            meter: Rc::clone(meter),
            now,
            literals,
            namespaces: Vec::new(),
            macros: Vec::new(),
            loops: Vec::new(),
            scopes: vec![root],
            scope: 0,
            outputs: vec![TextBuf::new(meter)],
            max_output_bytes,
            captured: None,
            depth: 0,
            line: 1,
            known: KnownNames {
                r#loop: find("loop"),
                caller: find("caller"),
                varargs: find("varargs"),
                kwargs: find("kwargs"),
            },
            takes_any_turns: false,
        })
    }

    /// Sets whether an error about the order of roles is ignored.
    pub(super) fn taking_any_turns(mut self, takes_any_turns: bool) -> Self {
        self.takes_any_turns = takes_any_turns;
        self
    }

    /// Renders the template; a fault comes with its line.
    pub(super) fn run(mut self) -> Result<Rendered, (Fault, u32)> {
        match self.block(&self.program.body) {
            Ok(_) => {
                let output = self.outputs.pop().expect("the outermost output");
                let (text, trust) = output.into_parts();
                Ok(Rendered {
                    text,
                    trusted: trust.into_ranges(),
                })
            }
            Err(fault) => Err((fault, self.line)),
        }
    }

    pub(super) fn printer(&self) -> Printer<'_> {
        Printer {
            namespaces: &self.namespaces,
            meter: &self.meter,
        }
    }

    // Recursion, scopes and output.

    pub(super) fn enter(&mut self) -> Result<(), Fault> {
        self.depth += 1;
        if self.depth > MAX_RECURSION {
            return Err(Fault::Limit(TemplateLimit::Recursion(MAX_RECURSION)));
        }
        self.meter.burn(1)
    }

    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Runs `body` in a new scope below `parent`. The scope is dropped afterwards unless a macro was defined, which
    /// may still refer to it.
    fn scoped<R>(
        &mut self,
        parent: usize,
        body: impl FnOnce(&mut Self) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        let outer = self.scope;
        let n_macros = self.macros.len();
        self.scope = self.scopes.len();
        self.scopes.push(Scope {
            vars: Vec::new(),
            parent: Some(parent),
        });
        let result = body(self)?;
        if self.macros.len() == n_macros {
            self.scopes.truncate(self.scope);
        }
        self.scope = outer;
        Ok(result)
    }

    /// Returns the text that `body` writes, as a value.
    fn capture(&mut self, body: impl FnOnce(&mut Self) -> Result<(), Fault>) -> Result<Value, Fault> {
        self.outputs.push(TextBuf::new(&self.meter));
        body(self)?;
        let output = self.outputs.pop().expect("the output pushed above");
        self.finish(output)
    }

    fn write(&mut self, text: &str, trust: &Trust) -> Result<(), Fault> {
        let output = self.outputs.last_mut().expect("the outermost output");
        if output.len() + text.len() > self.max_output_bytes {
            return Err(Fault::Limit(TemplateLimit::OutputBytes(self.max_output_bytes)));
        }
        output.push_with_trust(text, trust)
    }

    pub(super) fn lookup(&self, symbol: Symbol) -> Option<&Value> {
        let mut scope = Some(self.scope);
        while let Some(index) = scope {
            let found = self.scopes[index].vars.iter().find(|(name, _)| *name == symbol);
            if let Some((_, value)) = found {
                return Some(value);
            }
            scope = self.scopes[index].parent;
        }
        None
    }

    fn define(&mut self, symbol: Symbol, value: Value) {
        let vars = &mut self.scopes[self.scope].vars;
        match vars.iter_mut().find(|(name, _)| *name == symbol) {
            Some((_, slot)) => *slot = value,
            None => vars.push((symbol, value)),
        }
    }

    pub(super) fn set_attribute(&mut self, namespace: usize, name: &str, value: Value) -> Result<(), Fault> {
        match self.namespaces.get_mut(namespace) {
            Some(namespace) => namespace.set(name, value),
            None => Err(Fault::type_error("the namespace is gone")),
        }
    }

    fn assign(&mut self, target: &Target, value: Value) -> Result<(), Fault> {
        match target {
            Target::Name(symbol) => {
                self.define(*symbol, value);
                Ok(())
            }
            Target::Attribute(object, attribute) => match self.lookup(*object) {
                Some(&Value::Namespace(index)) => {
                    let program = self.program;
                    self.set_attribute(index, &program.names[*attribute as usize], value)
                }
                _ => Err(Fault::type_error(
                    "cannot assign attribute on non-namespace object",
                )),
            },
            Target::Tuple(targets) => {
                if let Value::Undefined(what) = &value {
                    return Err(Fault::Undefined(what.to_string()));
                }
                let items = value.iterate(&self.meter)?;
                let (expected, found) = (targets.len(), items.items.len());
                if found != expected {
                    let which = if found < expected {
                        "not enough"
                    } else {
                        "too many"
                    };
                    return Err(Fault::Type(format!(
                        "{which} values to unpack (expected {expected}, got {found})"
                    )));
                }
                for (target, item) in targets.iter().zip(&items.items) {
                    self.assign(target, item.clone())?;
                }
                Ok(())
            }
        }
    }

    // Statements.

    fn block(&mut self, body: &'t [Stmt]) -> Result<Flow, Fault> {
        self.enter()?;
        for stmt in body {
            self.line = stmt.line;
            self.meter.burn(1)?;
            let flow = self.statement(stmt)?;
            if flow != Flow::Next {
                self.leave();
                return Ok(flow);
            }
        }
        self.leave();
        Ok(Flow::Next)
    }

    fn statement(&mut self, stmt: &'t Stmt) -> Result<Flow, Fault> {
        match &stmt.kind {
            StmtKind::Text(text) => self.write(text, &Trust::all(text.len()))?,
            StmtKind::Output(expr) => self.output(expr)?,
            StmtKind::If { arms, otherwise } => {
                for (condition, body) in arms {
                    if self.eval(condition)?.is_truthy() {
                        return self.block(body);
                    }
                }
                return self.block(otherwise);
            }
            StmtKind::For(node) => {
                let items = self.eval(&node.items)?;
                self.for_loop(node, &items, 1)?;
            }
            StmtKind::Set(target, expr) => {
                let value = self.eval(expr)?;
                self.assign(target, value)?;
            }
            StmtKind::SetBlock(target, filter, body) => {
                let value = self.filtered_block(filter, body)?;
                self.assign(target, value)?;
            }
            StmtKind::FilterBlock(filter, body) => {
                let value = self.filtered_block(filter, body)?;
                self.write_value(&value)?;
            }
            StmtKind::Macro(def) => {
                let name = self.program.macros[*def].name;
                let value = self.macro_value(*def)?;
                self.define(name, value);
            }
            StmtKind::CallBlock(def, call) => {
                let caller = self.macro_value(*def)?;
                let value = self.eval_call(call, Some(caller))?;
                self.write_value(&value)?;
            }
            StmtKind::With(bindings, body) => {
                let mut values = Vec::with_capacity(bindings.len());
                for (_, expr) in bindings {
                    values.push(self.eval(expr)?);
                }
                return self.scoped(self.scope, |this| {
                    for ((target, _), value) in bindings.iter().zip(values) {
                        this.assign(target, value)?;
                    }
                    this.block(body)
                });
            }
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn output(&mut self, expr: &'t Expr) -> Result<(), Fault> {
        let value = self.eval(expr)?;
        self.write_value(&value)
    }

    fn write_value(&mut self, value: &Value) -> Result<(), Fault> {
        match value {
            Value::Str(text) => self.write(&text.body, &text.trust),
            Value::Undefined(_) => Ok(()),
            _ => {
                let mut text = TextBuf::new(&self.meter);
                self.printer().str(value, &mut text)?;
                self.write(&text.into_string(), &Trust::default())
            }
        }
    }

    fn filtered_block(&mut self, filter: &'t Expr, body: &'t [Stmt]) -> Result<Value, Fault> {
        let text = self.capture(|this| {
            this.scoped(this.scope, |this| this.block(body))?;
            Ok(())
        })?;
        let outer = self.captured.replace(text);
        let value = self.eval(filter)?;
        self.captured = outer;
        Ok(value)
    }

    fn for_loop(&mut self, node: &'t For, items: &Value, depth: usize) -> Result<(), Fault> {
        let mut items = items.iterate(&self.meter)?;
        if let Some(condition) = &node.condition {
            let mut kept = Vec::new();
            for item in &items.items {
                let keeps = self.scoped(self.scope, |this| {
                    this.assign(&node.target, item.clone())?;
                    Ok(this.eval(condition)?.is_truthy())
                })?;
                if keeps {
                    kept.push(item.clone());
                }
            }
            items = self.meter.seq(kept)?;
        }
        if items.items.is_empty() {
            self.scoped(self.scope, |this| this.block(&node.otherwise))?;
            return Ok(());
        }
        let loop_idx = self.loops.len();
        self.loops.push(LoopState {
            items: Rc::clone(&items),
            index: 0,
            depth,
            recursion: node.is_recursive.then_some((node, self.scope)),
            last_changed: None,
        });
        for (index, item) in items.items.iter().enumerate() {
            self.loops[loop_idx].index = index;
            let flow = self.scoped(self.scope, |this| {
                if let Some(symbol) = this.known.r#loop {
                    this.define(symbol, Value::Loop(loop_idx));
                }
                this.assign(&node.target, item.clone())?;
                this.block(&node.body)
            })?;
            if flow == Flow::Break {
                break;
            }
        }
        self.loops.truncate(loop_idx);
        Ok(())
    }

    /// Calls `loop(items)` in a recursive loop.
    pub(super) fn recurse(&mut self, loop_idx: usize, items: &Value) -> Result<Value, Fault> {
        let state = self.loops.get(loop_idx);
        let Some((depth, (node, scope))) = state.and_then(|state| Some((state.depth, state.recursion?)))
        else {
            return Err(Fault::type_error(
                "the loop must be marked `recursive` to be called",
            ));
        };
        self.enter()?;
        let outer = std::mem::replace(&mut self.scope, scope);
        let text = self.capture(|this| this.for_loop(node, items, depth + 1))?;
        self.scope = outer;
        self.leave();
        Ok(text)
    }

    fn macro_value(&mut self, def: usize) -> Result<Value, Fault> {
        // The lease also covers the scope that the macro keeps alive.
        let lease = self
            .meter
            .lease(size_of::<MacroValue>() + size_of::<Scope>() + 8 * size_of::<(Symbol, Value)>())?;
        self.macros.push(MacroValue {
            def,
            scope: self.scope,
            _lease: lease,
        });
        Ok(Value::Macro(self.macros.len() - 1))
    }

    pub(super) fn call_macro(
        &mut self,
        macro_idx: usize,
        mut args: Arguments,
        caller: Option<Value>,
    ) -> Result<Value, Fault> {
        let Some(MacroValue { def, scope, .. }) = self.macros.get(macro_idx) else {
            return Err(Fault::type_error("the macro is gone"));
        };
        let (def, scope) = (&self.program.macros[*def], *scope);
        let program = self.program;
        self.enter()?;
        let text = self.capture(|this| {
            this.scoped(scope, |this| {
                let n_positional = args.positional.len();
                let mut positional = std::mem::take(&mut args.positional).into_iter();
                for (symbol, default) in &def.params {
                    let name = &program.names[*symbol as usize];
                    let value = match (positional.next(), args.take_keyword(name)) {
                        (Some(_), Some(_)) => {
                            return Err(Fault::Type(format!(
                                "macro got multiple values for argument '{name}'"
                            )));
                        }
                        (Some(value), None) | (None, Some(value)) => value,
                        (None, None) => match default {
                            Some(default) => this.eval(default)?,
                            None => Value::undefined(format!("parameter '{name}' was not provided")),
                        },
                    };
                    this.define(*symbol, value);
                }
                let excess: Vec<Value> = positional.collect();
                this.define_excess(def.name, excess, n_positional, def.params.len(), &mut args)?;
                if let (Some(symbol), Some(caller)) = (this.known.caller, caller) {
                    this.define(symbol, caller);
                }
                this.block(&def.body)?;
                Ok(())
            })
        })?;
        self.leave();
        Ok(text)
    }

    /// Defines `varargs` and `kwargs` if the template names them, and refuses excess arguments if it does not.
    fn define_excess(
        &mut self,
        macro_name: Symbol,
        excess: Vec<Value>,
        n_positional: usize,
        n_params: usize,
        args: &mut Arguments,
    ) -> Result<(), Fault> {
        let program = self.program;
        let name = &program.names[macro_name as usize];
        match self.known.varargs {
            Some(symbol) => {
                let value = self.meter.tuple(excess)?;
                self.define(symbol, value);
            }
            None if !excess.is_empty() => {
                return Err(Fault::Type(format!(
                    "macro '{name}' takes not more than {n_params} arguments, got {n_positional}"
                )));
            }
            None => {}
        }
        match self.known.kwargs {
            Some(symbol) => {
                let mut entries = Vec::with_capacity(args.keyword.len());
                for (name, value) in args.keyword.drain(..) {
                    entries.push((self.meter.text(&*name)?, value));
                }
                let value = self.meter.dict(entries)?;
                self.define(symbol, value);
            }
            None => {
                if let Some((keyword, _)) = args.keyword.first() {
                    return Err(Fault::Type(format!(
                        "macro '{name}' takes no keyword argument '{keyword}'"
                    )));
                }
            }
        }
        Ok(())
    }
}
