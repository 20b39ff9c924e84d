//! The syntax tree of a template.
//!
//! Names and literals are held once per template and referred to by number, so that evaluation compares integers and
//! shares strings. Invariant: the tree's depth is bounded by the parser, so walking and dropping it cannot overflow
//! the stack.

use super::{filters::FilterFn, predicates::PredicateFn};

/// A name's number in [`Program::names`].
pub(super) type Symbol = u32;

/// A parsed template.
#[derive(Debug, Default)]
pub(super) struct Program {
    pub(super) body: Vec<Stmt>,
    pub(super) names: Vec<Box<str>>,
    pub(super) literals: Vec<Literal>,
    pub(super) macros: Vec<MacroDef>,
}

#[derive(Debug)]
pub(super) enum Literal {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Box<str>),
}

#[derive(Debug)]
pub(super) struct Stmt {
    pub(super) line: u32,
    pub(super) kind: StmtKind,
}

#[derive(Debug)]
pub(super) enum StmtKind {
    Text(Box<str>),
    Output(Expr),
    If {
        arms: Vec<(Expr, Vec<Stmt>)>,
        otherwise: Vec<Stmt>,
    },
    For(Box<For>),
    Set(Target, Expr),
    /// `{% set x | filter %}…{% endset %}`; the expression filters [`Expr::Captured`].
    SetBlock(Target, Expr, Vec<Stmt>),
    Macro(usize),
    /// The macro is the call's body; it becomes `caller`.
    CallBlock(usize, Box<Call>),
    /// The expression filters [`Expr::Captured`].
    FilterBlock(Expr, Vec<Stmt>),
    With(Vec<(Target, Expr)>, Vec<Stmt>),
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) items: Expr,
    pub(super) condition: Option<Expr>,
    pub(super) is_recursive: bool,
    pub(super) body: Vec<Stmt>,
    pub(super) otherwise: Vec<Stmt>,
}

#[derive(Debug)]
pub(super) enum Target {
    Name(Symbol),
    /// `ns.attribute` of a namespace.
    Attribute(Symbol, Symbol),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub(super) struct MacroDef {
    pub(super) name: Symbol,
    pub(super) params: Vec<(Symbol, Option<Expr>)>,
    pub(super) body: Vec<Stmt>,
}

#[derive(Debug)]
pub(super) enum Expr {
    Literal(usize),
    Name(Symbol),
    /// The text of the enclosing filter or set block.
    Captured,
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Attribute(Box<Expr>, Symbol),
    Item(Box<Expr>, Box<Expr>),
    Slice(Box<Expr>, Box<[Option<Expr>; 3]>),
    Call(Box<Call>),
    Filter(Box<Filter>),
    Test(Box<Test>),
    Negate(Box<Expr>),
    Plus(Box<Expr>),
    Not(Box<Expr>),
    Binary(BinaryOp, Box<(Expr, Expr)>),
    Concat(Vec<Expr>),
    Compare(Box<Expr>, Vec<(CompareOp, Expr)>),
    And(Box<(Expr, Expr)>),
    Or(Box<(Expr, Expr)>),
    IfElse(Box<(Expr, Expr, Option<Expr>)>),
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) callee: Expr,
    pub(super) args: Vec<Arg>,
}

#[derive(Debug)]
pub(super) enum Arg {
    Positional(Expr),
    Keyword(Symbol, Expr),
    Spread(Expr),
    SpreadMapping(Expr),
}

#[derive(Debug)]
pub(super) struct Filter {
    pub(super) input: Expr,
    pub(super) name: Box<str>,
    /// `None` for an unknown filter, which fails only when it is reached.
    pub(super) function: Option<FilterFn>,
    pub(super) args: Vec<Arg>,
}

#[derive(Debug)]
pub(super) struct Test {
    pub(super) input: Expr,
    pub(super) name: Box<str>,
    /// `None` for an unknown test, which fails only when it is reached.
    pub(super) function: Option<PredicateFn>,
    pub(super) args: Vec<Arg>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Rem,
    Pow,
}

impl BinaryOp {
    pub(super) fn symbol(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Sub => "-",
            Self::Mul => "*",
            Self::Div => "/",
            Self::FloorDiv => "//",
            Self::Rem => "%",
            Self::Pow => "** or pow()",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CompareOp {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    NotIn,
}
