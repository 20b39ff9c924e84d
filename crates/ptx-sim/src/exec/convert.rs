//! The general conversion, for pairs of types too rare for a lane function of their own.
//!
//! Integers go through `i128`, floats through f64, both exact; the last step rounds once.

use crate::{
    half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, f64_to_f32_odd},
    lanes::Lanes64,
    op::Rounding,
    types::Ty,
};

enum Value {
    Integer(i128),
    Float(f64),
}

pub(super) fn convert(from: Ty, to: Ty, rounding: Rounding, saturate: bool, a: &Lanes64) -> Lanes64 {
    a.map(|bits| write(to, rounding, saturate, &read(from, bits)))
}

fn read(from: Ty, bits: u64) -> Value {
    match from {
        Ty::U8 => Value::Integer((bits as u8).into()),
        Ty::S8 => Value::Integer((bits as i8).into()),
        Ty::U16 => Value::Integer((bits as u16).into()),
        Ty::S16 => Value::Integer((bits as i16).into()),
        Ty::U32 => Value::Integer((bits as u32).into()),
        Ty::S32 => Value::Integer((bits as i32).into()),
        Ty::S64 => Value::Integer((bits as i64).into()),
        Ty::F16 => Value::Float(f16_to_f32(bits as u16).into()),
        Ty::Bf16 => Value::Float(bf16_to_f32(bits as u16).into()),
        Ty::F32 => Value::Float(f32::from_bits(bits as u32).into()),
        Ty::F64 => Value::Float(f64::from_bits(bits)),
        _ => Value::Integer(bits.into()),
    }
}

fn round(value: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => value.round_ties_even(),
        Rounding::Zero => value.trunc(),
        Rounding::Down => value.floor(),
        Rounding::Up => value.ceil(),
    }
}

fn write(to: Ty, rounding: Rounding, saturate: bool, value: &Value) -> u64 {
    if to.is_integer() {
        let (minimum, maximum) = range(to);
        return match *value {
            // Floats always saturate; integers only on request.
            Value::Float(value) => {
                let rounded = round(value, rounding);
                let whole = if rounded.is_nan() { 0 } else { rounded as i128 };
                cut(to, whole.clamp(minimum, maximum))
            }
            Value::Integer(value) if saturate => cut(to, value.clamp(minimum, maximum)),
            Value::Integer(value) => cut(to, value),
        };
    }
    let float = match *value {
        Value::Integer(value) => match to {
            Ty::F32 => return u64::from((value as f32).to_bits()),
            _ => value as f64,
        },
        Value::Float(value) if saturate => {
            if value.is_nan() {
                0.0
            } else {
                value.clamp(0.0, 1.0)
            }
        }
        Value::Float(value) => value,
    };
    match to {
        Ty::F16 => f32_to_f16(f64_to_f32_odd(float)).into(),
        Ty::Bf16 => f32_to_bf16(f64_to_f32_odd(float)).into(),
        Ty::F32 => (float as f32).to_bits().into(),
        _ => float.to_bits(),
    }
}

fn range(to: Ty) -> (i128, i128) {
    let bits = to.bytes() * 8;
    if to.is_signed() {
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    } else {
        (0, (1 << bits) - 1)
    }
}

/// Wraps to the type's width and extends to the register: 8-bit values are sign-extended to 16 bits.
fn cut(to: Ty, value: i128) -> u64 {
    match to {
        Ty::S8 => u64::from(value as i8 as u16),
        Ty::U8 => u64::from(value as u8),
        Ty::U16 | Ty::S16 => u64::from(value as u16),
        Ty::U32 | Ty::S32 => u64::from(value as u32),
        _ => value as u64,
    }
}
