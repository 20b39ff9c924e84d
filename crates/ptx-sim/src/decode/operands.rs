//! Operands of instructions: the register, constant register or address of each.
//!
//! Every table of opcodes resolves its operands here. Invariant: an operand of another kind than the instruction takes is
//! [`LoadError::Operands`], never another register.

use super::{Decoder, Symbol};
use crate::{
    LoadError,
    kernel::{Constant, Special},
    op::{Address, AnyReg, Pred, Reg},
    parse::Operand,
    types::{Space, Ty},
};

impl Decoder<'_> {
    pub(super) fn constant32(&mut self, constant: Constant) -> Result<Reg, LoadError> {
        if let Some(&index) = self.constants32.get(&constant) {
            return Ok(index);
        }
        let Symbol::Reg32 { index, .. } = self.new_register(Ty::B32)? else {
            unreachable!("a 32-bit type gets a 32-bit register");
        };
        self.constants32.insert(constant, index);
        self.kernel.constants32.push((index, constant));
        Ok(index)
    }

    pub(super) fn constant64(&mut self, constant: Constant) -> Result<u16, LoadError> {
        if let Some(&index) = self.constants64.get(&constant) {
            return Ok(index);
        }
        let Symbol::Reg64(index) = self.new_register(Ty::B64)? else {
            unreachable!("a 64-bit type gets a 64-bit register");
        };
        self.constants64.insert(constant, index);
        self.kernel.constants64.push((index, constant));
        Ok(index)
    }

    /// Returns a register for unused results.
    pub(super) fn scratch32(&mut self) -> Result<Reg, LoadError> {
        match self.new_register(Ty::B32)? {
            Symbol::Reg32 { index, .. } => Ok(index),
            _ => unreachable!("a 32-bit type gets a 32-bit register"),
        }
    }

    /// Returns a 32-bit source operand.
    pub(super) fn source32(&mut self, operand: &Operand) -> Result<Reg, LoadError> {
        match operand {
            Operand::Integer(value) => self.constant32(Constant::Immediate(*value & 0xffff_ffff)),
            Operand::F32(bits) => self.constant32(Constant::Immediate(u64::from(*bits))),
            Operand::Name(name) => {
                if let Some(special) = Special::from_name(name) {
                    return self.constant32(Constant::Special(special));
                }
                match self.symbol(name)? {
                    Symbol::Reg32 { index, .. } => Ok(index),
                    Symbol::Variable {
                        space: Space::Shared | Space::Local,
                        address,
                    } => self.constant32(address),
                    _ => Err(self.operands("a 32-bit register or number")),
                }
            }
            _ => Err(self.operands("a 32-bit register or number")),
        }
    }

    /// Returns a 16-bit source operand; an immediate is truncated to 16 bits.
    pub(super) fn source16(&mut self, operand: &Operand) -> Result<Reg, LoadError> {
        match operand {
            Operand::Integer(value) => self.constant32(Constant::Immediate(*value & 0xffff)),
            other => self.source32(other),
        }
    }

    /// Returns a 64-bit source operand.
    pub(super) fn source64(&mut self, operand: &Operand) -> Result<u16, LoadError> {
        match operand {
            Operand::Integer(value) | Operand::F64(value) => self.constant64(Constant::Immediate(*value)),
            Operand::Name(name) => match self.symbol(name)? {
                Symbol::Reg64(index) => Ok(index),
                Symbol::Variable { address, .. } => self.constant64(address),
                _ => Err(self.operands("a 64-bit register or number")),
            },
            _ => Err(self.operands("a 64-bit register or number")),
        }
    }

    /// Returns a source operand as wide as `ty`.
    pub(super) fn source(&mut self, operand: &Operand, ty: Ty) -> Result<AnyReg, LoadError> {
        Ok(match ty.bytes() {
            8 => AnyReg::R64(self.source64(operand)?),
            bytes => match operand {
                // A wider register may hold a narrow value.
                Operand::Name(name) if matches!(self.symbol(name), Ok(Symbol::Reg64(_))) => {
                    AnyReg::R64(self.source64(operand)?)
                }
                _ if bytes == 4 => AnyReg::R32(self.source32(operand)?),
                _ => AnyReg::R32(self.source16(operand)?),
            },
        })
    }

    pub(super) fn target32(&mut self, operand: &Operand) -> Result<Reg, LoadError> {
        match operand {
            Operand::Name(name) if name == "_" => self.scratch32(),
            Operand::Name(name) => match self.symbol(name)? {
                Symbol::Reg32 { index, .. } => Ok(index),
                _ => Err(self.operands("a 32-bit register for the result")),
            },
            _ => Err(self.operands("a 32-bit register for the result")),
        }
    }

    pub(super) fn target64(&mut self, operand: &Operand) -> Result<u16, LoadError> {
        match operand {
            Operand::Name(name) => match self.symbol(name)? {
                Symbol::Reg64(index) => Ok(index),
                _ => Err(self.operands("a 64-bit register for the result")),
            },
            _ => Err(self.operands("a 64-bit register for the result")),
        }
    }

    /// Returns a destination of either width.
    pub(super) fn target(&mut self, operand: &Operand) -> Result<(AnyReg, bool), LoadError> {
        match operand {
            Operand::Name(name) if name == "_" => Ok((AnyReg::R32(self.scratch32()?), false)),
            Operand::Name(name) => match self.symbol(name)? {
                Symbol::Reg32 { index, bits } => Ok((AnyReg::R32(index), bits == 16)),
                Symbol::Reg64(index) => Ok((AnyReg::R64(index), false)),
                _ => Err(self.operands("a register for the result")),
            },
            _ => Err(self.operands("a register for the result")),
        }
    }

    pub(super) fn pred_named(&mut self, name: &str) -> Result<Pred, LoadError> {
        match self.symbol(name)? {
            Symbol::Pred(index) => Ok(index),
            _ => Err(self.operands("a predicate register")),
        }
    }

    /// Returns a predicate source and whether it is negated.
    pub(super) fn source_pred(&mut self, operand: &Operand) -> Result<(Pred, bool), LoadError> {
        match operand {
            Operand::Name(name) => Ok((self.pred_named(name)?, false)),
            Operand::Negated(name) => Ok((self.pred_named(name)?, true)),
            Operand::Integer(value) => {
                let Symbol::Pred(index) = self.new_register(Ty::Pred)? else {
                    unreachable!("a predicate type gets a predicate register");
                };
                self.kernel.constant_preds.push((index, *value != 0));
                Ok((index, false))
            }
            _ => Err(self.operands("a predicate register")),
        }
    }

    pub(super) fn target_pred(&mut self, operand: &Operand) -> Result<Pred, LoadError> {
        match operand {
            Operand::Name(name) if name == "_" => match self.new_register(Ty::Pred)? {
                Symbol::Pred(index) => Ok(index),
                _ => unreachable!("a predicate type gets a predicate register"),
            },
            Operand::Name(name) => self.pred_named(name),
            _ => Err(self.operands("a predicate register for the result")),
        }
    }

    /// Returns `[base + offset]` in `space`.
    pub(super) fn address(&mut self, operand: &Operand, space: Space) -> Result<Address, LoadError> {
        let Operand::Address(base, offset) = operand else {
            return Err(self.operands("an address in brackets"));
        };
        let base = match base.as_ref() {
            Operand::Name(name) => match self.symbol(name)? {
                Symbol::Reg32 { index, .. } => AnyReg::R32(index),
                Symbol::Reg64(index) => AnyReg::R64(index),
                Symbol::Variable {
                    space: found,
                    address,
                } if found == space => AnyReg::R64(self.constant64(address)?),
                _ => return Err(self.operands("an address within the instruction's space")),
            },
            Operand::Integer(value) => AnyReg::R64(self.constant64(Constant::Immediate(*value))?),
            _ => return Err(self.operands("an address in brackets")),
        };
        Ok(Address {
            space,
            base,
            offset: *offset,
        })
    }
}
