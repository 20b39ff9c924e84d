//! Moves, loads, stores, address conversions, asynchronous copies and matrix loads.

use super::{Decoder, Symbol};
use crate::{
    LoadError,
    kernel::Constant,
    lanes::{Binary32, Narrow, Unary32, Wide},
    op::{AnyReg, Op, Order},
    parse::Operand,
    types::{LOCAL_WINDOW, SHARED_WINDOW, Space, Ty},
};

/// The modifiers of a load or store, read from left to right.
struct Access {
    space: Option<Space>,
    is_param: bool,
    is_const: bool,
    order: Order,
    n: u8,
    ty: Ty,
}

fn access(modifiers: &[&str], is_load: bool) -> Option<Access> {
    let (&ty, rest) = modifiers.split_last()?;
    let mut access = Access {
        space: None,
        is_param: false,
        is_const: false,
        order: Order::Weak,
        n: 1,
        ty: Ty::from_name(ty)?,
    };
    let mut is_of_block = false;
    for &modifier in rest {
        match modifier {
            "global" => access.space = Some(Space::Global),
            "shared" | "shared::cta" => access.space = Some(Space::Shared),
            "local" => access.space = Some(Space::Local),
            "param" | "param::entry" | "param::func" => access.is_param = true,
            "const" => access.is_const = true,
            "v2" => access.n = 2,
            "v4" => access.n = 4,
            "volatile" | "relaxed" => access.order = Order::Strong,
            "acquire" if is_load => access.order = Order::Ordered,
            "release" if !is_load => access.order = Order::Ordered,
            "cta" => is_of_block = true,
            // Wider scopes, caches and prefetch sizes change speed or reach, not values.
            "weak"
            | "gpu"
            | "sys"
            | "cg"
            | "cs"
            | "L1::evict_normal"
            | "L1::evict_unchanged"
            | "L1::evict_first"
            | "L1::evict_last"
            | "L1::no_allocate" => {}
            "nc" if is_load => access.order = Order::NonCoherent,
            "ca" | "lu" | "cv" | "L2::64B" | "L2::128B" | "L2::256B" if is_load => {}
            "wb" | "wt" if !is_load => {}
            _ => return None,
        }
    }
    if is_of_block && access.order.is_strong() {
        access.order = Order::OfBlock;
    }
    let is_fitting = access.ty != Ty::Pred && u32::from(access.n) * access.ty.bytes() <= 16;
    is_fitting.then_some(access)
}

impl Decoder<'_> {
    pub(super) fn data(&mut self, modifiers: &[&str], operands: &[Operand]) -> Result<bool, LoadError> {
        match modifiers[0] {
            "ld" | "ldu" => self.load(&modifiers[1..], operands),
            "st" => self.store(&modifiers[1..], operands),
            "mov" => self.mov(&modifiers[1..], operands),
            "cvta" => self.cvta(&modifiers[1..], operands),
            "cp" => self.copy_async(&modifiers[1..], operands),
            "prefetch" => match (&modifiers[1..], operands) {
                (["global", "L1" | "L2"], [_]) => {
                    self.emit(Op::Prefetch);
                    Ok(true)
                }
                _ => Ok(false),
            },
            "ldmatrix" => self.load_matrix(&modifiers[1..], operands),
            _ => Ok(false),
        }
    }

    /// Returns the registers of `{a, b}` or `a`.
    fn targets(&mut self, operand: &Operand, n: u8) -> Result<([AnyReg; 4], [bool; 4]), LoadError> {
        let parts = match operand {
            Operand::Vector(parts) => parts.as_slice(),
            one => std::slice::from_ref(one),
        };
        if parts.len() != usize::from(n) {
            return Err(self.operands("as many registers as elements"));
        }
        let mut registers = [AnyReg::R32(0); 4];
        let mut narrow = [false; 4];
        for (index, part) in parts.iter().enumerate() {
            (registers[index], narrow[index]) = self.target(part)?;
        }
        Ok((registers, narrow))
    }

    fn load(&mut self, modifiers: &[&str], operands: &[Operand]) -> Result<bool, LoadError> {
        let Some(access) = access(modifiers, true) else {
            return Ok(false);
        };
        let [target, address] = operands else {
            return Err(self.operands("a target and an address"));
        };
        let (d, narrow) = self.targets(target, access.n)?;
        if access.is_param {
            return self.load_param(&access, d, narrow, address);
        }
        let space = if access.is_const {
            Space::Global
        } else {
            access.space.unwrap_or(Space::Generic)
        };
        let at = self.address(address, space)?;
        self.emit(Op::Load {
            at,
            ty: access.ty,
            n: access.n,
            order: access.order,
            d,
            narrow,
        });
        Ok(true)
    }

    /// Decodes a load of a parameter. A kernel parameter is a constant register; a parameter of an inlined call is
    /// local memory.
    fn load_param(
        &mut self,
        access: &Access,
        d: [AnyReg; 4],
        narrow: [bool; 4],
        address: &Operand,
    ) -> Result<bool, LoadError> {
        let Operand::Address(base, offset) = address else {
            return Err(self.operands("an address in brackets"));
        };
        let Operand::Name(name) = base.as_ref() else {
            return Err(self.operands("a parameter's name"));
        };
        match self.symbol(name)? {
            Symbol::Param { offset: start } => {
                let Ok(mut at) = u32::try_from(i64::from(start) + offset) else {
                    return Err(self.operands("an offset within the parameters"));
                };
                let n_bytes: u32 = self
                    .kernel
                    .params
                    .last()
                    .map_or(0, |param| param.offset + param.bytes);
                for target in &d[..usize::from(access.n)] {
                    if at + access.ty.bytes() > n_bytes {
                        return Err(self.operands("an offset within the parameters"));
                    }
                    let constant = Constant::Param {
                        offset: at,
                        ty: access.ty,
                    };
                    match *target {
                        AnyReg::R32(d) => {
                            let a = self.constant32(constant)?;
                            self.emit(Op::Move32 { d, a });
                        }
                        AnyReg::R64(d) => {
                            let a = self.constant64(constant)?;
                            self.emit(Op::Move64 { d, a });
                        }
                    }
                    at += access.ty.bytes();
                }
                Ok(true)
            }
            Symbol::Variable {
                space: Space::Local, ..
            } => {
                let at = self.address(address, Space::Local)?;
                self.emit(Op::Load {
                    at,
                    ty: access.ty,
                    n: access.n,
                    order: Order::Weak,
                    d,
                    narrow,
                });
                Ok(true)
            }
            _ => Err(self.operands("a parameter's name")),
        }
    }

    fn store(&mut self, modifiers: &[&str], operands: &[Operand]) -> Result<bool, LoadError> {
        let Some(access) = access(modifiers, false) else {
            return Ok(false);
        };
        if access.is_const {
            return Ok(false);
        }
        let [address, value] = operands else {
            return Err(self.operands("an address and a value"));
        };
        let parts = match value {
            Operand::Vector(parts) => parts.as_slice(),
            one => std::slice::from_ref(one),
        };
        if parts.len() != usize::from(access.n) {
            return Err(self.operands("as many registers as elements"));
        }
        let mut a = [AnyReg::R32(0); 4];
        for (index, part) in parts.iter().enumerate() {
            a[index] = self.source(part, access.ty)?;
        }
        // A kernel stores only to parameters of a call.
        let space = if access.is_param {
            Space::Local
        } else {
            access.space.unwrap_or(Space::Generic)
        };
        let at = self.address(address, space)?;
        self.emit(Op::Store {
            at,
            ty: access.ty,
            n: access.n,
            order: access.order,
            a,
        });
        Ok(true)
    }

    fn mov(&mut self, modifiers: &[&str], operands: &[Operand]) -> Result<bool, LoadError> {
        let ([ty], [d, a]) = (modifiers, operands) else {
            return Ok(false);
        };
        let Some(ty) = Ty::from_name(ty) else {
            return Ok(false);
        };
        match (d, a) {
            (Operand::Vector(parts), a) => self.unpack(ty, parts, a),
            (d, Operand::Vector(parts)) => self.pack(ty, d, parts),
            _ if ty == Ty::Pred => {
                let (a, _) = self.source_pred(a)?;
                let d = self.target_pred(d)?;
                self.emit(Op::MovePred { d, a });
                Ok(true)
            }
            _ if ty.bytes() == 8 => {
                let (d, a) = (self.target64(d)?, self.source64(a)?);
                self.emit(Op::Move64 { d, a });
                Ok(true)
            }
            _ if ty.bytes() >= 2 => {
                let d = self.target32(d)?;
                let a = if ty.bytes() == 2 {
                    self.source16(a)?
                } else {
                    self.source32(a)?
                };
                self.emit(Op::Move32 { d, a });
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn pack(&mut self, ty: Ty, d: &Operand, parts: &[Operand]) -> Result<bool, LoadError> {
        match (ty.bytes(), parts) {
            (4, [a, b]) => {
                let (d, a, b) = (self.target32(d)?, self.source16(a)?, self.source16(b)?);
                self.emit_pack_halves(d, a, b);
            }
            (8, [a, b]) => {
                let (d, a, b) = (self.target64(d)?, self.source32(a)?, self.source32(b)?);
                self.emit(Op::Wide {
                    f: Wide::Pack,
                    d,
                    a,
                    b,
                });
            }
            (8, [a0, a1, b0, b1]) => {
                let d = self.target64(d)?;
                let (low, high) = (self.scratch32()?, self.scratch32()?);
                let (a, b) = (self.source16(a0)?, self.source16(a1)?);
                self.emit_pack_halves(low, a, b);
                let (a, b) = (self.source16(b0)?, self.source16(b1)?);
                self.emit_pack_halves(high, a, b);
                self.emit(Op::Wide {
                    f: Wide::Pack,
                    d,
                    a: low,
                    b: high,
                });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn emit_pack_halves(&mut self, d: u16, a: u16, b: u16) {
        self.emit(Op::Binary32 {
            f: Binary32::PackHalves,
            flush: false,
            d,
            a,
            b,
        });
    }

    fn unpack(&mut self, ty: Ty, parts: &[Operand], a: &Operand) -> Result<bool, LoadError> {
        match (ty.bytes(), parts) {
            (4, [low, high]) => {
                let a = self.source32(a)?;
                self.emit_unpack_halves(a, low, high)?;
            }
            (8, [low, high]) => {
                let a = self.source64(a)?;
                for (f, part) in [(Narrow::Low, low), (Narrow::High, high)] {
                    if !is_sink(part) {
                        let d = self.target32(part)?;
                        self.emit(Op::Narrow { f, d, a });
                    }
                }
            }
            (8, [a0, a1, b0, b1]) => {
                let a = self.source64(a)?;
                for (f, low, high) in [(Narrow::Low, a0, a1), (Narrow::High, b0, b1)] {
                    let d = self.scratch32()?;
                    self.emit(Op::Narrow { f, d, a });
                    self.emit_unpack_halves(d, low, high)?;
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn emit_unpack_halves(&mut self, a: u16, low: &Operand, high: &Operand) -> Result<(), LoadError> {
        // The source may be adjacent to a target, but never a target: targets are 16 bits wide.
        if !is_sink(low) {
            let d = self.target32(low)?;
            self.emit(Op::Unary32 {
                f: Unary32::ZeroExtend16,
                flush: false,
                d,
                a,
            });
        }
        if !is_sink(high) {
            let d = self.target32(high)?;
            let b = self.immediate32(16)?;
            self.emit(Op::Binary32 {
                f: Binary32::ShrU,
                flush: false,
                d,
                a,
                b,
            });
        }
        Ok(())
    }

    /// `cvta[.to].space.size d, a`.
    fn cvta(&mut self, modifiers: &[&str], operands: &[Operand]) -> Result<bool, LoadError> {
        let (is_to_space, space) = match modifiers {
            ["to", space, "u64"] => (true, *space),
            [space, "u64"] => (false, *space),
            _ => return Ok(false),
        };
        let window = match space {
            "global" | "const" => 0,
            "shared" | "shared::cta" => SHARED_WINDOW,
            "local" => LOCAL_WINDOW,
            _ => return Ok(false),
        };
        let [d, a] = operands else {
            return Err(self.operands("a target and an address"));
        };
        let (target, _) = self.target(d)?;
        if is_to_space {
            let a = self.source64(a)?;
            self.emit(Op::FromGeneric { window, d: target, a });
        } else {
            let AnyReg::R64(d) = target else {
                return Err(self.operands("a 64-bit register for the result"));
            };
            let a = AnyReg::R64(self.source64(a)?);
            self.emit(Op::ToGeneric { window, d, a });
        }
        Ok(true)
    }

    /// `cp.async.{ca,cg}.shared.global [to], [from], bytes[, source_bytes]`, `commit_group`, `wait_group`, `wait_all`.
    fn copy_async(&mut self, modifiers: &[&str], operands: &[Operand]) -> Result<bool, LoadError> {
        match (modifiers, operands) {
            (["async", "commit_group"], []) => self.emit(Op::CopyCommit),
            (["async", "wait_group"], [Operand::Integer(pending)]) => {
                let pending = Some(*pending as u32);
                self.emit(Op::CopyWait { pending });
            }
            (["async", "wait_all"], []) => self.emit(Op::CopyWait { pending: None }),
            (
                ["async", kind @ ("ca" | "cg"), rest @ ..],
                [to, from, Operand::Integer(bytes), source_bytes @ ..],
            ) => {
                let rest = match rest.split_last() {
                    Some((&("L2::64B" | "L2::128B" | "L2::256B"), rest)) => rest,
                    _ => rest,
                };
                let is_size_known = matches!((*kind, bytes), ("ca", 4 | 8 | 16) | ("cg", 16));
                if !matches!(rest, ["shared" | "shared::cta", "global"]) || !is_size_known {
                    return Ok(false);
                }
                let source_bytes = match source_bytes {
                    [] => None,
                    [count] => Some(self.source32(count)?),
                    _ => return Ok(false),
                };
                let (to, from) = (
                    self.address(to, Space::Shared)?,
                    self.address(from, Space::Global)?,
                );
                self.emit(Op::CopyAsync {
                    to,
                    from,
                    bytes: *bytes as u8,
                    source_bytes,
                });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// `ldmatrix.sync.aligned.m8n8.xN[.trans].shared.b16`.
    fn load_matrix(&mut self, modifiers: &[&str], operands: &[Operand]) -> Result<bool, LoadError> {
        let (n, rest) = match modifiers {
            ["sync", "aligned", "m8n8", "x1", rest @ ..] => (1, rest),
            ["sync", "aligned", "m8n8", "x2", rest @ ..] => (2, rest),
            ["sync", "aligned", "m8n8", "x4", rest @ ..] => (4, rest),
            _ => return Ok(false),
        };
        let transposed = match rest {
            ["trans", "shared" | "shared::cta", "b16"] => true,
            ["shared" | "shared::cta", "b16"] => false,
            _ => return Ok(false),
        };
        let [targets, address] = operands else {
            return Err(self.operands("targets and an address"));
        };
        let (targets, _) = self.targets(targets, n)?;
        let mut d = [0; 4];
        for (d, target) in d.iter_mut().zip(targets) {
            let AnyReg::R32(index) = target else {
                return Err(self.operands("32-bit registers"));
            };
            *d = index;
        }
        let at = self.address(address, Space::Shared)?;
        self.emit(Op::LoadMatrix { at, n, transposed, d });
        Ok(true)
    }
}

fn is_sink(operand: &Operand) -> bool {
    matches!(operand, Operand::Name(name) if name == "_")
}
