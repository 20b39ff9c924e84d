//! `cvt`: hot conversions become lane functions, all others the general [`Op::Convert`].

use super::Decoder;
use crate::{
    LoadError,
    lanes::{Binary32, Narrow, Unary32, Widen},
    op::{AnyReg, Op, Rounding},
    parse::Operand,
    types::Ty,
};

impl Decoder<'_> {
    /// Decodes `cvt[.rounding][.ftz][.sat].to.from d, a[, b]`; `false` if the combination is not executed.
    pub(super) fn convert(&mut self, modifiers: &[&str], operands: &[Operand]) -> Result<bool, LoadError> {
        let [rest @ .., to, from] = modifiers else {
            return Ok(false);
        };
        let (Some(to), Some(from)) = (Ty::from_name(to), Ty::from_name(from)) else {
            return Ok(false);
        };
        let (mut rounding, mut flush, mut saturate) = (None, false, false);
        for &modifier in rest {
            match modifier {
                "rn" | "rni" => rounding = Some(Rounding::Nearest),
                "rz" | "rzi" => rounding = Some(Rounding::Zero),
                "rm" | "rmi" => rounding = Some(Rounding::Down),
                "rp" | "rpi" => rounding = Some(Rounding::Up),
                "ftz" => flush = true,
                "sat" => saturate = true,
                _ => return Ok(false),
            }
        }
        if let [d, a, b] = operands {
            let f = match (to, from, rounding) {
                (Ty::F16x2, Ty::F32, Some(Rounding::Nearest)) => Binary32::PackF16,
                (Ty::Bf16x2, Ty::F32, Some(Rounding::Nearest)) => Binary32::PackBf16,
                _ => return Ok(false),
            };
            if flush || saturate {
                return Ok(false);
            }
            let (d, a, b) = (self.target32(d)?, self.source32(a)?, self.source32(b)?);
            self.emit(Op::Binary32 { f, flush, d, a, b });
            return Ok(true);
        }
        let [d, a] = operands else {
            return Err(self.operands("a target and a source"));
        };
        let is_convertible = |ty: Ty| ty.is_integer() || ty.is_float();
        // Rounding to an integral float is written with the integer form of the modifier (`rni`), which is `rn` here;
        // between floats of one type they would differ, so only the integer form is taken there.
        let is_integral = rest.iter().any(|modifier| modifier.ends_with('i'));
        if !is_convertible(to) || !is_convertible(from) || (flush && from != Ty::F32 && to != Ty::F32) {
            return Ok(false);
        }
        if from.is_float() && to.is_float() && from != to && is_integral {
            return Ok(false);
        }
        if from == to && from.is_float() && !is_integral && rounding.is_some() {
            return Ok(false);
        }
        let nearest = rounding.is_none_or(|rounding| rounding == Rounding::Nearest);
        let zero = rounding == Some(Rounding::Zero);
        let fast = match (from, to, saturate) {
            (Ty::F16, Ty::F32, false) => Some(Unary32::F16ToF32),
            (Ty::Bf16, Ty::F32, false) => Some(Unary32::Bf16ToF32),
            (Ty::F32, Ty::F16, false) if nearest => Some(Unary32::F32ToF16),
            (Ty::F32, Ty::Bf16, false) if nearest => Some(Unary32::F32ToBf16),
            (Ty::S32, Ty::F32, false) if nearest => Some(Unary32::S32ToF32),
            (Ty::U32, Ty::F32, false) if nearest => Some(Unary32::U32ToF32),
            (Ty::F32, Ty::S32, _) if nearest => Some(Unary32::F32ToS32Nearest),
            (Ty::F32, Ty::S32, _) if zero => Some(Unary32::F32ToS32Zero),
            (Ty::F32, Ty::F32, true) => Some(Unary32::F32Saturate),
            (Ty::F32, Ty::F32, false) => Some(match rounding {
                Some(Rounding::Nearest) => Unary32::F32Nearest,
                Some(Rounding::Zero) => Unary32::F32Zero,
                Some(Rounding::Down) => Unary32::F32Floor,
                Some(Rounding::Up) => Unary32::F32Ceil,
                None => Unary32::FlushSubnormal,
            }),
            (Ty::U16, Ty::U32 | Ty::S32, false) | (Ty::U32 | Ty::S32, Ty::U16 | Ty::S16, false) => {
                Some(Unary32::ZeroExtend16)
            }
            (Ty::U8, Ty::U32 | Ty::S32, false) => Some(Unary32::ZeroExtend8),
            (Ty::S16, Ty::U32 | Ty::S32, false) => Some(Unary32::SignExtend16),
            (Ty::S8, Ty::U32 | Ty::S32, false) => Some(Unary32::SignExtend8),
            _ => None,
        };
        let (target, is_narrow) = self.target(d)?;
        let source = self.source(a, from)?;
        if let (Some(f), AnyReg::R32(d), AnyReg::R32(a)) = (fast, target, source)
            && (to.bytes() == 4) != is_narrow
        {
            // `cvt.f32.f32` without a modifier is a copy; with `ftz` it flushes.
            if f == Unary32::FlushSubnormal && !flush {
                self.emit(Op::Move32 { d, a });
            } else {
                let flush = flush && f != Unary32::FlushSubnormal;
                self.emit(Op::Unary32 { f, flush, d, a });
            }
            return Ok(true);
        }
        match (from, to, source, target) {
            _ if saturate => {}
            (Ty::U32, Ty::U64 | Ty::S64, AnyReg::R32(a), AnyReg::R64(d)) => {
                self.emit(Op::Widen {
                    f: Widen::ZeroExtend,
                    d,
                    a,
                });
                return Ok(true);
            }
            (Ty::S32, Ty::U64 | Ty::S64, AnyReg::R32(a), AnyReg::R64(d)) => {
                self.emit(Op::Widen {
                    f: Widen::SignExtend,
                    d,
                    a,
                });
                return Ok(true);
            }
            (Ty::F32, Ty::F64, AnyReg::R32(a), AnyReg::R64(d)) if !flush => {
                self.emit(Op::Widen {
                    f: Widen::F32ToF64,
                    d,
                    a,
                });
                return Ok(true);
            }
            (Ty::S32, Ty::F64, AnyReg::R32(a), AnyReg::R64(d)) => {
                self.emit(Op::Widen {
                    f: Widen::S32ToF64,
                    d,
                    a,
                });
                return Ok(true);
            }
            (Ty::U32, Ty::F64, AnyReg::R32(a), AnyReg::R64(d)) => {
                self.emit(Op::Widen {
                    f: Widen::U32ToF64,
                    d,
                    a,
                });
                return Ok(true);
            }
            (Ty::U64 | Ty::S64, Ty::U32 | Ty::S32, AnyReg::R64(a), AnyReg::R32(d)) => {
                self.emit(Op::Narrow { f: Narrow::Low, d, a });
                return Ok(true);
            }
            (Ty::F64, Ty::F32, AnyReg::R64(a), AnyReg::R32(d)) if nearest && !flush => {
                self.emit(Op::Narrow {
                    f: Narrow::F64ToF32,
                    d,
                    a,
                });
                return Ok(true);
            }
            (Ty::F64, Ty::S32, AnyReg::R64(a), AnyReg::R32(d)) if zero => {
                self.emit(Op::Narrow {
                    f: Narrow::F64ToS32Zero,
                    d,
                    a,
                });
                return Ok(true);
            }
            (Ty::S64, Ty::F32, AnyReg::R64(a), AnyReg::R32(d)) if nearest => {
                self.emit(Op::Narrow {
                    f: Narrow::S64ToF32,
                    d,
                    a,
                });
                return Ok(true);
            }
            (Ty::U64, Ty::F32, AnyReg::R64(a), AnyReg::R32(d)) if nearest => {
                self.emit(Op::Narrow {
                    f: Narrow::U64ToF32,
                    d,
                    a,
                });
                return Ok(true);
            }
            (Ty::F64, Ty::F16, AnyReg::R64(a), AnyReg::R32(d)) if nearest => {
                self.emit(Op::Narrow {
                    f: Narrow::F64ToF16,
                    d,
                    a,
                });
                return Ok(true);
            }
            _ => {}
        }
        // Directed rounding between floats and of large integers is rare; the general form rounds to nearest there.
        if to.is_float() && !nearest && from != to {
            return Ok(false);
        }
        if flush {
            return Ok(false);
        }
        self.emit(Op::Convert {
            from,
            to,
            rounding: rounding.unwrap_or(Rounding::Nearest),
            saturate,
            d: target,
            a: source,
        });
        Ok(true)
    }
}
