//! PTX text to statements: functions, variables, registers, labels and instructions with their lines.
//!
//! It knows the grammar and no opcode: the decoder knows which mnemonics exist. Invariant: unsupported text is an
//! error with its line; nothing is skipped except comments, debug sections and pragmas.

mod lexer;
mod statement;

use std::collections::HashMap;

use self::{
    lexer::{Lexer, Token},
    statement::number,
};
use crate::{LoadError, types::Ty};

/// A parsed PTX file.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// The architecture of `.target`, such as 90; 0 if there is none.
    pub(crate) target: u32,
    /// Whether the target is only one architecture and no later one, such as `sm_90a`.
    pub(crate) is_specific: bool,
    pub(crate) functions: Vec<Function>,
    pub(crate) variables: Vec<Variable>,
    /// Names of the source files that `.loc` numbers.
    pub(crate) files: HashMap<u32, String>,
}

/// An `.entry` or a `.func`.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) is_entry: bool,
    pub(crate) params: Vec<Variable>,
    pub(crate) returns: Vec<Variable>,
    /// `None` for a declaration.
    pub(crate) body: Option<Vec<Statement>>,
    /// Largest number of threads of a thread block, by `.maxntid` or `.reqntid`.
    pub(crate) max_threads: Option<u32>,
    /// Thread blocks that must fit on a multiprocessor (`.minnctapersm`).
    pub(crate) min_blocks: Option<u32>,
}

/// State space of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VariableSpace {
    Global,
    Const,
    Shared,
    Local,
    Param,
}

/// Longest variable. Devices have more memory, but no kernel declares it.
const MAX_VARIABLE_BYTES: u32 = 1 << 28;
/// Largest alignment of a variable.
const MAX_ALIGN: u32 = 4096;

/// A variable, parameter or return value.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) space: VariableSpace,
    pub(crate) name: String,
    pub(crate) align: u32,
    /// `None` for `.extern .shared` arrays without a length.
    pub(crate) bytes: Option<u32>,
    /// Initial bytes; shorter than `bytes` if the rest is zero.
    pub(crate) init: Vec<u8>,
}

/// A line of the source file that a PTX line was compiled from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceLine {
    pub(crate) file: u32,
    pub(crate) line: u32,
}

#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) line: u32,
    pub(crate) source: Option<SourceLine>,
    pub(crate) kind: StatementKind,
}

#[derive(Debug)]
pub(crate) enum StatementKind {
    OpenScope,
    CloseScope,
    Label(String),
    Registers(Ty, Vec<String>),
    Variable(Variable),
    BranchTargets(Vec<String>),
    Instruction(Instruction),
}

#[derive(Debug)]
pub(crate) struct Instruction {
    /// Predicate register, and whether it is negated.
    pub(crate) guard: Option<(String, bool)>,
    /// The opcode with all modifiers, such as `ld.global.v4.u32`.
    pub(crate) mnemonic: String,
    pub(crate) operands: Vec<Operand>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    Name(String),
    /// A negated predicate.
    Negated(String),
    Integer(u64),
    F32(u32),
    F64(u64),
    Vector(Vec<Operand>),
    /// `[base + offset]`.
    Address(Box<Operand>, i64),
    /// `(a, b)`, of calls.
    List(Vec<Operand>),
    /// `d|p`.
    Pair(Box<Operand>, Box<Operand>),
}

/// Parses a whole PTX file.
pub(crate) fn parse(text: &str) -> Result<Source, LoadError> {
    let mut parser = Parser {
        tokens: Lexer::new(text).tokens()?,
        at: 0,
        source: Source::default(),
        location: None,
    };
    while parser.peek().is_some() {
        parser.top_level()?;
    }
    Ok(parser.source)
}

struct Parser<'a> {
    tokens: Vec<(Token<'a>, u32)>,
    at: usize,
    source: Source,
    location: Option<SourceLine>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&Token<'a>> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn line(&self) -> u32 {
        self.tokens
            .get(self.at)
            .or(self.tokens.last())
            .map_or(1, |(_, line)| *line)
    }

    fn error<T>(&self, expected: &str) -> Result<T, LoadError> {
        let found = self
            .peek()
            .map_or_else(|| "the end".to_owned(), ToString::to_string);
        Err(LoadError::Syntax {
            line: self.line(),
            expected: expected.to_owned(),
            found,
        })
    }

    fn accept(&mut self, symbol: char) -> bool {
        let is_there = self.peek() == Some(&Token::Symbol(symbol));
        self.at += usize::from(is_there);
        is_there
    }

    fn expect(&mut self, symbol: char) -> Result<(), LoadError> {
        if self.accept(symbol) {
            Ok(())
        } else {
            self.error(&format!("`{symbol}`"))
        }
    }

    fn word(&mut self) -> Result<String, LoadError> {
        match self.tokens.get(self.at) {
            Some((Token::Word(word), _)) => {
                let word = (*word).to_owned();
                self.at += 1;
                Ok(word)
            }
            _ => self.error("a name"),
        }
    }

    fn accept_word(&mut self, expected: &str) -> bool {
        let is_there = matches!(self.peek(), Some(Token::Word(word)) if *word == expected);
        self.at += usize::from(is_there);
        is_there
    }

    fn integer(&mut self) -> Result<u64, LoadError> {
        let is_negative = self.accept('-');
        let word = self.word()?;
        match number(&word) {
            Some(Operand::Integer(value)) if is_negative => Ok(value.wrapping_neg()),
            Some(Operand::Integer(value)) => Ok(value),
            _ => {
                self.at -= 1;
                self.error("an integer")
            }
        }
    }

    fn u32(&mut self) -> Result<u32, LoadError> {
        let value = self.integer()?;
        u32::try_from(value).or_else(|_| self.error("an integer below 2^32"))
    }

    fn top_level(&mut self) -> Result<(), LoadError> {
        let word = self.word()?;
        match word.as_str() {
            ".version" | ".address_size" => {
                self.word()?;
            }
            ".target" => {
                let name = self.word()?;
                let number = name
                    .trim_start_matches("sm_")
                    .trim_end_matches(char::is_alphabetic);
                self.source.target = number.parse().unwrap_or(0);
                self.source.is_specific = name.ends_with('a');
                while self.accept(',') {
                    self.word()?;
                }
            }
            ".file" => self.file()?,
            ".section" => self.section()?,
            ".pragma" => self.pragma()?,
            ".loc" => self.loc()?,
            ".visible" | ".extern" | ".weak" | ".common" => {}
            ".entry" => self.function(true)?,
            ".func" => self.function(false)?,
            ".global" | ".const" | ".shared" => {
                let space = match word.as_str() {
                    ".global" => VariableSpace::Global,
                    ".const" => VariableSpace::Const,
                    _ => VariableSpace::Shared,
                };
                let variable = self.variable(space)?;
                self.expect(';')?;
                self.source.variables.push(variable);
            }
            _ => {
                self.at -= 1;
                return self.error("a directive of the module");
            }
        }
        Ok(())
    }

    fn file(&mut self) -> Result<(), LoadError> {
        let index = self.u32()?;
        let Some((Token::Text(name), _)) = self.tokens.get(self.at) else {
            return self.error("a file name");
        };
        let name = (*name).to_owned();
        self.at += 1;
        while self.accept(',') {
            self.integer()?;
        }
        self.source.files.insert(index, name);
        Ok(())
    }

    fn section(&mut self) -> Result<(), LoadError> {
        self.word()?;
        self.expect('{')?;
        while !self.accept('}') {
            if self.peek().is_none() {
                return self.error("the end of the section");
            }
            self.at += 1;
        }
        Ok(())
    }

    fn pragma(&mut self) -> Result<(), LoadError> {
        while !self.accept(';') {
            if self.peek().is_none() {
                return self.error("`;`");
            }
            self.at += 1;
        }
        Ok(())
    }

    /// Parses `.loc file line column [, function_name label [+ n], inlined_at file line column]`; the innermost place
    /// counts.
    fn loc(&mut self) -> Result<(), LoadError> {
        let file = self.u32()?;
        let line = self.u32()?;
        self.integer()?;
        if self.accept(',') {
            if !self.accept_word("function_name") {
                return self.error("function_name");
            }
            self.word()?;
            if self.accept('+') {
                self.integer()?;
            }
            self.expect(',')?;
            if !self.accept_word("inlined_at") {
                return self.error("inlined_at");
            }
            self.integer()?;
            self.integer()?;
            self.integer()?;
        }
        self.location = Some(SourceLine { file, line });
        Ok(())
    }

    fn variable(&mut self, space: VariableSpace) -> Result<Variable, LoadError> {
        let mut align = None;
        let mut ty = None;
        let name = loop {
            let word = self.word()?;
            match word.as_str() {
                ".align" => {
                    let found = self.u32()?;
                    if found > MAX_ALIGN {
                        return self.error("an alignment of at most 4096");
                    }
                    align = Some(found);
                }
                ".ptr" | ".global" | ".shared" | ".const" | ".local" if space == VariableSpace::Param => {}
                _ if word.starts_with('.') => {
                    if let Some(named) = Ty::from_name(&word[1..]) {
                        ty = Some(named);
                    } else {
                        self.at -= 1;
                        return self.error("a type");
                    }
                }
                _ => break word,
            }
        };
        let Some(ty) = ty else {
            return self.error("a variable's type");
        };
        let mut bytes = Some(ty.bytes());
        while self.accept('[') {
            if self.accept(']') {
                bytes = None;
            } else {
                let count = self.u32()?;
                bytes = (bytes.and_then(|bytes| bytes.checked_mul(count)))
                    .filter(|&bytes| bytes <= MAX_VARIABLE_BYTES);
                if bytes.is_none() {
                    return self.error("an array of at most 256 MiB");
                }
                self.expect(']')?;
            }
        }
        let mut init = Vec::new();
        if self.accept('=') {
            if self.accept('{') {
                while !self.accept('}') {
                    self.init_value(ty, &mut init)?;
                    self.accept(',');
                }
            } else {
                self.init_value(ty, &mut init)?;
            }
        }
        Ok(Variable {
            space,
            name,
            align: align.unwrap_or(ty.bytes()).max(1),
            bytes,
            init,
        })
    }

    fn init_value(&mut self, ty: Ty, init: &mut Vec<u8>) -> Result<(), LoadError> {
        let is_negative = self.accept('-');
        let word = self.word()?;
        let bits = match number(&word) {
            Some(Operand::Integer(value)) if is_negative => value.wrapping_neg(),
            Some(Operand::Integer(value) | Operand::F64(value)) => value,
            Some(Operand::F32(bits)) => u64::from(bits),
            _ => {
                self.at -= 1;
                return self.error("a number (addresses as initial values are not executed)");
            }
        };
        init.extend_from_slice(&bits.to_le_bytes()[..ty.bytes() as usize]);
        Ok(())
    }

    fn parameters(&mut self) -> Result<Vec<Variable>, LoadError> {
        let mut params = Vec::new();
        if self.accept('(') {
            while !self.accept(')') {
                if !(self.accept_word(".param") || self.accept_word(".reg")) {
                    return self.error(".param");
                }
                params.push(self.variable(VariableSpace::Param)?);
                self.accept(',');
            }
        }
        Ok(params)
    }

    fn function(&mut self, is_entry: bool) -> Result<(), LoadError> {
        self.location = None;
        let returns = if is_entry { Vec::new() } else { self.parameters()? };
        let name = self.word()?;
        let params = self.parameters()?;
        let (mut max_threads, mut min_blocks) = (None, None);
        loop {
            let is_limit = self.accept_word(".maxntid") || self.accept_word(".reqntid");
            if is_limit {
                let mut threads = self.u32()?;
                while self.accept(',') {
                    threads = threads.saturating_mul(self.u32()?);
                }
                max_threads = Some(threads);
            } else if self.accept_word(".minnctapersm") {
                min_blocks = Some(self.u32()?);
            } else if self.accept_word(".maxnreg") {
                self.u32()?;
            } else if !self.accept_word(".noreturn") {
                break;
            }
        }
        let body = if self.accept(';') {
            None
        } else {
            self.expect('{')?;
            Some(self.body()?)
        };
        self.source.functions.push(Function {
            name,
            is_entry,
            params,
            returns,
            body,
            max_threads,
            min_blocks,
        });
        Ok(())
    }
}
