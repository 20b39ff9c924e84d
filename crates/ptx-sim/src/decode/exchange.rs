//! Branches, barriers, exchanges within a warp, atomics and matrix operations.

use super::Decoder;
use crate::{
    LoadError,
    op::{AnyReg, AtomicFn, BarrierFn, BarrierReduce, MatrixKind, Op, Reg, Shuffle, Vote, VoteResult},
    parse::Operand,
    types::{Space, Ty},
};

impl Decoder<'_> {
    pub(super) fn exchange(&mut self, modifiers: &[&str], operands: &[Operand]) -> Result<bool, LoadError> {
        match (modifiers, operands) {
            (["bra"] | ["bra", "uni"], [target]) => {
                let to = self.label(target)?;
                self.emit(Op::Branch { to });
            }
            (["brx", "idx"] | ["brx", "idx", "uni"], [index, Operand::Name(table)]) => {
                let index = self.source32(index)?;
                let Some(labels) = self.frame().tables.get(table).cloned() else {
                    return Err(self.operands("a label of .branchtargets"));
                };
                let targets = labels
                    .into_iter()
                    .map(|label| self.label(&Operand::Name(label)))
                    .collect::<Result<_, _>>()?;
                self.emit(Op::BranchTable { targets, index });
            }
            (["ret"] | ["ret", "uni"], []) => match self.frame().end {
                None => self.emit(Op::Exit),
                Some(end) => self.emit(Op::Branch { to: end as u32 }),
            },
            (["exit"], []) => self.emit(Op::Exit),
            (["trap"], []) => self.emit(Op::Trap),
            (["activemask", "b32"], [d]) => {
                let d = self.target32(d)?;
                self.emit(Op::ActiveMask { d });
            }
            (["membar", "cta" | "gl" | "sys"] | ["fence", ..], []) => {
                let is_known = modifiers[1..]
                    .iter()
                    .all(|modifier| matches!(*modifier, "sc" | "acq_rel" | "cta" | "gpu" | "sys" | "gl"));
                if !is_known {
                    return Ok(false);
                }
                let is_wide = !modifiers.contains(&"cta");
                self.emit(Op::Fence { is_wide });
            }
            // Devices support it from compute capability 9.0 on.
            (["griddepcontrol", action], []) if self.source.target >= 90 => match *action {
                "launch_dependents" => self.emit(Op::LetNextBegin),
                "wait" => self.emit(Op::AwaitEarlier),
                _ => return Ok(false),
            },
            (["bar" | "barrier", ..], _) => return self.barrier(&modifiers[1..], operands),
            (["shfl", "sync", mode, "b32"], _) => return self.shuffle(mode, operands),
            (["vote", "sync", mode, ty], [d, a, members]) => return self.vote(mode, ty, d, a, members),
            (["match", "any", "sync", ty @ ("b32" | "b64")], [d, a, members]) => {
                let ty = if *ty == "b64" { Ty::B64 } else { Ty::B32 };
                let (d, a, members) = (self.target32(d)?, self.source(a, ty)?, self.source32(members)?);
                self.emit(Op::Match { d, a, members });
            }
            (["redux", "sync", f, ty], [d, a, members]) => return self.reduce(f, ty, d, a, members),
            (["atom" | "red", ..], _) => return self.atomic(modifiers, operands),
            (["mma", ..], [d, a, b, c]) => return self.matrix(&modifiers[1..], [d, a, b, c]),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn barrier(&mut self, modifiers: &[&str], operands: &[Operand]) -> Result<bool, LoadError> {
        let modifiers = modifiers.strip_prefix(&["cta"]).unwrap_or(modifiers);
        // `barrier.sync` without `.aligned` lets lanes arrive apart; the compiler emits it only for divergent code.
        match (modifiers, operands) {
            (["sync"] | ["sync", "aligned"], [id, threads @ ..]) if threads.len() <= 1 => {
                let id = self.source32(id)?;
                let threads = threads
                    .first()
                    .map(|threads| self.source32(threads))
                    .transpose()?;
                self.emit(Op::Barrier {
                    id,
                    threads,
                    reduce: None,
                });
            }
            (["warp", "sync"], [members]) => {
                let members = self.source32(members)?;
                self.emit(Op::WarpBarrier { members });
            }
            (["red", f, ty] | ["red", f, "aligned", ty], [d, id, a]) => {
                let f = match (*f, *ty) {
                    ("popc", "u32") => BarrierFn::CountTrue,
                    ("and", "pred") => BarrierFn::All,
                    ("or", "pred") => BarrierFn::Any,
                    _ => return Ok(false),
                };
                let d = if f == BarrierFn::CountTrue {
                    VoteResult::Reg(self.target32(d)?)
                } else {
                    VoteResult::Pred(self.target_pred(d)?)
                };
                let id = self.source32(id)?;
                let (a, negated) = self.source_pred(a)?;
                self.emit(Op::Barrier {
                    id,
                    threads: None,
                    reduce: Some(BarrierReduce { f, a, negated, d }),
                });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn shuffle(&mut self, mode: &str, operands: &[Operand]) -> Result<bool, LoadError> {
        let f = match mode {
            "up" => Shuffle::Up,
            "down" => Shuffle::Down,
            "bfly" => Shuffle::Butterfly,
            "idx" => Shuffle::Index,
            _ => return Ok(false),
        };
        let [target, a, b, c, members] = operands else {
            return Err(self.operands("a target, a value, a lane, a clamp and a member mask"));
        };
        let (d, p) = match target {
            Operand::Pair(d, p) => (self.target32(d)?, Some(self.target_pred(p)?)),
            d => (self.target32(d)?, None),
        };
        let (a, b, c) = (self.source32(a)?, self.source32(b)?, self.source32(c)?);
        let members = self.source32(members)?;
        self.emit(Op::Shuffle {
            f,
            d,
            p,
            a,
            b,
            c,
            members,
        });
        Ok(true)
    }

    fn vote(
        &mut self,
        mode: &str,
        ty: &str,
        d: &Operand,
        a: &Operand,
        members: &Operand,
    ) -> Result<bool, LoadError> {
        let f = match (mode, ty) {
            ("all", "pred") => Vote::All,
            ("any", "pred") => Vote::Any,
            ("uni", "pred") => Vote::Uniform,
            ("ballot", "b32") => Vote::Ballot,
            _ => return Ok(false),
        };
        let d = if f == Vote::Ballot {
            VoteResult::Reg(self.target32(d)?)
        } else {
            VoteResult::Pred(self.target_pred(d)?)
        };
        let (a, negated) = self.source_pred(a)?;
        let members = self.source32(members)?;
        self.emit(Op::Vote {
            f,
            d,
            a,
            negated,
            members,
        });
        Ok(true)
    }

    fn reduce(
        &mut self,
        f: &str,
        ty: &str,
        d: &Operand,
        a: &Operand,
        members: &Operand,
    ) -> Result<bool, LoadError> {
        let f = match (f, ty) {
            ("add", "u32" | "s32") => AtomicFn::Add,
            ("min", "u32" | "s32") => AtomicFn::Min,
            ("max", "u32" | "s32") => AtomicFn::Max,
            ("and", "b32") => AtomicFn::And,
            ("or", "b32") => AtomicFn::Or,
            ("xor", "b32") => AtomicFn::Xor,
            _ => return Ok(false),
        };
        let (d, a, members) = (self.target32(d)?, self.source32(a)?, self.source32(members)?);
        self.emit(Op::Reduce {
            f,
            is_signed: ty == "s32",
            d,
            a,
            members,
        });
        Ok(true)
    }

    fn atomic(&mut self, modifiers: &[&str], operands: &[Operand]) -> Result<bool, LoadError> {
        let returns = modifiers[0] == "atom";
        let (Some((&ty, rest)), mut space, mut function) =
            (modifiers[1..].split_last(), Space::Generic, None)
        else {
            return Ok(false);
        };
        let Some(ty) = Ty::from_name(ty) else {
            return Ok(false);
        };
        for &modifier in rest {
            match modifier {
                "global" => space = Space::Global,
                "shared" | "shared::cta" => space = Space::Shared,
                "relaxed" | "acquire" | "release" | "acq_rel" | "cta" | "gpu" | "sys" | "noftz" => {}
                "add" => function = Some(AtomicFn::Add),
                "min" => function = Some(AtomicFn::Min),
                "max" => function = Some(AtomicFn::Max),
                "and" => function = Some(AtomicFn::And),
                "or" => function = Some(AtomicFn::Or),
                "xor" => function = Some(AtomicFn::Xor),
                "exch" => function = Some(AtomicFn::Exchange),
                "cas" => function = Some(AtomicFn::CompareSwap),
                "inc" => function = Some(AtomicFn::Increment),
                "dec" => function = Some(AtomicFn::Decrement),
                _ => return Ok(false),
            }
        }
        let Some(f) = function else {
            return Ok(false);
        };
        let is_known = match f {
            AtomicFn::Add => matches!(
                ty,
                Ty::U32 | Ty::S32 | Ty::U64 | Ty::F32 | Ty::F64 | Ty::F16x2 | Ty::Bf16x2
            ),
            AtomicFn::Min | AtomicFn::Max => matches!(ty, Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64),
            AtomicFn::Increment | AtomicFn::Decrement => ty == Ty::U32,
            _ => matches!(ty, Ty::B32 | Ty::B64),
        };
        if !is_known {
            return Ok(false);
        }
        let (d, operands) = match operands {
            [d, rest @ ..] if returns => {
                let is_sink = matches!(d, Operand::Name(name) if name == "_");
                (if is_sink { None } else { Some(self.target(d)?.0) }, rest)
            }
            rest => (None, rest),
        };
        let (at, b, c) = match operands {
            [at, b] if f != AtomicFn::CompareSwap => {
                let (at, b) = (self.address(at, space)?, self.source(b, ty)?);
                (at, b, b)
            }
            [at, b, c] if f == AtomicFn::CompareSwap => {
                (self.address(at, space)?, self.source(b, ty)?, self.source(c, ty)?)
            }
            _ => return Err(self.operands("an address and the operation's values")),
        };
        self.emit(Op::Atomic { at, f, ty, d, b, c });
        Ok(true)
    }

    pub(super) fn registers<const N: usize>(
        &mut self,
        operand: &Operand,
        n: usize,
    ) -> Result<[Reg; N], LoadError> {
        let parts = match operand {
            Operand::Vector(parts) => parts.as_slice(),
            one => std::slice::from_ref(one),
        };
        if parts.len() != n {
            return Err(self.operands("as many registers as the matrix shape has"));
        }
        let mut registers = [0; N];
        for (register, part) in registers.iter_mut().zip(parts) {
            let AnyReg::R32(index) = self.source(part, Ty::B32)? else {
                return Err(self.operands("32-bit registers"));
            };
            *register = index;
        }
        Ok(registers)
    }

    fn matrix(&mut self, modifiers: &[&str], operands: [&Operand; 4]) -> Result<bool, LoadError> {
        let ["sync", "aligned", shape, "row", "col", types @ ..] = modifiers else {
            return Ok(false);
        };
        let (kind, n_a, n_b, n_c) = match (*shape, types) {
            ("m16n8k16", ["f32", "f16", "f16", "f32"]) => (MatrixKind::F16F32, 4, 2, 4),
            ("m16n8k16", ["f16", "f16", "f16", "f16"]) => (MatrixKind::F16F16, 4, 2, 2),
            ("m16n8k16", ["f32", "bf16", "bf16", "f32"]) => (MatrixKind::Bf16, 4, 2, 4),
            ("m16n8k8", ["f32", "f16", "f16", "f32"]) => (MatrixKind::F16K8, 2, 1, 4),
            ("m16n8k8", ["f32", "tf32", "tf32", "f32"]) => (MatrixKind::Tf32, 4, 2, 4),
            ("m16n8k32", ["s32", "s8", "s8", "s32"]) => (MatrixKind::S8, 4, 2, 4),
            ("m16n8k16", ["s32", "s8", "s8", "s32"]) => (MatrixKind::S8K16, 2, 1, 4),
            _ => return Ok(false),
        };
        let [d, a, b, c] = operands;
        let d = self.registers(d, n_c)?;
        let (a, b, c) = (
            self.registers(a, n_a)?,
            self.registers(b, n_b)?,
            self.registers(c, n_c)?,
        );
        self.emit(Op::Matrix { kind, d, a, b, c });
        Ok(true)
    }
}
