//! The table of arithmetic: the lane function of each mnemonic.

use super::Decoder;
use crate::{
    LoadError,
    kernel::Constant,
    lanes::{
        Binary32, Binary64, Compare32, Compare64, Extract64, Insert64, Narrow, Quaternary32, Shift64,
        Ternary32, Ternary64, Unary32, Unary64, Wide,
    },
    op::{Combine, Op},
    parse::Operand,
    types::Ty,
};

/// A lane function with the widths of its operands.
enum Shape {
    U32(Unary32),
    B32(Binary32),
    T32(Ternary32),
    Q32(Quaternary32),
    U64(Unary64),
    B64(Binary64),
    T64(Ternary64),
    S64(Shift64),
    X64(Extract64),
    I64(Insert64),
    N(Narrow),
    W(Wide),
    MadWide(Wide),
    /// 16-bit operands, so that immediates are truncated.
    B16(Binary32),
    T16(Ternary32),
}

/// Returns the shape of plain arithmetic; this is the whole list. `name` is the mnemonic without `.rn` and `.ftz` if
/// those change nothing or the caller handles them.
fn shape(name: &str) -> Option<Shape> {
    use Shape as S;
    Some(match name {
        "add.s32" | "add.u32" => S::B32(Binary32::Add),
        "sub.s32" | "sub.u32" => S::B32(Binary32::Sub),
        "mul.lo.s32" | "mul.lo.u32" => S::B32(Binary32::MulLow),
        "mul.hi.s32" => S::B32(Binary32::MulHighS),
        "mul.hi.u32" => S::B32(Binary32::MulHighU),
        "mad.lo.s32" | "mad.lo.u32" => S::T32(Ternary32::Mad),
        "mad.hi.s32" => S::T32(Ternary32::MadHighS),
        "mad.hi.u32" => S::T32(Ternary32::MadHighU),
        "div.s32" => S::B32(Binary32::DivS),
        "div.u32" => S::B32(Binary32::DivU),
        "rem.s32" => S::B32(Binary32::RemS),
        "rem.u32" => S::B32(Binary32::RemU),
        "min.s32" => S::B32(Binary32::MinS),
        "min.u32" => S::B32(Binary32::MinU),
        "max.s32" => S::B32(Binary32::MaxS),
        "max.u32" => S::B32(Binary32::MaxU),
        "abs.s32" => S::U32(Unary32::Abs),
        "neg.s32" => S::U32(Unary32::Neg),
        "not.b32" => S::U32(Unary32::Not),
        "and.b32" | "and.b16" => S::B32(Binary32::And),
        "or.b32" | "or.b16" => S::B32(Binary32::Or),
        "xor.b32" | "xor.b16" => S::B32(Binary32::Xor),
        "shl.b32" => S::B32(Binary32::Shl),
        "shr.u32" | "shr.b32" | "shr.u16" | "shr.b16" => S::B32(Binary32::ShrU),
        "shr.s32" => S::B32(Binary32::ShrS),
        "popc.b32" => S::U32(Unary32::Popc),
        "clz.b32" => S::U32(Unary32::Clz),
        "brev.b32" => S::U32(Unary32::Brev),
        "bfind.u32" => S::U32(Unary32::FindU),
        "bfind.s32" => S::U32(Unary32::FindS),
        "bfe.u32" => S::T32(Ternary32::ExtractU),
        "bfe.s32" => S::T32(Ternary32::ExtractS),
        "bfi.b32" => S::Q32(Quaternary32::Insert),
        "bmsk.clamp.b32" => S::B32(Binary32::BitMask),
        "prmt.b32" => S::T32(Ternary32::Permute),
        "sad.u32" => S::T32(Ternary32::SadU),
        "sad.s32" => S::T32(Ternary32::SadS),
        "shf.l.wrap.b32" => S::T32(Ternary32::FunnelLeftWrap),
        "shf.l.clamp.b32" => S::T32(Ternary32::FunnelLeftClamp),
        "shf.r.wrap.b32" => S::T32(Ternary32::FunnelRightWrap),
        "shf.r.clamp.b32" => S::T32(Ternary32::FunnelRightClamp),
        "dp4a.s32.s32" => S::T32(Ternary32::Dp4aSS),
        "dp4a.s32.u32" => S::T32(Ternary32::Dp4aSU),
        "dp4a.u32.s32" => S::T32(Ternary32::Dp4aUS),
        "dp4a.u32.u32" => S::T32(Ternary32::Dp4aUU),

        "add.s16" | "add.u16" => S::B16(Binary32::Add16),
        "sub.s16" | "sub.u16" => S::B16(Binary32::Sub16),
        "mul.lo.s16" | "mul.lo.u16" => S::B16(Binary32::Mul16),
        "mad.lo.s16" | "mad.lo.u16" => S::T16(Ternary32::Mad16),
        "mul.wide.u16" => S::B16(Binary32::MulWideU16),
        "mul.wide.s16" => S::B16(Binary32::MulWideS16),
        "min.s16" => S::B16(Binary32::MinS16),
        "min.u16" => S::B16(Binary32::MinU),
        "max.s16" => S::B16(Binary32::MaxS16),
        "max.u16" => S::B16(Binary32::MaxU),
        "abs.s16" => S::U32(Unary32::Abs16),
        "neg.s16" => S::U32(Unary32::Neg16),
        "not.b16" => S::U32(Unary32::Not16),
        "shl.b16" => S::B32(Binary32::Shl16),
        "shr.s16" => S::B32(Binary32::ShrS16),

        "add.s64" | "add.u64" => S::B64(Binary64::Add),
        "sub.s64" | "sub.u64" => S::B64(Binary64::Sub),
        "mul.lo.s64" | "mul.lo.u64" => S::B64(Binary64::MulLow),
        "mul.hi.s64" => S::B64(Binary64::MulHighS),
        "mul.hi.u64" => S::B64(Binary64::MulHighU),
        "mad.lo.s64" | "mad.lo.u64" => S::T64(Ternary64::Mad),
        "div.s64" => S::B64(Binary64::DivS),
        "div.u64" => S::B64(Binary64::DivU),
        "rem.s64" => S::B64(Binary64::RemS),
        "rem.u64" => S::B64(Binary64::RemU),
        "min.s64" => S::B64(Binary64::MinS),
        "min.u64" => S::B64(Binary64::MinU),
        "max.s64" => S::B64(Binary64::MaxS),
        "max.u64" => S::B64(Binary64::MaxU),
        "abs.s64" => S::U64(Unary64::Abs),
        "neg.s64" => S::U64(Unary64::Neg),
        "not.b64" => S::U64(Unary64::Not),
        "brev.b64" => S::U64(Unary64::Brev),
        "and.b64" => S::B64(Binary64::And),
        "or.b64" => S::B64(Binary64::Or),
        "xor.b64" => S::B64(Binary64::Xor),
        "shl.b64" => S::S64(Shift64::Shl),
        "shr.u64" | "shr.b64" => S::S64(Shift64::ShrU),
        "shr.s64" => S::S64(Shift64::ShrS),
        "popc.b64" => S::N(Narrow::Popc),
        "clz.b64" => S::N(Narrow::Clz),
        "bfind.u64" => S::N(Narrow::FindU),
        "bfe.u64" => S::X64(Extract64::Unsigned),
        "bfe.s64" => S::X64(Extract64::Signed),
        "bfi.b64" => S::I64(Insert64::Insert),
        "mul.wide.u32" => S::W(Wide::Unsigned),
        "mul.wide.s32" => S::W(Wide::Signed),
        "mad.wide.u32" => S::MadWide(Wide::Unsigned),
        "mad.wide.s32" => S::MadWide(Wide::Signed),

        "add.f32" => S::B32(Binary32::FAdd),
        "sub.f32" => S::B32(Binary32::FSub),
        "mul.f32" => S::B32(Binary32::FMul),
        "fma.f32" => S::T32(Ternary32::FFma),
        "fma.rm.f32" => S::T32(Ternary32::FFmaDown),
        "fma.rp.f32" => S::T32(Ternary32::FFmaUp),
        "div.f32" | "div.full.f32" | "div.approx.f32" => S::B32(Binary32::FDiv),
        "min.f32" => S::B32(Binary32::FMin),
        "max.f32" => S::B32(Binary32::FMax),
        "min.NaN.f32" => S::B32(Binary32::FMinNan),
        "max.NaN.f32" => S::B32(Binary32::FMaxNan),
        "abs.f32" => S::U32(Unary32::FAbs),
        "neg.f32" => S::U32(Unary32::FNeg),
        "sqrt.f32" | "sqrt.approx.f32" => S::U32(Unary32::FSqrt),
        "rsqrt.approx.f32" => S::U32(Unary32::FRsqrt),
        "rcp.f32" | "rcp.approx.f32" => S::U32(Unary32::FRcp),
        "ex2.approx.f32" => S::U32(Unary32::FEx2),
        "lg2.approx.f32" => S::U32(Unary32::FLg2),
        "sin.approx.f32" => S::U32(Unary32::FSin),
        "cos.approx.f32" => S::U32(Unary32::FCos),
        "tanh.approx.f32" => S::U32(Unary32::FTanh),
        "copysign.f32" => S::B32(Binary32::FCopysign),

        "add.f64" => S::B64(Binary64::DAdd),
        "sub.f64" => S::B64(Binary64::DSub),
        "mul.f64" => S::B64(Binary64::DMul),
        "fma.f64" => S::T64(Ternary64::DFma),
        "div.f64" => S::B64(Binary64::DDiv),
        "min.f64" => S::B64(Binary64::DMin),
        "max.f64" => S::B64(Binary64::DMax),
        "abs.f64" => S::U64(Unary64::DAbs),
        "neg.f64" => S::U64(Unary64::DNeg),
        "sqrt.f64" => S::U64(Unary64::DSqrt),
        "rcp.f64" | "rcp.approx.f64" => S::U64(Unary64::DRcp),
        "rsqrt.approx.f64" => S::U64(Unary64::DRsqrt),
        "copysign.f64" => S::B64(Binary64::DCopysign),

        "add.f16" => S::B32(Binary32::HAdd),
        "sub.f16" => S::B32(Binary32::HSub),
        "mul.f16" => S::B32(Binary32::HMul),
        "fma.f16" => S::T32(Ternary32::HFma),
        "min.f16" => S::B32(Binary32::HMin),
        "max.f16" => S::B32(Binary32::HMax),
        "neg.f16" | "neg.bf16" => S::U32(Unary32::HNeg),
        "abs.f16" | "abs.bf16" => S::U32(Unary32::HAbs),
        "add.f16x2" => S::B32(Binary32::H2Add),
        "sub.f16x2" => S::B32(Binary32::H2Sub),
        "mul.f16x2" => S::B32(Binary32::H2Mul),
        "fma.f16x2" => S::T32(Ternary32::H2Fma),
        "min.f16x2" => S::B32(Binary32::H2Min),
        "max.f16x2" => S::B32(Binary32::H2Max),
        "neg.f16x2" | "neg.bf16x2" => S::U32(Unary32::H2Neg),
        "abs.f16x2" | "abs.bf16x2" => S::U32(Unary32::H2Abs),
        "fma.bf16" => S::T32(Ternary32::BFma),
        "min.bf16" => S::B32(Binary32::BMin),
        "max.bf16" => S::B32(Binary32::BMax),
        "add.bf16x2" => S::B32(Binary32::B2Add),
        "sub.bf16x2" => S::B32(Binary32::B2Sub),
        "mul.bf16x2" => S::B32(Binary32::B2Mul),
        "fma.bf16x2" => S::T32(Ternary32::B2Fma),
        "min.bf16x2" => S::B32(Binary32::B2Min),
        "max.bf16x2" => S::B32(Binary32::B2Max),
        _ => return None,
    })
}

impl Decoder<'_> {
    /// Decodes arithmetic, comparisons and selections; `false` if the mnemonic is unknown.
    pub(super) fn arithmetic(&mut self, modifiers: &[&str], operands: &[Operand]) -> Result<bool, LoadError> {
        match (modifiers[0], operands) {
            ("setp", _) => return self.compare(&modifiers[1..], operands),
            ("selp", [d, a, b, p]) => return self.select(&modifiers[1..], [d, a, b, p]),
            ("lop3", [d, a, b, c, Operand::Integer(table)]) if modifiers[1..] == ["b32"] => {
                let d = self.target32(d)?;
                let (a, b, c) = (self.source32(a)?, self.source32(b)?, self.source32(c)?);
                let table = *table as u8;
                self.emit(Op::Lookup { table, d, a, b, c });
                return Ok(true);
            }
            ("and" | "or" | "xor" | "not", _) if modifiers[1..] == ["pred"] => {
                return self.pred_logic(modifiers[0], operands);
            }
            _ => {}
        }
        let is_float32 = modifiers.last() == Some(&"f32");
        let is_float64 = modifiers.last() == Some(&"f64");
        let flush = modifiers.contains(&"ftz");
        // Only the reciprocal and its root have a flushing f64 form; the host's is more exact.
        let is_flush_allowed = is_float32 || (is_float64 && matches!(modifiers[0], "rcp" | "rsqrt"));
        if flush && !is_flush_allowed {
            return Ok(false);
        }
        let rounds = matches!(
            modifiers[0],
            "add" | "sub" | "mul" | "fma" | "div" | "sqrt" | "rcp"
        );
        let name: Vec<&str> = modifiers
            .iter()
            .copied()
            .filter(|&modifier| modifier != "ftz" && !(rounds && modifier == "rn"))
            .collect();
        let Some(shape) = shape(&name.join(".")) else {
            return Ok(false);
        };
        self.shaped(shape, flush && is_float32, operands)
    }

    fn shaped(&mut self, shape: Shape, flush: bool, operands: &[Operand]) -> Result<bool, LoadError> {
        let op = match (shape, operands) {
            (Shape::U32(f), [d, a]) => {
                let (d, a) = (self.target32(d)?, self.source32(a)?);
                Op::Unary32 { f, flush, d, a }
            }
            (Shape::B32(f), [d, a, b]) => {
                let (d, a, b) = (self.target32(d)?, self.source32(a)?, self.source32(b)?);
                Op::Binary32 { f, flush, d, a, b }
            }
            (Shape::B16(f), [d, a, b]) => {
                let (d, a, b) = (self.target32(d)?, self.source16(a)?, self.source16(b)?);
                Op::Binary32 { f, flush, d, a, b }
            }
            (Shape::T32(f), [d, a, b, c]) => {
                let d = self.target32(d)?;
                let (a, b, c) = (self.source32(a)?, self.source32(b)?, self.source32(c)?);
                Op::Ternary32 { f, flush, d, a, b, c }
            }
            (Shape::T16(f), [d, a, b, c]) => {
                let d = self.target32(d)?;
                let (a, b, c) = (self.source16(a)?, self.source16(b)?, self.source16(c)?);
                Op::Ternary32 { f, flush, d, a, b, c }
            }
            (Shape::Q32(f), [d, a, b, c, e]) => {
                let d = self.target32(d)?;
                let (a, b) = (self.source32(a)?, self.source32(b)?);
                let (c, e) = (self.source32(c)?, self.source32(e)?);
                Op::Quaternary32 { f, d, a, b, c, e }
            }
            (Shape::U64(f), [d, a]) => {
                let (d, a) = (self.target64(d)?, self.source64(a)?);
                Op::Unary64 { f, d, a }
            }
            (Shape::B64(f), [d, a, b]) => {
                let (d, a, b) = (self.target64(d)?, self.source64(a)?, self.source64(b)?);
                Op::Binary64 { f, d, a, b }
            }
            (Shape::T64(f), [d, a, b, c]) => {
                let d = self.target64(d)?;
                let (a, b, c) = (self.source64(a)?, self.source64(b)?, self.source64(c)?);
                Op::Ternary64 { f, d, a, b, c }
            }
            (Shape::S64(f), [d, a, b]) => {
                let (d, a, b) = (self.target64(d)?, self.source64(a)?, self.source32(b)?);
                Op::Shift64 { f, d, a, b }
            }
            (Shape::X64(f), [d, a, b, c]) => {
                let (d, a) = (self.target64(d)?, self.source64(a)?);
                let (b, c) = (self.source32(b)?, self.source32(c)?);
                Op::Extract64 { f, d, a, b, c }
            }
            (Shape::I64(f), [d, a, b, c, e]) => {
                let (d, a, b) = (self.target64(d)?, self.source64(a)?, self.source64(b)?);
                let (c, e) = (self.source32(c)?, self.source32(e)?);
                Op::Insert64 { f, d, a, b, c, e }
            }
            (Shape::N(f), [d, a]) => {
                let (d, a) = (self.target32(d)?, self.source64(a)?);
                Op::Narrow { f, d, a }
            }
            (Shape::W(f), [d, a, b]) => {
                let (d, a, b) = (self.target64(d)?, self.source32(a)?, self.source32(b)?);
                Op::Wide { f, d, a, b }
            }
            (Shape::MadWide(f), [d, a, b, c]) => {
                let (d, a, b) = (self.target64(d)?, self.source32(a)?, self.source32(b)?);
                let c = self.source64(c)?;
                Op::MadWide { f, d, a, b, c }
            }
            _ => return Err(self.operands("another number of operands")),
        };
        self.emit(op);
        Ok(true)
    }

    fn select(&mut self, modifiers: &[&str], operands: [&Operand; 4]) -> Result<bool, LoadError> {
        let [Some(ty)] = modifiers
            .iter()
            .map(|name| Ty::from_name(name))
            .collect::<Vec<_>>()[..]
        else {
            return Ok(false);
        };
        let [d, a, b, p] = operands;
        let (p, _) = self.source_pred(p)?;
        let op = match ty.bytes() {
            8 => {
                let (d, a, b) = (self.target64(d)?, self.source64(a)?, self.source64(b)?);
                Op::Select64 { d, a, b, p }
            }
            4 => {
                let (d, a, b) = (self.target32(d)?, self.source32(a)?, self.source32(b)?);
                Op::Select32 { d, a, b, p }
            }
            2 => {
                let (d, a, b) = (self.target32(d)?, self.source16(a)?, self.source16(b)?);
                Op::Select32 { d, a, b, p }
            }
            _ => return Ok(false),
        };
        self.emit(op);
        Ok(true)
    }

    fn pred_logic(&mut self, opcode: &str, operands: &[Operand]) -> Result<bool, LoadError> {
        let op = match (opcode, operands) {
            ("not", [d, a]) => {
                let (d, a) = (self.target_pred(d)?, self.source_pred(a)?.0);
                Op::NotPred { d, a }
            }
            (_, [d, a, b]) => {
                let f = match opcode {
                    "and" => Combine::And,
                    "or" => Combine::Or,
                    _ => Combine::Xor,
                };
                let (d, a, b) = (
                    self.target_pred(d)?,
                    self.source_pred(a)?.0,
                    self.source_pred(b)?.0,
                );
                Op::CombinePred { f, d, a, b }
            }
            _ => return Err(self.operands("predicates")),
        };
        self.emit(op);
        Ok(true)
    }

    /// `setp.cmp[.bool][.ftz].type p[|q], a, b[, [!]c]`.
    fn compare(&mut self, modifiers: &[&str], operands: &[Operand]) -> Result<bool, LoadError> {
        let (Some((&ty, rest)), Some(&comparison)) = (modifiers.split_last(), modifiers.first()) else {
            return Ok(false);
        };
        let Some(ty) = Ty::from_name(ty) else {
            return Ok(false);
        };
        let mut combine = None;
        let mut flush = false;
        for &modifier in &rest[1..] {
            match modifier {
                "and" => combine = Some(Combine::And),
                "or" => combine = Some(Combine::Or),
                "xor" => combine = Some(Combine::Xor),
                "ftz" if ty == Ty::F32 => flush = true,
                _ => return Ok(false),
            }
        }
        let (targets, a, b, with) = match (operands, combine) {
            ([targets, a, b], None) => (targets, a, b, None),
            ([targets, a, b, c], Some(combine)) => {
                let (c, is_negated) = self.source_pred(c)?;
                (targets, a, b, Some((combine, c, is_negated)))
            }
            _ => return Err(self.operands("two values, and a predicate where it combines")),
        };
        let (p, q) = match targets {
            Operand::Pair(p, q) => (self.target_pred(p)?, Some(self.target_pred(q)?)),
            p => (self.target_pred(p)?, None),
        };
        let op = if ty.bytes() == 8 {
            let Some(f) = compare64(comparison, ty) else {
                return Ok(false);
            };
            let (a, b) = (self.source64(a)?, self.source64(b)?);
            Op::Compare64 { f, p, q, a, b, with }
        } else {
            let Some(f) = compare32(comparison, ty) else {
                return Ok(false);
            };
            let (mut a, mut b) = if ty.bytes() == 2 {
                (self.source16(a)?, self.source16(b)?)
            } else {
                (self.source32(a)?, self.source32(b)?)
            };
            // 16-bit values are compared as 32-bit ones of the same value.
            let extend = match ty {
                Ty::S16 => Some(Unary32::SignExtend16),
                Ty::F16 => Some(Unary32::F16ToF32),
                Ty::Bf16 => Some(Unary32::Bf16ToF32),
                _ => None,
            };
            if let Some(f) = extend {
                for operand in [&mut a, &mut b] {
                    let d = self.scratch32()?;
                    self.emit(Op::Unary32 {
                        f,
                        flush: false,
                        d,
                        a: *operand,
                    });
                    *operand = d;
                }
            }
            Op::Compare32 {
                f,
                flush,
                p,
                q,
                a,
                b,
                with,
            }
        };
        self.emit(op);
        Ok(true)
    }

    /// Returns a constant register of either width that holds `value`.
    pub(super) fn immediate32(&mut self, value: u32) -> Result<u16, LoadError> {
        self.constant32(Constant::Immediate(u64::from(value)))
    }
}

fn compare32(comparison: &str, ty: Ty) -> Option<Compare32> {
    use Compare32 as C;
    let is_float = ty.is_float();
    let is_bits = matches!(ty, Ty::B16 | Ty::B32);
    if matches!(ty, Ty::F16x2 | Ty::Bf16x2 | Ty::Pred) || ty.bytes() == 1 {
        return None;
    }
    Some(match comparison {
        "eq" if is_float => C::FEq,
        "ne" if is_float => C::FNe,
        "lt" if is_float => C::FLt,
        "le" if is_float => C::FLe,
        "gt" if is_float => C::FGt,
        "ge" if is_float => C::FGe,
        "equ" if is_float => C::FEqu,
        "neu" if is_float => C::FNeu,
        "ltu" if is_float => C::FLtu,
        "leu" if is_float => C::FLeu,
        "gtu" if is_float => C::FGtu,
        "geu" if is_float => C::FGeu,
        "num" if is_float => C::FNum,
        "nan" if is_float => C::FNan,
        _ if is_float => return None,
        "eq" => C::Eq,
        "ne" => C::Ne,
        _ if is_bits => return None,
        "lt" if ty.is_signed() => C::LtS,
        "le" if ty.is_signed() => C::LeS,
        "gt" if ty.is_signed() => C::GtS,
        "ge" if ty.is_signed() => C::GeS,
        "lt" | "lo" => C::LtU,
        "le" | "ls" => C::LeU,
        "gt" | "hi" => C::GtU,
        "ge" | "hs" => C::GeU,
        _ => return None,
    })
}

fn compare64(comparison: &str, ty: Ty) -> Option<Compare64> {
    use Compare64 as C;
    let is_float = ty.is_float();
    Some(match comparison {
        "eq" if is_float => C::DEq,
        "ne" if is_float => C::DNe,
        "lt" if is_float => C::DLt,
        "le" if is_float => C::DLe,
        "gt" if is_float => C::DGt,
        "ge" if is_float => C::DGe,
        "equ" if is_float => C::DEqu,
        "neu" if is_float => C::DNeu,
        "ltu" if is_float => C::DLtu,
        "leu" if is_float => C::DLeu,
        "gtu" if is_float => C::DGtu,
        "geu" if is_float => C::DGeu,
        "num" if is_float => C::DNum,
        "nan" if is_float => C::DNan,
        _ if is_float => return None,
        "eq" => C::Eq,
        "ne" => C::Ne,
        _ if ty == Ty::B64 => return None,
        "lt" if ty.is_signed() => C::LtS,
        "le" if ty.is_signed() => C::LeS,
        "gt" if ty.is_signed() => C::GtS,
        "ge" if ty.is_signed() => C::GeS,
        "lt" | "lo" => C::LtU,
        "le" | "ls" => C::LeU,
        "gt" | "hi" => C::GtU,
        "ge" | "hs" => C::GeU,
        _ => return None,
    })
}
