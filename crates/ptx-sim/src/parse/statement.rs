//! The body of a function: scopes, labels, registers, variables and instructions with their operands.
//!
//! Invariant: a statement keeps its line.

use super::{Instruction, Operand, Parser, Statement, StatementKind, VariableSpace};
use crate::{LoadError, types::Ty};

impl Parser<'_> {
    pub(super) fn body(&mut self) -> Result<Vec<Statement>, LoadError> {
        let mut statements = Vec::new();
        let mut depth = 0;
        loop {
            let line = self.line();
            let kind = if self.accept('{') {
                depth += 1;
                StatementKind::OpenScope
            } else if self.accept('}') {
                if depth == 0 {
                    return Ok(statements);
                }
                depth -= 1;
                StatementKind::CloseScope
            } else {
                match self.statement()? {
                    Some(kind) => kind,
                    None => continue,
                }
            };
            statements.push(Statement {
                line,
                source: self.location,
                kind,
            });
        }
    }

    fn statement(&mut self) -> Result<Option<StatementKind>, LoadError> {
        if self.accept('@') {
            let is_negated = self.accept('!');
            let register = self.word()?;
            let mnemonic = self.word()?;
            return self.instruction(Some((register, is_negated)), mnemonic).map(Some);
        }
        let word = self.word()?;
        if self.accept(':') {
            return Ok(Some(StatementKind::Label(word)));
        }
        let kind = match word.as_str() {
            ".loc" => {
                self.loc()?;
                return Ok(None);
            }
            ".pragma" => {
                self.pragma()?;
                return Ok(None);
            }
            ".reg" => self.registers()?,
            ".shared" | ".local" | ".param" => {
                let space = match word.as_str() {
                    ".shared" => VariableSpace::Shared,
                    ".local" => VariableSpace::Local,
                    _ => VariableSpace::Param,
                };
                let variable = self.variable(space)?;
                self.expect(';')?;
                StatementKind::Variable(variable)
            }
            ".branchtargets" => {
                let mut labels = vec![self.word()?];
                while self.accept(',') {
                    labels.push(self.word()?);
                }
                self.expect(';')?;
                StatementKind::BranchTargets(labels)
            }
            _ if word.starts_with('.') => {
                self.at -= 1;
                return self.error("a statement");
            }
            _ => self.instruction(None, word)?,
        };
        Ok(Some(kind))
    }

    fn registers(&mut self) -> Result<StatementKind, LoadError> {
        let word = self.word()?;
        let Some(ty) = word.strip_prefix('.').and_then(Ty::from_name) else {
            self.at -= 1;
            return self.error("a register type");
        };
        let mut names = Vec::new();
        loop {
            let name = self.word()?;
            if self.accept('<') {
                let count = self.u32()?;
                self.expect('>')?;
                if count > 1 << 15 {
                    return self.error("at most 32768 registers");
                }
                names.extend((0..count).map(|index| format!("{name}{index}")));
            } else {
                names.push(name);
            }
            if !self.accept(',') {
                break;
            }
        }
        self.expect(';')?;
        Ok(StatementKind::Registers(ty, names))
    }

    fn instruction(
        &mut self,
        guard: Option<(String, bool)>,
        mnemonic: String,
    ) -> Result<StatementKind, LoadError> {
        let mut operands = Vec::new();
        while !self.accept(';') {
            operands.push(self.operand()?);
            if !self.accept(',') {
                self.expect(';')?;
                break;
            }
        }
        Ok(StatementKind::Instruction(Instruction {
            guard,
            mnemonic,
            operands,
        }))
    }

    fn operand(&mut self) -> Result<Operand, LoadError> {
        if self.accept('{') {
            return Ok(Operand::Vector(self.operands_until('}')?));
        }
        if self.accept('(') {
            return Ok(Operand::List(self.operands_until(')')?));
        }
        if self.accept('[') {
            let base = self.operand()?;
            let offset = if self.accept('+') {
                self.integer()? as i64
            } else {
                0
            };
            self.expect(']')?;
            return Ok(Operand::Address(Box::new(base), offset));
        }
        if self.accept('!') {
            return Ok(Operand::Negated(self.word()?));
        }
        if self.accept('-') {
            self.at -= 1;
            return Ok(Operand::Integer(self.integer()?));
        }
        let word = self.word()?;
        let operand = match number(&word) {
            Some(number) => number,
            None if word.starts_with(|first: char| first.is_ascii_digit()) => {
                self.at -= 1;
                return self.error("a number");
            }
            None => Operand::Name(word),
        };
        if self.accept('|') {
            return Ok(Operand::Pair(Box::new(operand), Box::new(self.operand()?)));
        }
        Ok(operand)
    }

    fn operands_until(&mut self, end: char) -> Result<Vec<Operand>, LoadError> {
        let mut operands = Vec::new();
        while !self.accept(end) {
            operands.push(self.operand()?);
            self.accept(',');
        }
        Ok(operands)
    }
}
/// Reads an integer (`12`, `0x1f`, with an optional `U`) or the bits of a float (`0f3F800000`, `0d...`).
pub(super) fn number(word: &str) -> Option<Operand> {
    if let Some(bits) = word.strip_prefix("0f").or_else(|| word.strip_prefix("0F")) {
        return u32::from_str_radix(bits, 16).ok().map(Operand::F32);
    }
    if let Some(bits) = word.strip_prefix("0d").or_else(|| word.strip_prefix("0D")) {
        return u64::from_str_radix(bits, 16).ok().map(Operand::F64);
    }
    let digits = word.trim_end_matches('U');
    match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => digits.parse().ok(),
    }
    .map(Operand::Integer)
}
