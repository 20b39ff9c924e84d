//! Builds the syntax tree of a template: the statements. The expressions are in [`super::expressions`].
//!
//! The grammar is Jinja's with loop controls and Hugging Face's `generation` tag. Invariant: statements and
//! expressions nest no deeper than [`MAX_STATEMENT_DEPTH`] and [`super::expressions::MAX_EXPR_DEPTH`], whatever the
//! source.

use std::collections::HashMap;

use super::{
    ast::{Call, Expr, For, Literal, MacroDef, Program, Stmt, StmtKind, Symbol, Target},
    error::TemplateError,
    lexer::{Token, tokenize},
};

/// Statements inside one another.
const MAX_STATEMENT_DEPTH: usize = 48;

/// Parses a template.
pub(super) fn parse(source: &str) -> Result<Program, TemplateError> {
    let mut parser = Parser {
        tokens: tokenize(source)?,
        pos: 0,
        program: Program::default(),
        symbols: HashMap::new(),
        statement_depth: 0,
        loop_depth: 0,
        expr_depth: 0,
    };
    parser.program.body = parser.statements(&[])?;
    Ok(parser.program)
}

pub(super) struct Parser {
    tokens: Vec<(Token, u32)>,
    pos: usize,
    program: Program,
    symbols: HashMap<Box<str>, Symbol>,
    statement_depth: usize,
    loop_depth: usize,
    pub(super) expr_depth: usize,
}

impl Parser {
    // Tokens.

    pub(super) fn peek(&self) -> &Token {
        &self.tokens[self.pos].0
    }

    pub(super) fn peek_after(&self) -> &Token {
        &self.tokens[(self.pos + 1).min(self.tokens.len() - 1)].0
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens[self.pos].1
    }

    pub(super) fn next(&mut self) -> Token {
        let token = std::mem::replace(&mut self.tokens[self.pos].0, Token::Eof);
        if self.pos + 1 < self.tokens.len() {
            self.pos += 1;
        }
        token
    }

    pub(super) fn error<T>(&self, problem: impl Into<String>) -> Result<T, TemplateError> {
        Err(TemplateError::Syntax {
            line: self.line(),
            problem: problem.into(),
        })
    }

    pub(super) fn unexpected<T>(&self, expected: &str) -> Result<T, TemplateError> {
        self.error(format!("expected {expected}, found {}", self.peek()))
    }

    pub(super) fn is_op(&self, op: &str) -> bool {
        matches!(self.peek(), Token::Op(found) if *found == op)
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Token::Name(found) if found == name)
    }

    pub(super) fn skip_op(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        if found {
            self.next();
        }
        found
    }

    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        if found {
            self.next();
        }
        found
    }

    pub(super) fn expect_op(&mut self, op: &str) -> Result<(), TemplateError> {
        if self.skip_op(op) {
            Ok(())
        } else {
            self.unexpected(&format!("`{op}`"))
        }
    }

    pub(super) fn expect_name(&mut self) -> Result<String, TemplateError> {
        match self.peek() {
            Token::Name(_) => match self.next() {
                Token::Name(name) => Ok(name),
                _ => unreachable!("the token was just seen to be a name"),
            },
            _ => self.unexpected("a name"),
        }
    }

    fn expect_block_end(&mut self) -> Result<(), TemplateError> {
        if *self.peek() == Token::BlockEnd {
            self.next();
            Ok(())
        } else {
            self.unexpected("`%}`")
        }
    }

    pub(super) fn symbol(&mut self, name: &str) -> Symbol {
        if let Some(&symbol) = self.symbols.get(name) {
            return symbol;
        }
        let symbol = self.program.names.len() as Symbol;
        self.program.names.push(name.into());
        self.symbols.insert(name.into(), symbol);
        symbol
    }

    pub(super) fn literal(&mut self, literal: Literal) -> Expr {
        self.program.literals.push(literal);
        Expr::Literal(self.program.literals.len() - 1)
    }

    // Statements.

    /// Statements up to a tag named in `enders`, whose name is left as the next token; to the end of the source
    /// where `enders` is empty.
    fn statements(&mut self, enders: &[&str]) -> Result<Vec<Stmt>, TemplateError> {
        self.statement_depth += 1;
        if self.statement_depth > MAX_STATEMENT_DEPTH {
            return self.error(format!(
                "more than {MAX_STATEMENT_DEPTH} statements inside one another"
            ));
        }
        let mut body = Vec::new();
        loop {
            let line = self.line();
            let kind = match self.peek() {
                Token::Text(_) => match self.next() {
                    Token::Text(text) => StmtKind::Text(text.into()),
                    _ => unreachable!("the token was just seen to be text"),
                },
                Token::VariableStart => {
                    self.next();
                    let expr = self.tuple_or_expr(true)?;
                    if *self.peek() != Token::VariableEnd {
                        return self.unexpected("`}}`");
                    }
                    self.next();
                    StmtKind::Output(expr)
                }
                Token::BlockStart => {
                    self.next();
                    if enders.iter().any(|ender| self.is_name(ender)) {
                        break;
                    }
                    self.statement()?
                }
                _ if enders.is_empty() => break,
                _ => return self.unexpected(&format!("`{{% {} %}}`", enders[enders.len() - 1])),
            };
            body.push(Stmt { line, kind });
        }
        self.statement_depth -= 1;
        Ok(body)
    }

    /// Parses a body up to `{% ender %}`.
    fn body(&mut self, ender: &str) -> Result<Vec<Stmt>, TemplateError> {
        let body = self.statements(&[ender])?;
        self.next();
        self.expect_block_end()?;
        Ok(body)
    }

    fn statement(&mut self) -> Result<StmtKind, TemplateError> {
        let name = self.expect_name()?;
        match name.as_str() {
            "if" => self.if_statement(),
            "for" => self.for_statement(),
            "set" => self.set_statement(),
            "macro" => self.macro_statement(),
            "call" => self.call_statement(),
            "filter" => {
                let filter = self.filter_chain(Expr::Captured)?;
                self.expect_block_end()?;
                Ok(StmtKind::FilterBlock(filter, self.body("endfilter")?))
            }
            "with" => self.with_statement(),
            "generation" => {
                self.expect_block_end()?;
                Ok(StmtKind::With(Vec::new(), self.body("endgeneration")?))
            }
            "break" | "continue" => {
                if self.loop_depth == 0 {
                    return self.error(format!("`{name}` outside a loop"));
                }
                self.expect_block_end()?;
                Ok(if name == "break" {
                    StmtKind::Break
                } else {
                    StmtKind::Continue
                })
            }
            // Without template inheritance a block is its contents.
            "block" => {
                let name = self.expect_name()?;
                while self.skip_name("scoped") || self.skip_name("required") {}
                self.expect_block_end()?;
                let body = self.statements(&["endblock"])?;
                self.next();
                self.skip_name(&name);
                self.expect_block_end()?;
                Ok(StmtKind::With(Vec::new(), body))
            }
            "autoescape" => {
                if !(self.skip_name("false") || self.skip_name("False")) {
                    return self.error("chat templates do not escape; `autoescape` must be false");
                }
                self.expect_block_end()?;
                Ok(StmtKind::With(Vec::new(), self.body("endautoescape")?))
            }
            "include" | "import" | "from" | "extends" => self.error(format!(
                "`{name}` needs other templates, which a chat template has not"
            )),
            _ => self.error(format!("unknown tag `{name}`")),
        }
    }

    fn if_statement(&mut self) -> Result<StmtKind, TemplateError> {
        let mut arms = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            let condition = self.tuple_or_expr(false)?;
            self.expect_block_end()?;
            arms.push((condition, self.statements(&["elif", "else", "endif"])?));
            match self.expect_name()?.as_str() {
                "elif" => {}
                "else" => {
                    self.expect_block_end()?;
                    otherwise = self.body("endif")?;
                    break;
                }
                _ => {
                    self.expect_block_end()?;
                    break;
                }
            }
        }
        Ok(StmtKind::If { arms, otherwise })
    }

    fn for_statement(&mut self) -> Result<StmtKind, TemplateError> {
        let target = self.target()?;
        if !self.skip_name("in") {
            return self.unexpected("`in`");
        }
        let items = self.tuple_or_expr(false)?;
        let condition = if self.skip_name("if") {
            Some(self.expr()?)
        } else {
            None
        };
        let is_recursive = self.skip_name("recursive");
        self.expect_block_end()?;
        self.loop_depth += 1;
        let body = self.statements(&["else", "endfor"])?;
        self.loop_depth -= 1;
        let otherwise = if self.expect_name()? == "else" {
            self.expect_block_end()?;
            self.body("endfor")?
        } else {
            self.expect_block_end()?;
            Vec::new()
        };
        Ok(StmtKind::For(Box::new(For {
            target,
            items,
            condition,
            is_recursive,
            body,
            otherwise,
        })))
    }

    fn set_statement(&mut self) -> Result<StmtKind, TemplateError> {
        let target = self.target()?;
        if self.skip_op("=") {
            let value = self.tuple_or_expr(true)?;
            self.expect_block_end()?;
            return Ok(StmtKind::Set(target, value));
        }
        let filter = if self.skip_op("|") {
            self.filter_chain(Expr::Captured)?
        } else {
            Expr::Captured
        };
        self.expect_block_end()?;
        Ok(StmtKind::SetBlock(target, filter, self.body("endset")?))
    }

    fn with_statement(&mut self) -> Result<StmtKind, TemplateError> {
        let mut bindings = Vec::new();
        while *self.peek() != Token::BlockEnd {
            if !bindings.is_empty() {
                self.expect_op(",")?;
            }
            let target = self.single_target()?;
            self.expect_op("=")?;
            bindings.push((target, self.expr()?));
        }
        self.expect_block_end()?;
        Ok(StmtKind::With(bindings, self.body("endwith")?))
    }

    fn macro_statement(&mut self) -> Result<StmtKind, TemplateError> {
        let name = self.expect_name()?;
        let name = self.symbol(&name);
        let params = self.params()?;
        self.expect_block_end()?;
        Ok(StmtKind::Macro(self.macro_body(name, params, "endmacro")?))
    }

    fn call_statement(&mut self) -> Result<StmtKind, TemplateError> {
        let params = if self.is_op("(") {
            self.params()?
        } else {
            Vec::new()
        };
        let Expr::Call(call) = self.expr()? else {
            return self.error("`call` needs a call of a macro");
        };
        self.expect_block_end()?;
        let name = self.symbol("caller");
        let caller = self.macro_body(name, params, "endcall")?;
        let call: Box<Call> = call;
        Ok(StmtKind::CallBlock(caller, call))
    }

    fn macro_body(
        &mut self,
        name: Symbol,
        params: Vec<(Symbol, Option<Expr>)>,
        ender: &str,
    ) -> Result<usize, TemplateError> {
        // A `break` in a macro cannot leave a loop around it.
        let loop_depth = std::mem::take(&mut self.loop_depth);
        let body = self.body(ender)?;
        self.loop_depth = loop_depth;
        self.program.macros.push(MacroDef { name, params, body });
        Ok(self.program.macros.len() - 1)
    }

    fn params(&mut self) -> Result<Vec<(Symbol, Option<Expr>)>, TemplateError> {
        self.expect_op("(")?;
        let mut params: Vec<(Symbol, Option<Expr>)> = Vec::new();
        while !self.is_op(")") {
            if !params.is_empty() {
                self.expect_op(",")?;
                if self.is_op(")") {
                    break;
                }
            }
            let name = self.expect_name()?;
            let name = self.symbol(&name);
            let default = if self.skip_op("=") {
                Some(self.expr()?)
            } else if params.last().is_some_and(|(_, default)| default.is_some()) {
                return self.error("a parameter without a default follows one that has a default");
            } else {
                None
            };
            params.push((name, default));
        }
        self.expect_op(")")?;
        Ok(params)
    }

    /// Reads the target of a `set` or a `for`: one name, or several with commas.
    fn target(&mut self) -> Result<Target, TemplateError> {
        let first = self.single_target()?;
        if !self.is_op(",") {
            return Ok(first);
        }
        let mut targets = vec![first];
        while self.skip_op(",") {
            if !matches!(self.peek(), Token::Name(_) | Token::Op("(")) || self.is_name("in") {
                break;
            }
            targets.push(self.single_target()?);
        }
        Ok(Target::Tuple(targets))
    }

    fn single_target(&mut self) -> Result<Target, TemplateError> {
        if self.skip_op("(") {
            // The depth of nested targets counts as that of expressions.
            self.enter_expr()?;
            let target = self.target()?;
            self.leave_expr();
            self.expect_op(")")?;
            return Ok(target);
        }
        let name = self.expect_name()?;
        if matches!(
            name.as_str(),
            "true" | "false" | "none" | "True" | "False" | "None"
        ) {
            return self.error(format!("cannot assign to `{name}`"));
        }
        let name = self.symbol(&name);
        if self.skip_op(".") {
            let attribute = self.expect_name()?;
            return Ok(Target::Attribute(name, self.symbol(&attribute)));
        }
        Ok(Target::Name(name))
    }
}
