//! Builds the syntax tree of expressions, in Jinja's order of precedence.
//!
//! Invariant: an expression's tree is at most [`MAX_EXPR_DEPTH`] deep, chains of operators and filters included.

use super::{
    ast::{Arg, BinaryOp, Call, CompareOp, Expr, Filter, Literal, Test},
    error::TemplateError,
    filters,
    lexer::Token,
    parser::Parser,
    predicates,
};

/// Depth of an expression's tree.
pub(super) const MAX_EXPR_DEPTH: usize = 160;
/// Brackets inside one another.
const MAX_BRACKET_DEPTH: usize = 40;

/// An expression with the depth of its tree.
struct Node {
    expr: Expr,
    depth: usize,
}

impl Parser {
    /// Parses an expression.
    pub(super) fn expr(&mut self) -> Result<Expr, TemplateError> {
        Ok(self.conditional()?.expr)
    }

    /// Parses one expression or, if commas follow, a tuple. `{% for %}` and `{% if %}` take no inline condition at their
    /// top level.
    pub(super) fn tuple_or_expr(&mut self, allows_condition: bool) -> Result<Expr, TemplateError> {
        Ok(self.tuple(allows_condition)?.expr)
    }

    /// Filters applied to `input`, the first without its `|`.
    pub(super) fn filter_chain(&mut self, input: Expr) -> Result<Expr, TemplateError> {
        let first = self.filter(Node {
            expr: input,
            depth: 1,
        })?;
        let mut node = first;
        while self.skip_op("|") {
            node = self.filter(node)?;
        }
        Ok(node.expr)
    }

    pub(super) fn enter_expr(&mut self) -> Result<(), TemplateError> {
        self.expr_depth += 1;
        if self.expr_depth > MAX_BRACKET_DEPTH {
            return self.error(format!(
                "more than {MAX_BRACKET_DEPTH} brackets inside one another"
            ));
        }
        Ok(())
    }

    pub(super) fn leave_expr(&mut self) {
        self.expr_depth -= 1;
    }

    fn node(&self, depth_below: usize, expr: Expr) -> Result<Node, TemplateError> {
        let depth = depth_below + 1;
        if depth > MAX_EXPR_DEPTH {
            return self.error(format!(
                "an expression is more than {MAX_EXPR_DEPTH} operations deep"
            ));
        }
        Ok(Node { expr, depth })
    }

    fn pair(
        &self,
        left: Node,
        right: Node,
        build: impl FnOnce(Box<(Expr, Expr)>) -> Expr,
    ) -> Result<Node, TemplateError> {
        self.node(
            left.depth.max(right.depth),
            build(Box::new((left.expr, right.expr))),
        )
    }

    fn tuple(&mut self, allows_condition: bool) -> Result<Node, TemplateError> {
        let element = |parser: &mut Self| {
            if allows_condition {
                parser.conditional()
            } else {
                parser.or()
            }
        };
        let first = element(self)?;
        if !self.is_op(",") {
            return Ok(first);
        }
        let mut depth = first.depth;
        let mut items = vec![first.expr];
        while self.skip_op(",") {
            if matches!(self.peek(), Token::Op(")") | Token::BlockEnd | Token::VariableEnd) {
                break;
            }
            let item = element(self)?;
            depth = depth.max(item.depth);
            items.push(item.expr);
        }
        self.node(depth, Expr::Tuple(items))
    }

    fn conditional(&mut self) -> Result<Node, TemplateError> {
        let mut node = self.or()?;
        while self.skip_name("if") {
            let condition = self.or()?;
            let otherwise = if self.skip_name("else") {
                self.enter_expr()?;
                let otherwise = self.conditional()?;
                self.leave_expr();
                Some(otherwise)
            } else {
                None
            };
            let depth = node
                .depth
                .max(condition.depth)
                .max(otherwise.as_ref().map_or(0, |node| node.depth));
            let parts = (condition.expr, node.expr, otherwise.map(|node| node.expr));
            node = self.node(depth, Expr::IfElse(Box::new(parts)))?;
        }
        Ok(node)
    }

    fn or(&mut self) -> Result<Node, TemplateError> {
        let mut left = self.and()?;
        while self.skip_name("or") {
            let right = self.and()?;
            left = self.pair(left, right, Expr::Or)?;
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Node, TemplateError> {
        let mut left = self.not()?;
        while self.skip_name("and") {
            let right = self.not()?;
            left = self.pair(left, right, Expr::And)?;
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Node, TemplateError> {
        if self.skip_name("not") {
            self.enter_expr()?;
            let inner = self.not()?;
            self.leave_expr();
            return self.node(inner.depth, Expr::Not(Box::new(inner.expr)));
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<Node, TemplateError> {
        let first = self.binary(1)?;
        let mut depth = first.depth;
        let mut rest = Vec::new();
        loop {
            let op = match self.peek() {
                Token::Op("==") => CompareOp::Equal,
                Token::Op("!=") => CompareOp::NotEqual,
                Token::Op("<") => CompareOp::Less,
                Token::Op("<=") => CompareOp::LessEqual,
                Token::Op(">") => CompareOp::Greater,
                Token::Op(">=") => CompareOp::GreaterEqual,
                Token::Name(name) if name == "in" => CompareOp::In,
                Token::Name(name)
                    if name == "not" && matches!(self.peek_after(), Token::Name(name) if name == "in") =>
                {
                    self.next();
                    CompareOp::NotIn
                }
                _ => break,
            };
            self.next();
            let right = self.binary(1)?;
            depth = depth.max(right.depth);
            rest.push((op, right.expr));
        }
        if rest.is_empty() {
            return Ok(first);
        }
        self.node(depth, Expr::Compare(Box::new(first.expr), rest))
    }

    /// Parses arithmetic of at least the given precedence, all of it left-associative: 1 is `+ -`, 2 is `~`, 3 is
    /// `* / // %`, 4 is `**`.
    fn binary(&mut self, min_precedence: u8) -> Result<Node, TemplateError> {
        let mut left = self.unary(true)?;
        while let Token::Op(op) = *self.peek() {
            let (precedence, op) = match op {
                "+" => (1, Some(BinaryOp::Add)),
                "-" => (1, Some(BinaryOp::Sub)),
                "~" => (2, None),
                "*" => (3, Some(BinaryOp::Mul)),
                "/" => (3, Some(BinaryOp::Div)),
                "//" => (3, Some(BinaryOp::FloorDiv)),
                "%" => (3, Some(BinaryOp::Rem)),
                "**" => (4, Some(BinaryOp::Pow)),
                _ => break,
            };
            if precedence < min_precedence {
                break;
            }
            self.next();
            let right = self.binary(precedence + 1)?;
            left = match (op, left.expr) {
                (Some(op), expr) => {
                    let left = Node { expr, ..left };
                    self.pair(left, right, |operands| Expr::Binary(op, operands))?
                }
                (None, Expr::Concat(mut parts)) => {
                    parts.push(right.expr);
                    self.node((left.depth - 1).max(right.depth), Expr::Concat(parts))?
                }
                (None, expr) => {
                    self.node(left.depth.max(right.depth), Expr::Concat(vec![expr, right.expr]))?
                }
            };
        }
        Ok(left)
    }

    fn unary(&mut self, takes_filters: bool) -> Result<Node, TemplateError> {
        let sign: Option<fn(Box<Expr>) -> Expr> = match self.peek() {
            Token::Op("-") => Some(Expr::Negate),
            Token::Op("+") => Some(Expr::Plus),
            _ => None,
        };
        let mut node = if let Some(sign) = sign {
            self.next();
            self.enter_expr()?;
            let inner = self.unary(false)?;
            self.leave_expr();
            self.node(inner.depth, sign(Box::new(inner.expr)))?
        } else {
            self.primary()?
        };
        loop {
            node = match self.peek() {
                Token::Op(".") => {
                    self.next();
                    self.attribute(node)?
                }
                Token::Op("[") => {
                    self.next();
                    self.subscript(node)?
                }
                Token::Op("(") => self.call(node)?,
                _ => break,
            };
        }
        if !takes_filters {
            return Ok(node);
        }
        loop {
            node = match self.peek() {
                Token::Op("|") => {
                    self.next();
                    self.filter(node)?
                }
                Token::Name(name) if name == "is" => {
                    self.next();
                    self.test(node)?
                }
                Token::Op("(") => self.call(node)?,
                _ => break,
            };
        }
        Ok(node)
    }

    fn attribute(&mut self, object: Node) -> Result<Node, TemplateError> {
        let depth = object.depth;
        let expr = Box::new(object.expr);
        match self.peek() {
            Token::Name(_) => {
                let name = self.expect_name()?;
                let name = self.symbol(&name);
                self.node(depth, Expr::Attribute(expr, name))
            }
            Token::Int(_) => {
                let Token::Int(index) = self.next() else {
                    unreachable!("the token was just seen to be an integer")
                };
                let index = self.literal(Literal::Int(index));
                self.node(depth, Expr::Item(expr, Box::new(index)))
            }
            _ => self.unexpected("a name after `.`"),
        }
    }

    fn subscript(&mut self, object: Node) -> Result<Node, TemplateError> {
        self.enter_expr()?;
        let mut bounds = [None, None, None];
        let mut depth = object.depth;
        let mut n_colons = 0;
        loop {
            if self.skip_op(":") {
                n_colons += 1;
                if n_colons > 2 {
                    return self.error("a slice has at most three parts");
                }
            } else if self.is_op("]") {
                break;
            } else {
                if bounds[n_colons].is_some() {
                    return self.unexpected("`]`");
                }
                let part = self.tuple(true)?;
                depth = depth.max(part.depth);
                bounds[n_colons] = Some(part.expr);
            }
        }
        self.expect_op("]")?;
        self.leave_expr();
        let expr = Box::new(object.expr);
        if n_colons > 0 {
            return self.node(depth, Expr::Slice(expr, Box::new(bounds)));
        }
        match bounds {
            [Some(index), ..] => self.node(depth, Expr::Item(expr, Box::new(index))),
            _ => self.error("`[]` without an index"),
        }
    }

    fn call(&mut self, callee: Node) -> Result<Node, TemplateError> {
        let (args, depth) = self.args()?;
        let call = Call {
            callee: callee.expr,
            args,
        };
        self.node(depth.max(callee.depth), Expr::Call(Box::new(call)))
    }

    /// Arguments in parentheses, and the greatest depth among them.
    fn args(&mut self) -> Result<(Vec<Arg>, usize), TemplateError> {
        self.enter_expr()?;
        self.expect_op("(")?;
        let mut args = Vec::new();
        let mut max_depth = 0;
        while !self.is_op(")") {
            if !args.is_empty() {
                self.expect_op(",")?;
                if self.is_op(")") {
                    break;
                }
            }
            let is_keyword =
                matches!(self.peek(), Token::Name(_)) && matches!(self.peek_after(), Token::Op("="));
            let build: Box<dyn FnOnce(Expr) -> Arg> = if self.skip_op("*") {
                Box::new(Arg::Spread)
            } else if self.skip_op("**") {
                Box::new(Arg::SpreadMapping)
            } else if is_keyword {
                let name = self.expect_name()?;
                let name = self.symbol(&name);
                self.next();
                Box::new(move |value| Arg::Keyword(name, value))
            } else if args.iter().any(|arg| !matches!(arg, Arg::Positional(_))) {
                return self.error("a positional argument follows a keyword argument");
            } else {
                Box::new(Arg::Positional)
            };
            let value = self.conditional()?;
            max_depth = max_depth.max(value.depth);
            args.push(build(value.expr));
        }
        self.expect_op(")")?;
        self.leave_expr();
        Ok((args, max_depth))
    }

    /// Parses a filter's or test's name, which may have dots.
    fn dotted_name(&mut self) -> Result<String, TemplateError> {
        let mut name = self.expect_name()?;
        while self.skip_op(".") {
            name.push('.');
            name.push_str(&self.expect_name()?);
        }
        Ok(name)
    }

    fn filter(&mut self, input: Node) -> Result<Node, TemplateError> {
        let name = self.dotted_name()?;
        let (args, depth) = if self.is_op("(") {
            self.args()?
        } else {
            (Vec::new(), 0)
        };
        let filter = Filter {
            input: input.expr,
            function: filters::find(&name),
            name: name.into(),
            args,
        };
        self.node(depth.max(input.depth), Expr::Filter(Box::new(filter)))
    }

    fn test(&mut self, input: Node) -> Result<Node, TemplateError> {
        let is_negated = self.skip_name("not");
        let name = self.dotted_name()?;
        let (args, depth) = match self.peek() {
            Token::Op("(") => self.args()?,
            Token::Name(next) if matches!(next.as_str(), "else" | "or" | "and") => (Vec::new(), 0),
            Token::Name(next) if next == "is" => return self.error("tests cannot be chained with `is`"),
            // Tokens that may start the one argument of a test without parentheses; `if` and `not` continue
            // with the expression around it.
            Token::Name(next) if matches!(next.as_str(), "if" | "not" | "in" | "recursive") => {
                (Vec::new(), 0)
            }
            Token::Name(_) | Token::Str(_) | Token::Int(_) | Token::Float(_) | Token::Op("[" | "{") => {
                self.enter_expr()?;
                let mut arg = self.primary()?;
                loop {
                    arg = match self.peek() {
                        Token::Op(".") => {
                            self.next();
                            self.attribute(arg)?
                        }
                        Token::Op("[") => {
                            self.next();
                            self.subscript(arg)?
                        }
                        Token::Op("(") => self.call(arg)?,
                        _ => break,
                    };
                }
                self.leave_expr();
                (vec![Arg::Positional(arg.expr)], arg.depth)
            }
            _ => (Vec::new(), 0),
        };
        let test = Test {
            input: input.expr,
            function: predicates::find(&name),
            name: name.into(),
            args,
        };
        let node = self.node(depth.max(input.depth), Expr::Test(Box::new(test)))?;
        if is_negated {
            return self.node(node.depth, Expr::Not(Box::new(node.expr)));
        }
        Ok(node)
    }

    fn primary(&mut self) -> Result<Node, TemplateError> {
        let literal = match self.peek() {
            Token::Name(name) => match name.as_str() {
                "true" | "True" => Literal::Bool(true),
                "false" | "False" => Literal::Bool(false),
                "none" | "None" => Literal::None,
                _ => {
                    let name = self.expect_name()?;
                    let name = self.symbol(&name);
                    return self.node(0, Expr::Name(name));
                }
            },
            Token::Str(_) => {
                let mut text = String::new();
                while let Token::Str(part) = self.peek() {
                    text.push_str(part);
                    self.next();
                }
                let literal = self.literal(Literal::Str(text.into()));
                return self.node(0, literal);
            }
            Token::Int(value) => Literal::Int(*value),
            Token::Float(value) => Literal::Float(*value),
            Token::Op("(") => return self.parenthesized(),
            Token::Op("[") => return self.list(),
            Token::Op("{") => return self.dict(),
            _ => return self.unexpected("an expression"),
        };
        self.next();
        let literal = self.literal(literal);
        self.node(0, literal)
    }

    fn parenthesized(&mut self) -> Result<Node, TemplateError> {
        self.enter_expr()?;
        self.expect_op("(")?;
        let node = if self.is_op(")") {
            self.node(0, Expr::Tuple(Vec::new()))?
        } else {
            self.tuple(true)?
        };
        self.expect_op(")")?;
        self.leave_expr();
        Ok(node)
    }

    fn list(&mut self) -> Result<Node, TemplateError> {
        self.enter_expr()?;
        self.expect_op("[")?;
        let mut items = Vec::new();
        let mut depth = 0;
        while !self.is_op("]") {
            if !items.is_empty() {
                self.expect_op(",")?;
                if self.is_op("]") {
                    break;
                }
            }
            let item = self.conditional()?;
            depth = depth.max(item.depth);
            items.push(item.expr);
        }
        self.expect_op("]")?;
        self.leave_expr();
        self.node(depth, Expr::List(items))
    }

    fn dict(&mut self) -> Result<Node, TemplateError> {
        self.enter_expr()?;
        self.expect_op("{")?;
        let mut entries = Vec::new();
        let mut depth = 0;
        while !self.is_op("}") {
            if !entries.is_empty() {
                self.expect_op(",")?;
                if self.is_op("}") {
                    break;
                }
            }
            let key = self.conditional()?;
            self.expect_op(":")?;
            let value = self.conditional()?;
            depth = depth.max(key.depth).max(value.depth);
            entries.push((key.expr, value.expr));
        }
        self.expect_op("}")?;
        self.leave_expr();
        self.node(depth, Expr::Dict(entries))
    }
}
