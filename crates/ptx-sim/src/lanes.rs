//! The lane functions: the effect of each arithmetic opcode on one lane, applied to 32 lanes at a time.
//!
//! One table per shape (operand and result widths). Each entry is expanded into its own loop over the lanes, so the
//! compiler vectorizes it and the choice of the operation is made once per warp instruction. Invariant: these
//! functions are pure; registers of 8 and 16 bits are kept zero-extended in 32-bit lanes.
//!
//! Approximate instructions (`ex2.approx` and the like) are computed as exactly as the host can; a device may differ
//! in the last places.

use crate::half::{
    bf16_fma, bf16_to_f32, bf16x2, each_half, f16_fma, f16_to_f32, f16x2, f32_to_bf16, f32_to_f16,
    f64_to_f32_odd,
};

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;
/// A 32-bit register of a warp.
pub(crate) type Lanes32 = [u32; LANES];
/// A 64-bit register of a warp.
pub(crate) type Lanes64 = [u64; LANES];

macro_rules! lane_functions {
    ($(#[$doc:meta])* $name:ident $args:tt -> $out:ident $variants:tt) => {
        lane_functions! { @expand $(#[$doc])* $name $args $args -> $out $variants }
    };
    // The arguments are passed twice: once in parts for the signature, once whole for each loop.
    (@expand $(#[$doc:meta])* $name:ident ($($arg:ident: $ty:ty),+) $args:tt -> $out:ident {
        $($variant:ident => $body:expr,)+
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name { $($variant),+ }

        impl $name {
            /// Applies the function to all lanes.
            #[inline(always)]
            pub(crate) fn eval(self, $($arg: &[$ty; LANES]),+) -> [$out; LANES] {
                match self {
                    $(Self::$variant => lane_loop!($args, $out, $body),)+
                }
            }
        }
    };
}

macro_rules! lane_loop {
    (($($arg:ident: $ty:ty),+), $out:ident, $body:expr) => {{
        let mut out = [$out::default(); LANES];
        for lane in 0..LANES {
            let ($($arg,)+) = ($($arg[lane],)+);
            out[lane] = $body;
        }
        out
    }};
}

lane_functions! {
    /// `d = f(a)`, both 32-bit.
    Unary32(a: u32) -> u32 {
        Not => !a,
        Not16 => !a & 0xffff,
        Neg => a.wrapping_neg(),
        Neg16 => a.wrapping_neg() & 0xffff,
        Abs => (a as i32).wrapping_abs() as u32,
        Abs16 => u32::from((a as i16).wrapping_abs() as u16),
        Popc => a.count_ones(),
        Clz => a.leading_zeros(),
        Brev => a.reverse_bits(),
        FindU => if a == 0 { u32::MAX } else { a.ilog2() },
        FindS => { let b = a ^ ((a as i32) >> 31) as u32; if b == 0 { u32::MAX } else { b.ilog2() } },
        FNeg => a ^ 0x8000_0000,
        FAbs => a & 0x7fff_ffff,
        FSqrt => f(a).sqrt().to_bits(),
        FRsqrt => (1.0 / f64::from(f(a)).sqrt()).to_bits_f32(),
        FRcp => (1.0 / f(a)).to_bits(),
        FEx2 => f(a).exp2().to_bits(),
        FLg2 => f(a).log2().to_bits(),
        FSin => f(a).sin().to_bits(),
        FCos => f(a).cos().to_bits(),
        FTanh => f(a).tanh().to_bits(),
        HNeg => a ^ 0x8000,
        HAbs => a & 0x7fff,
        H2Neg => a ^ 0x8000_8000,
        H2Abs => a & 0x7fff_7fff,
        ZeroExtend8 => a & 0xff,
        ZeroExtend16 => a & 0xffff,
        SignExtend8 => a as i8 as u32,
        SignExtend16 => a as i16 as u32,
        S32ToF32 => (a as i32 as f32).to_bits(),
        U32ToF32 => (a as f32).to_bits(),
        F16ToF32 => f16_to_f32(a as u16).to_bits(),
        Bf16ToF32 => bf16_to_f32(a as u16).to_bits(),
        F32ToF16 => u32::from(f32_to_f16(f(a))),
        F32ToBf16 => u32::from(f32_to_bf16(f(a))),
        F32ToS32Nearest => f(a).round_ties_even() as i32 as u32,
        F32ToS32Zero => f(a) as i32 as u32,
        F32Nearest => f(a).round_ties_even().to_bits(),
        F32Floor => f(a).floor().to_bits(),
        F32Ceil => f(a).ceil().to_bits(),
        F32Zero => f(a).trunc().to_bits(),
        F32Saturate => if f(a).is_nan() { 0 } else { f(a).clamp(0.0, 1.0).to_bits() },
        FlushSubnormal => flush(a),
    }
}

lane_functions! {
    /// `d = f(a, b)`, all 32-bit.
    Binary32(a: u32, b: u32) -> u32 {
        Add => a.wrapping_add(b),
        Sub => a.wrapping_sub(b),
        MulLow => a.wrapping_mul(b),
        MulHighU => ((u64::from(a) * u64::from(b)) >> 32) as u32,
        MulHighS => ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32,
        MulWideU16 => (a & 0xffff) * (b & 0xffff),
        MulWideS16 => (i32::from(a as i16) * i32::from(b as i16)) as u32,
        DivU => a.checked_div(b).unwrap_or(u32::MAX),
        DivS => if b == 0 { u32::MAX } else { (a as i32).wrapping_div(b as i32) as u32 },
        RemU => a.checked_rem(b).unwrap_or(a),
        RemS => if b == 0 { a } else { (a as i32).wrapping_rem(b as i32) as u32 },
        MinU => a.min(b),
        MaxU => a.max(b),
        MinS => (a as i32).min(b as i32) as u32,
        MaxS => (a as i32).max(b as i32) as u32,
        And => a & b,
        Or => a | b,
        Xor => a ^ b,
        Shl => if b < 32 { a << b } else { 0 },
        ShrU => if b < 32 { a >> b } else { 0 },
        ShrS => ((a as i32) >> b.min(31)) as u32,
        Add16 => a.wrapping_add(b) & 0xffff,
        Sub16 => a.wrapping_sub(b) & 0xffff,
        Mul16 => a.wrapping_mul(b) & 0xffff,
        MinS16 => u32::from((a as i16).min(b as i16) as u16),
        MaxS16 => u32::from((a as i16).max(b as i16) as u16),
        Shl16 => if b < 16 { (a << b) & 0xffff } else { 0 },
        ShrS16 => u32::from(((a as i16) >> b.min(15)) as u16),
        FAdd => (f(a) + f(b)).to_bits(),
        FSub => (f(a) - f(b)).to_bits(),
        FMul => (f(a) * f(b)).to_bits(),
        FDiv => (f(a) / f(b)).to_bits(),
        FMin => minimum(a, b, false),
        FMax => maximum(a, b, false),
        FMinNan => minimum(a, b, true),
        FMaxNan => maximum(a, b, true),
        // `copysign d, a, b` takes the sign of `a`.
        FCopysign => (a & 0x8000_0000) | (b & 0x7fff_ffff),
        HAdd => f16x2(a & 0xffff, b & 0xffff, |a, b| a + b) & 0xffff,
        HSub => f16x2(a & 0xffff, b & 0xffff, |a, b| a - b) & 0xffff,
        HMul => f16x2(a & 0xffff, b & 0xffff, |a, b| a * b) & 0xffff,
        HMin => f16x2(a & 0xffff, b & 0xffff, f32_min) & 0xffff,
        HMax => f16x2(a & 0xffff, b & 0xffff, f32_max) & 0xffff,
        H2Add => f16x2(a, b, |a, b| a + b),
        H2Sub => f16x2(a, b, |a, b| a - b),
        H2Mul => f16x2(a, b, |a, b| a * b),
        H2Min => f16x2(a, b, f32_min),
        H2Max => f16x2(a, b, f32_max),
        B2Add => bf16x2(a, b, |a, b| a + b),
        B2Sub => bf16x2(a, b, |a, b| a - b),
        B2Mul => bf16x2(a, b, |a, b| a * b),
        B2Min => bf16x2(a, b, f32_min),
        B2Max => bf16x2(a, b, f32_max),
        BMin => bf16x2(a & 0xffff, b & 0xffff, f32_min) & 0xffff,
        BMax => bf16x2(a & 0xffff, b & 0xffff, f32_max) & 0xffff,
        // `cvt.rn.f16x2.f32 d, a, b` puts `a` into the upper half.
        PackF16 => u32::from(f32_to_f16(f(a))) << 16 | u32::from(f32_to_f16(f(b))),
        PackBf16 => u32::from(f32_to_bf16(f(a))) << 16 | u32::from(f32_to_bf16(f(b))),
        PackHalves => (a & 0xffff) | b << 16,
        BitMask => if b >= 32 { u32::MAX.checked_shl(a).unwrap_or(0) } else { ((1 << b) - 1u32).checked_shl(a).unwrap_or(0) },
    }
}

lane_functions! {
    /// `d = f(a, b, c)`, all 32-bit.
    Ternary32(a: u32, b: u32, c: u32) -> u32 {
        Mad => a.wrapping_mul(b).wrapping_add(c),
        MadHighU => (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c),
        MadHighS => (((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32).wrapping_add(c),
        Mad16 => a.wrapping_mul(b).wrapping_add(c) & 0xffff,
        SadU => a.abs_diff(b).wrapping_add(c),
        SadS => (a as i32).abs_diff(b as i32).wrapping_add(c),
        FFma => f(a).mul_add(f(b), f(c)).to_bits(),
        FFmaDown => fma_down(f(a), f(b), f(c)).to_bits(),
        FFmaUp => (-fma_down(-f(a), f(b), -f(c))).to_bits(),
        HFma => u32::from(f16_fma(a as u16, b as u16, c as u16)),
        H2Fma => each_half(a, b, c, f16_fma),
        BFma => u32::from(bf16_fma(a as u16, b as u16, c as u16)),
        B2Fma => each_half(a, b, c, bf16_fma),
        ExtractU => extract(u64::from(a), 32, b, c, false) as u32,
        ExtractS => extract(u64::from(a), 32, b, c, true) as u32,
        Permute => permute(a, b, c),
        FunnelLeftWrap => ((u64::from(b) << 32 | u64::from(a)) << (c & 31) >> 32) as u32,
        FunnelLeftClamp => ((u64::from(b) << 32 | u64::from(a)) << c.min(32) >> 32) as u32,
        FunnelRightWrap => ((u64::from(b) << 32 | u64::from(a)) >> (c & 31)) as u32,
        FunnelRightClamp => ((u64::from(b) << 32 | u64::from(a)) >> c.min(32)) as u32,
        Dp4aSS => dp4a(a, b, c, |x| i32::from(x as i8), |x| i32::from(x as i8)),
        Dp4aSU => dp4a(a, b, c, |x| i32::from(x as i8), i32::from),
        Dp4aUS => dp4a(a, b, c, i32::from, |x| i32::from(x as i8)),
        Dp4aUU => dp4a(a, b, c, i32::from, i32::from),
    }
}

lane_functions! {
    /// `d = f(a, b, c, e)`, all 32-bit.
    Quaternary32(a: u32, b: u32, c: u32, e: u32) -> u32 {
        Insert => insert(u64::from(a), u64::from(b), 32, c, e) as u32,
    }
}

lane_functions! {
    /// `d = f(a)`, both 64-bit.
    Unary64(a: u64) -> u64 {
        Not => !a,
        Neg => a.wrapping_neg(),
        Abs => (a as i64).wrapping_abs() as u64,
        Brev => a.reverse_bits(),
        DNeg => a ^ (1 << 63),
        DAbs => a & !(1 << 63),
        DSqrt => d(a).sqrt().to_bits(),
        DRcp => (1.0 / d(a)).to_bits(),
        DRsqrt => (1.0 / d(a).sqrt()).to_bits(),
    }
}

lane_functions! {
    /// `d = f(a, b)`, all 64-bit.
    Binary64(a: u64, b: u64) -> u64 {
        Add => a.wrapping_add(b),
        Sub => a.wrapping_sub(b),
        MulLow => a.wrapping_mul(b),
        MulHighU => ((u128::from(a) * u128::from(b)) >> 64) as u64,
        MulHighS => ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64,
        DivU => a.checked_div(b).unwrap_or(u64::MAX),
        DivS => if b == 0 { u64::MAX } else { (a as i64).wrapping_div(b as i64) as u64 },
        RemU => a.checked_rem(b).unwrap_or(a),
        RemS => if b == 0 { a } else { (a as i64).wrapping_rem(b as i64) as u64 },
        MinU => a.min(b),
        MaxU => a.max(b),
        MinS => (a as i64).min(b as i64) as u64,
        MaxS => (a as i64).max(b as i64) as u64,
        And => a & b,
        Or => a | b,
        Xor => a ^ b,
        DAdd => (d(a) + d(b)).to_bits(),
        DSub => (d(a) - d(b)).to_bits(),
        DMul => (d(a) * d(b)).to_bits(),
        DDiv => (d(a) / d(b)).to_bits(),
        DMin => d(a).min(d(b)).to_bits(),
        DMax => d(a).max(d(b)).to_bits(),
        DCopysign => (a & (1 << 63)) | (b & !(1 << 63)),
    }
}

lane_functions! {
    /// `d = f(a, b)`, a shift of a 64-bit value by a 32-bit count.
    Shift64(a: u64, b: u32) -> u64 {
        Shl => a.checked_shl(b).unwrap_or(0),
        ShrU => a.checked_shr(b).unwrap_or(0),
        ShrS => ((a as i64) >> b.min(63)) as u64,
    }
}

lane_functions! {
    /// `d = f(a, b, c)`, all 64-bit.
    Ternary64(a: u64, b: u64, c: u64) -> u64 {
        Mad => a.wrapping_mul(b).wrapping_add(c),
        DFma => d(a).mul_add(d(b), d(c)).to_bits(),
    }
}

lane_functions! {
    /// `d = f(a, b, c)`, a bit field of a 64-bit value.
    Extract64(a: u64, b: u32, c: u32) -> u64 {
        Unsigned => extract(a, 64, b, c, false),
        Signed => extract(a, 64, b, c, true),
    }
}

lane_functions! {
    /// `d = f(a, b, c, e)`, a bit field put into a 64-bit value.
    Insert64(a: u64, b: u64, c: u32, e: u32) -> u64 {
        Insert => insert(a, b, 64, c, e),
    }
}

lane_functions! {
    /// `d = f(a, b)`, 32-bit factors and a 64-bit product.
    Wide(a: u32, b: u32) -> u64 {
        Unsigned => u64::from(a) * u64::from(b),
        Signed => (i64::from(a as i32) * i64::from(b as i32)) as u64,
        Pack => u64::from(b) << 32 | u64::from(a),
    }
}

lane_functions! {
    /// `d = f(a)`, from 32 to 64 bits.
    Widen(a: u32) -> u64 {
        ZeroExtend => u64::from(a),
        SignExtend => a as i32 as u64,
        F32ToF64 => f64::from(f(a)).to_bits(),
        S32ToF64 => f64::from(a as i32).to_bits(),
        U32ToF64 => f64::from(a).to_bits(),
    }
}

lane_functions! {
    /// `d = f(a)`, from 64 to 32 bits.
    Narrow(a: u64) -> u32 {
        Low => a as u32,
        High => (a >> 32) as u32,
        Popc => a.count_ones(),
        Clz => a.leading_zeros(),
        FindU => if a == 0 { u32::MAX } else { a.ilog2() },
        F64ToF32 => (d(a) as f32).to_bits(),
        F64ToS32Zero => d(a) as i32 as u32,
        S64ToF32 => (a as i64 as f32).to_bits(),
        U64ToF32 => (a as f32).to_bits(),
        F64ToF16 => u32::from(f32_to_f16(f64_to_f32_odd(d(a)))),
    }
}

lane_functions! {
    /// A comparison of 32-bit operands.
    Compare32(a: u32, b: u32) -> bool {
        Eq => a == b,
        Ne => a != b,
        LtU => a < b,
        LeU => a <= b,
        GtU => a > b,
        GeU => a >= b,
        LtS => (a as i32) < (b as i32),
        LeS => (a as i32) <= (b as i32),
        GtS => (a as i32) > (b as i32),
        GeS => (a as i32) >= (b as i32),
        FEq => f(a) == f(b),
        FNe => f(a) != f(b) && !is_unordered(a, b),
        FLt => f(a) < f(b),
        FLe => f(a) <= f(b),
        FGt => f(a) > f(b),
        FGe => f(a) >= f(b),
        FEqu => f(a) == f(b) || is_unordered(a, b),
        FNeu => f(a) != f(b),
        FLtu => f(a) < f(b) || is_unordered(a, b),
        FLeu => f(a) <= f(b) || is_unordered(a, b),
        FGtu => f(a) > f(b) || is_unordered(a, b),
        FGeu => f(a) >= f(b) || is_unordered(a, b),
        FNum => !is_unordered(a, b),
        FNan => is_unordered(a, b),
    }
}

lane_functions! {
    /// A comparison of 64-bit operands.
    Compare64(a: u64, b: u64) -> bool {
        Eq => a == b,
        Ne => a != b,
        LtU => a < b,
        LeU => a <= b,
        GtU => a > b,
        GeU => a >= b,
        LtS => (a as i64) < (b as i64),
        LeS => (a as i64) <= (b as i64),
        GtS => (a as i64) > (b as i64),
        GeS => (a as i64) >= (b as i64),
        DEq => d(a) == d(b),
        DNe => d(a) != d(b) && !is_unordered64(a, b),
        DLt => d(a) < d(b),
        DLe => d(a) <= d(b),
        DGt => d(a) > d(b),
        DGe => d(a) >= d(b),
        DEqu => d(a) == d(b) || is_unordered64(a, b),
        DNeu => d(a) != d(b),
        DLtu => is_unordered64(a, b) || d(a) < d(b),
        DLeu => is_unordered64(a, b) || d(a) <= d(b),
        DGtu => is_unordered64(a, b) || d(a) > d(b),
        DGeu => is_unordered64(a, b) || d(a) >= d(b),
        DNum => !is_unordered64(a, b),
        DNan => is_unordered64(a, b),
    }
}

fn f(bits: u32) -> f32 {
    f32::from_bits(bits)
}

fn d(bits: u64) -> f64 {
    f64::from_bits(bits)
}

trait RoundToF32 {
    fn to_bits_f32(self) -> u32;
}

impl RoundToF32 for f64 {
    fn to_bits_f32(self) -> u32 {
        (self as f32).to_bits()
    }
}

fn is_unordered(a: u32, b: u32) -> bool {
    f(a).is_nan() || f(b).is_nan()
}

fn is_unordered64(a: u64, b: u64) -> bool {
    d(a).is_nan() || d(b).is_nan()
}

pub(crate) fn flush(bits: u32) -> u32 {
    if bits & 0x7f80_0000 == 0 {
        bits & 0x8000_0000
    } else {
        bits
    }
}

/// `a * b + c`, rounded towards negative infinity.
fn fma_down(a: f32, b: f32, c: f32) -> f32 {
    // The product is exact in f64; the sum's rounding error is recovered (two-sum), so the direction is known exactly.
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let part = sum - product;
    let error = (product - (sum - part)) + (c - part);
    let nearest = sum as f32;
    let is_above = f64::from(nearest) > sum || (f64::from(nearest) == sum && error < 0.0);
    if is_above && nearest.is_finite() {
        nearest.next_down()
    } else {
        nearest
    }
}

fn minimum(a: u32, b: u32, keeps_nan: bool) -> u32 {
    if is_unordered(a, b) {
        return one_number(a, b, keeps_nan);
    }
    // The negative zero is the smaller of two zeros.
    if f(a) < f(b) || (f(a) == f(b) && a >> 31 == 1) {
        a
    } else {
        b
    }
}

fn maximum(a: u32, b: u32, keeps_nan: bool) -> u32 {
    if is_unordered(a, b) {
        return one_number(a, b, keeps_nan);
    }
    if f(a) > f(b) || (f(a) == f(b) && a >> 31 == 0) {
        a
    } else {
        b
    }
}

fn one_number(a: u32, b: u32, keeps_nan: bool) -> u32 {
    const NAN: u32 = 0x7fff_ffff;
    match (f(a).is_nan(), f(b).is_nan()) {
        (true, false) if !keeps_nan => b,
        (false, true) if !keeps_nan => a,
        _ => NAN,
    }
}

fn f32_min(a: f32, b: f32) -> f32 {
    f(minimum(a.to_bits(), b.to_bits(), false))
}

fn f32_max(a: f32, b: f32) -> f32 {
    f(maximum(a.to_bits(), b.to_bits(), false))
}

fn extract(a: u64, width: u32, position: u32, length: u32, is_signed: bool) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    if length == 0 {
        return 0;
    }
    let top = width - 1;
    let sign_bit = (a >> (position + length - 1).min(top)) & u64::from(is_signed);
    let field = if position > top { 0 } else { a >> position };
    let available = width.saturating_sub(position).min(length);
    let mask = if available >= 64 {
        u64::MAX
    } else {
        (1 << available) - 1
    };
    let field = field & mask;
    if sign_bit == 1 { field | !mask } else { field }
}

fn insert(a: u64, b: u64, width: u32, position: u32, length: u32) -> u64 {
    let (position, length) = (position & 0xff, length & 0xff);
    if position >= width {
        return b;
    }
    let field = if length >= 64 { u64::MAX } else { (1 << length) - 1 };
    let mask = field << position;
    (b & !mask) | ((a << position) & mask)
}

fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let source = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
    u32::from_le_bytes(std::array::from_fn(|index| {
        let nibble = selector >> (4 * index);
        let byte = source[(nibble & 7) as usize];
        // The upper bit of a selector replicates the sign of the byte.
        if nibble & 8 == 0 {
            byte
        } else {
            ((byte as i8) >> 7) as u8
        }
    }))
}

fn dp4a(a: u32, b: u32, c: u32, of_a: impl Fn(u8) -> i32, of_b: impl Fn(u8) -> i32) -> u32 {
    let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
    let dot =
        of_a(a[0]) * of_b(b[0]) + of_a(a[1]) * of_b(b[1]) + of_a(a[2]) * of_b(b[2]) + of_a(a[3]) * of_b(b[3]);
    (dot as u32).wrapping_add(c)
}

/// Returns the bits of a comparison's 32 results.
#[inline(always)]
pub(crate) fn to_mask(answers: &[bool; LANES]) -> u32 {
    let mut mask = 0;
    for (lane, &answer) in answers.iter().enumerate() {
        mask |= u32::from(answer) << lane;
    }
    mask
}
