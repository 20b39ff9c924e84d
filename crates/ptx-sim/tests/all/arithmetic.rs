//! Every arithmetic opcode against plain Rust, over random and extreme operands.

use crate::bench::{Values, eval, load_error};

/// Runs `body` on random lanes and compares with `expected`, several times over.
fn check(body: &str, expected: impl Fn(u64, u64, u64) -> u64) {
    let mut values = Values(0x9e37_79b9_7f4a_7c15);
    for _ in 0..8 {
        let inputs = [values.lanes(), values.lanes(), values.lanes()];
        let found = eval(body, &inputs);
        for lane in 0..32 {
            let [a, b, c] = inputs.map(|input| input[lane]);
            assert_eq!(
                found[lane],
                expected(a, b, c),
                "`{body}` of {a:#x}, {b:#x}, {c:#x}"
            );
        }
    }
}

/// Checks a 32-bit operation on `%r0`, `%r1`, `%r2`.
fn check32(instruction: &str, expected: impl Fn(u32, u32, u32) -> u32) {
    let body = format!("{instruction} cvt.u64.u32 %out, %r3;");
    check(&body, |a, b, c| expected(a as u32, b as u32, c as u32).into());
}

/// Checks a 16-bit operation on `%h0`, `%h1`, `%h2`.
fn check16(instruction: &str, expected: impl Fn(u16, u16, u16) -> u16) {
    let body = format!("{instruction} cvt.u64.u16 %out, %h3;");
    check(&body, |a, b, c| expected(a as u16, b as u16, c as u16).into());
}

/// Checks a 64-bit operation on `%a0`, `%a1`, `%a2`.
fn check64(instruction: &str, expected: impl Fn(u64, u64, u64) -> u64) {
    check(&format!("{instruction} mov.u64 %out, %a3;"), expected);
}

#[test]
fn integers_of_32_bits() {
    check32("add.s32 %r3, %r0, %r1;", |a, b, _| a.wrapping_add(b));
    check32("sub.u32 %r3, %r0, 7;", |a, _, _| a.wrapping_sub(7));
    check32("mul.lo.s32 %r3, %r0, %r1;", |a, b, _| a.wrapping_mul(b));
    check32("mul.hi.s32 %r3, %r0, %r1;", |a, b, _| {
        ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32
    });
    check32("mul.hi.u32 %r3, %r0, %r1;", |a, b, _| {
        ((u64::from(a) * u64::from(b)) >> 32) as u32
    });
    check32("mad.lo.s32 %r3, %r0, %r1, %r2;", |a, b, c| {
        a.wrapping_mul(b).wrapping_add(c)
    });
    check32("or.b32 %r1, %r1, 1; div.s32 %r3, %r0, %r1;", |a, b, _| {
        (a as i32).wrapping_div((b | 1) as i32) as u32
    });
    check32("or.b32 %r1, %r1, 1; rem.u32 %r3, %r0, %r1;", |a, b, _| {
        a % (b | 1)
    });
    check32("min.s32 %r3, %r0, %r1;", |a, b, _| {
        (a as i32).min(b as i32) as u32
    });
    check32("max.u32 %r3, %r0, %r1;", |a, b, _| a.max(b));
    check32("abs.s32 %r3, %r0;", |a, _, _| (a as i32).wrapping_abs() as u32);
    check32("neg.s32 %r3, %r0;", |a, _, _| a.wrapping_neg());
    check32("shl.b32 %r3, %r0, %r1;", |a, b, _| a.checked_shl(b).unwrap_or(0));
    check32("shr.u32 %r3, %r0, %r1;", |a, b, _| a.checked_shr(b).unwrap_or(0));
    check32("shr.s32 %r3, %r0, %r1;", |a, b, _| {
        ((a as i32) >> b.min(31)) as u32
    });
    check32("popc.b32 %r3, %r0;", |a, _, _| a.count_ones());
    check32("clz.b32 %r3, %r0;", |a, _, _| a.leading_zeros());
    check32("brev.b32 %r3, %r0;", |a, _, _| a.reverse_bits());
    check32("bfind.u32 %r3, %r0;", |a, _, _| {
        a.checked_ilog2().unwrap_or(u32::MAX)
    });
    check32("sad.u32 %r3, %r0, %r1, %r2;", |a, b, c| {
        a.abs_diff(b).wrapping_add(c)
    });
    check32("lop3.b32 %r3, %r0, %r1, %r2, 0xCA;", |a, b, c| (a & b) | (!a & c));
    check32("lop3.b32 %r3, %r0, %r1, %r2, 0x96;", |a, b, c| a ^ b ^ c);
    check32("not.b32 %r3, %r0;", |a, _, _| !a);
}

#[test]
fn bit_fields_permutations_and_funnel_shifts() {
    check32("bfe.u32 %r3, %r0, 5, 9;", |a, _, _| a >> 5 & 0x1ff);
    check32("bfe.s32 %r3, %r0, 28, 8;", |a, _, _| ((a as i32) >> 28) as u32);
    check32("bfe.s32 %r3, %r0, 4, 4;", |a, _, _| {
        ((a << 24) as i32 >> 28) as u32
    });
    check32("bfi.b32 %r3, %r0, %r1, 8, 12;", |a, b, _| {
        (b & !0x000f_ff00) | (a << 8 & 0x000f_ff00)
    });
    check32("prmt.b32 %r3, %r0, %r1, 0x7531;", |a, b, _| {
        let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
        u32::from_le_bytes([a[1], a[3], b[1], b[3]])
    });
    check32("prmt.b32 %r3, %r0, 0, 0xba98;", |a, _, _| {
        u32::from_le_bytes(a.to_le_bytes().map(|byte| ((byte as i8) >> 7) as u8))
    });
    check32("shf.l.wrap.b32 %r3, %r0, %r1, %r2;", |a, b, c| {
        (((u64::from(b) << 32 | u64::from(a)) << (c % 32)) >> 32) as u32
    });
    check32("shf.r.clamp.b32 %r3, %r0, %r1, %r2;", |a, b, c| {
        ((u64::from(b) << 32 | u64::from(a)) >> c.min(32)) as u32
    });
    check64("bfi.b64 %a3, %a0, %a1, 40, 20;", |a, b, _| {
        (b & !(0xf_ffff << 40)) | (a & 0xf_ffff) << 40
    });
    check64("bfe.u64 %a3, %a0, 40, 20;", |a, _, _| a >> 40 & 0xf_ffff);
}

#[test]
fn byte_dot_products_of_every_signedness() {
    let dot = |a: u32, b: u32, c: u32, a_signed: bool, b_signed: bool| {
        let value = |byte: u8, signed: bool| {
            if signed {
                i32::from(byte as i8)
            } else {
                i32::from(byte)
            }
        };
        let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
        let sum: i32 = products
            .map(|(a, b)| value(a, a_signed) * value(b, b_signed))
            .sum();
        c.wrapping_add(sum as u32)
    };
    check32("dp4a.s32.s32 %r3, %r0, %r1, %r2;", |a, b, c| {
        dot(a, b, c, true, true)
    });
    check32("dp4a.s32.u32 %r3, %r0, %r1, %r2;", |a, b, c| {
        dot(a, b, c, true, false)
    });
    check32("dp4a.u32.s32 %r3, %r0, %r1, %r2;", |a, b, c| {
        dot(a, b, c, false, true)
    });
    check32("dp4a.u32.u32 %r3, %r0, %r1, %r2;", |a, b, c| {
        dot(a, b, c, false, false)
    });
}

#[test]
fn integers_of_16_bits() {
    check16("add.s16 %h3, %h0, %h1;", |a, b, _| a.wrapping_add(b));
    check16("sub.s16 %h3, %h0, -3;", |a, _, _| a.wrapping_add(3));
    check16("mul.lo.s16 %h3, %h0, %h1;", |a, b, _| a.wrapping_mul(b));
    check16("mad.lo.s16 %h3, %h0, %h1, %h2;", |a, b, c| {
        a.wrapping_mul(b).wrapping_add(c)
    });
    check16("min.s16 %h3, %h0, %h1;", |a, b, _| {
        (a as i16).min(b as i16) as u16
    });
    check16("shr.s16 %h3, %h0, 3;", |a, _, _| ((a as i16) >> 3) as u16);
    check16("shr.u16 %h3, %h0, 3;", |a, _, _| a >> 3);
    check16("shl.b16 %h3, %h0, 3;", |a, _, _| a << 3);
    check16("not.b16 %h3, %h0;", |a, _, _| !a);
    check32("mul.wide.s16 %r3, %h0, %h1;", |a, b, _| {
        (i32::from(a as i16) * i32::from(b as i16)) as u32
    });
    check32("mul.wide.u16 %r3, %h0, %h1;", |a, b, _| {
        (a & 0xffff) * (b & 0xffff)
    });
    check16(
        "setp.lt.s16 %p0, %h0, %h1; selp.b16 %h3, 5, 6, %p0;",
        |a, b, _| {
            if (a as i16) < (b as i16) { 5 } else { 6 }
        },
    );
}

#[test]
fn integers_of_64_bits() {
    check64("add.s64 %a3, %a0, %a1;", |a, b, _| a.wrapping_add(b));
    check64("mul.lo.s64 %a3, %a0, %a1;", |a, b, _| a.wrapping_mul(b));
    check64("mul.hi.u64 %a3, %a0, %a1;", |a, b, _| {
        ((u128::from(a) * u128::from(b)) >> 64) as u64
    });
    check64("mad.lo.s64 %a3, %a0, %a1, %a2;", |a, b, c| {
        a.wrapping_mul(b).wrapping_add(c)
    });
    check64("or.b64 %a1, %a1, 1; div.u64 %a3, %a0, %a1;", |a, b, _| {
        a / (b | 1)
    });
    check64("min.s64 %a3, %a0, %a1;", |a, b, _| {
        (a as i64).min(b as i64) as u64
    });
    check64("shl.b64 %a3, %a0, 13;", |a, _, _| a << 13);
    check64("shr.s64 %a3, %a0, 13;", |a, _, _| ((a as i64) >> 13) as u64);
    check64("shr.u64 %a3, %a0, %r1;", |a, b, _| {
        a.checked_shr(b as u32).unwrap_or(0)
    });
    check64("mul.wide.s32 %a3, %r0, %r1;", |a, b, _| {
        (i64::from(a as i32) * i64::from(b as i32)) as u64
    });
    check64("mad.wide.u32 %a3, %r0, %r1, %a2;", |a, b, c| {
        (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c)
    });
    check("popc.b64 %r3, %a0; cvt.u64.u32 %out, %r3;", |a, _, _| {
        a.count_ones().into()
    });
    check("clz.b64 %r3, %a0; cvt.u64.u32 %out, %r3;", |a, _, _| {
        a.leading_zeros().into()
    });
    check("mov.b64 {%r3, %r4}, %a0; mov.b64 %out, {%r4, %r3};", |a, _, _| {
        a.rotate_left(32)
    });
    check(
        "mov.b32 {%h3, %h4}, %r0; mov.b32 %r3, {%h4, %h3}; cvt.u64.u32 %out, %r3;",
        |a, _, _| (a as u32).rotate_left(16).into(),
    );
    check("mov.b64 {_, %r3}, %a0; cvt.u64.u32 %out, %r3;", |a, _, _| a >> 32);
    check(
        "mov.b64 {%h3, %h4, %h5, %h6}, %a0; mov.b64 %out, {%h6, %h5, %h4, %h3};",
        |a, _, _| (a & 0xffff) << 48 | (a >> 16 & 0xffff) << 32 | (a >> 32 & 0xffff) << 16 | a >> 48,
    );
}

fn f32s(a: u32, b: u32, f: impl Fn(f32, f32) -> f32) -> u32 {
    canonical(f(f32::from_bits(a), f32::from_bits(b)))
}

/// NaNs have many bit patterns; the comparison needs one.
fn canonical(value: f32) -> u32 {
    if value.is_nan() {
        0x7fc0_0000
    } else {
        value.to_bits()
    }
}

/// As [`check32`], for a float result in `%r3`.
fn check_f32(instruction: &str, expected: impl Fn(u32, u32, u32) -> u32) {
    let body = format!(
        "{instruction} setp.nan.f32 %p8, %r3, %r3; selp.b32 %r3, 0x7fc00000, %r3, %p8; cvt.u64.u32 %out, %r3;"
    );
    check(&body, |a, b, c| expected(a as u32, b as u32, c as u32).into());
}

#[test]
fn floats_of_32_bits() {
    check_f32("add.f32 %r3, %r0, %r1;", |a, b, _| f32s(a, b, |a, b| a + b));
    check_f32("sub.rn.f32 %r3, %r0, %r1;", |a, b, _| f32s(a, b, |a, b| a - b));
    check_f32("mul.f32 %r3, %r0, %r1;", |a, b, _| f32s(a, b, |a, b| a * b));
    check_f32("div.rn.f32 %r3, %r0, %r1;", |a, b, _| f32s(a, b, |a, b| a / b));
    check_f32("fma.rn.f32 %r3, %r0, %r1, %r2;", |a, b, c| {
        canonical(f32::from_bits(a).mul_add(f32::from_bits(b), f32::from_bits(c)))
    });
    check_f32(
        "mov.b32 %r0, 0f3F800001; fma.rm.f32 %r3, %r0, %r0, 0f00000001;",
        |_, _, _| 0x3f80_0002,
    );
    check_f32(
        "mov.b32 %r0, 0f3F800001; fma.rp.f32 %r3, %r0, %r0, 0f00000001;",
        |_, _, _| 0x3f80_0003,
    );
    check_f32(
        "mov.b32 %r0, 0f3F800000; fma.rm.f32 %r3, %r0, %r0, 0f80000001;",
        |_, _, _| 0x3f7f_ffff,
    );
    check_f32(
        "mov.b32 %r0, 0f3F800000; fma.rp.f32 %r3, %r0, %r0, 0f80000001;",
        |_, _, _| 0x3f80_0000,
    );
    check_f32("min.f32 %r3, %r0, %r1;", |a, b, _| {
        f32s(a, b, |a, b| {
            if a == 0.0 && b == 0.0 && a.is_sign_negative() {
                a
            } else {
                b.min(a)
            }
        })
    });
    check_f32("max.NaN.f32 %r3, %r0, %r1;", |a, b, _| {
        f32s(a, b, |a, b| {
            if a.is_nan() || b.is_nan() {
                f32::NAN
            } else if a >= b {
                a
            } else {
                b
            }
        })
    });
    check_f32("abs.f32 %r3, %r0;", |a, _, _| canonical(f32::from_bits(a).abs()));
    check_f32("neg.f32 %r3, %r0;", |a, _, _| canonical(-f32::from_bits(a)));
    check_f32("sqrt.rn.f32 %r3, %r0;", |a, _, _| {
        canonical(f32::from_bits(a).sqrt())
    });
    check_f32("rcp.rn.f32 %r3, %r0;", |a, _, _| {
        canonical(1.0 / f32::from_bits(a))
    });
    check_f32("ex2.approx.f32 %r3, %r0;", |a, _, _| {
        canonical(f32::from_bits(a).exp2())
    });
    check_f32("lg2.approx.f32 %r3, %r0;", |a, _, _| {
        canonical(f32::from_bits(a).log2())
    });
    check_f32("cvt.rni.f32.f32 %r3, %r0;", |a, _, _| {
        canonical(f32::from_bits(a).round_ties_even())
    });
    check_f32("cvt.rmi.f32.f32 %r3, %r0;", |a, _, _| {
        canonical(f32::from_bits(a).floor())
    });
    check_f32("cvt.sat.f32.f32 %r3, %r0;", |a, _, _| {
        let a = f32::from_bits(a);
        canonical(if a.is_nan() { 0.0 } else { a.clamp(0.0, 1.0) })
    });
}

#[test]
fn flushing_replaces_subnormals_by_zeros_of_their_sign() {
    let mut input = [0; 32];
    input[0] = 1;
    input[1] = 0x8000_0001;
    input[2] = 0x0080_0000;
    let found = eval(
        "mov.b32 %r1, 0f3F800000; mul.ftz.f32 %r3, %r0, %r1; cvt.u64.u32 %out, %r3;",
        &[input],
    );
    assert_eq!(found[..3], [0, 0x8000_0000, 0x0080_0000]);
    let found = eval(
        "mov.b32 %r1, 0f3F800000; mul.f32 %r3, %r0, %r1; cvt.u64.u32 %out, %r3;",
        &[input],
    );
    assert_eq!(found[..3], [1, 0x8000_0001, 0x0080_0000]);
}

#[test]
fn float_comparisons_know_nan() {
    type Comparison = fn(f32, f32) -> bool;
    let cases: [(&str, Comparison); 8] = [
        ("lt", |a, b| a < b),
        ("ge", |a, b| a >= b),
        ("eq", |a, b| a == b),
        ("ne", |a, b| a != b && !a.is_nan() && !b.is_nan()),
        ("neu", |a, b| a != b),
        ("ltu", |a, b| a < b || a.is_nan() || b.is_nan()),
        ("num", |a, b| !(a.is_nan() || b.is_nan())),
        ("nan", |a, b| a.is_nan() || b.is_nan()),
    ];
    for (name, expected) in cases {
        let body = format!("setp.{name}.f32 %p0, %r0, %r1; selp.b64 %out, 1, 0, %p0;");
        check(&body, |a, b, _| {
            expected(f32::from_bits(a as u32), f32::from_bits(b as u32)).into()
        });
    }
}

#[test]
fn comparisons_combine_with_predicates_and_give_both_answers() {
    check(
        "setp.lt.u32 %p0, %r1, %r2; setp.gt.and.s32 %p1|%p2, %r0, 5, !%p0;
         selp.b32 %r3, 1, 0, %p1; selp.b32 %r4, 2, 0, %p2; add.s32 %r3, %r3, %r4; cvt.u64.u32 %out, %r3;",
        |a, b, c| {
            let other = (b as u32) >= (c as u32);
            let answer = (a as u32 as i32) > 5;
            u64::from(answer && other) + 2 * u64::from(!answer && other)
        },
    );
}

#[test]
fn floats_of_64_bits() {
    let canonical = |value: f64| if value.is_nan() { 0 } else { value.to_bits() };
    let check_f64 = |instruction: &str, expected: &dyn Fn(f64, f64, f64) -> f64| {
        let body = format!("{instruction} setp.nan.f64 %p8, %a3, %a3; selp.b64 %out, 0, %a3, %p8;");
        check(&body, |a, b, c| {
            canonical(expected(f64::from_bits(a), f64::from_bits(b), f64::from_bits(c)))
        });
    };
    check_f64("add.f64 %a3, %a0, %a1;", &|a, b, _| a + b);
    check_f64("mul.rn.f64 %a3, %a0, %a1;", &|a, b, _| a * b);
    check_f64("div.rn.f64 %a3, %a0, %a1;", &|a, b, _| a / b);
    check_f64("fma.rn.f64 %a3, %a0, %a1, %a2;", &f64::mul_add);
    check_f64("sqrt.rn.f64 %a3, %a0;", &|a, _, _| a.sqrt());
}

#[test]
fn conversions() {
    check32("cvt.u32.u8 %r3, %r0;", |a, _, _| a & 0xff);
    check32("cvt.s32.s8 %r3, %r0;", |a, _, _| a as i8 as u32);
    check32("cvt.s32.s16 %r3, %h0;", |a, _, _| a as i16 as u32);
    check16("cvt.s16.s8 %h3, %h0;", |a, _, _| i16::from(a as i8) as u16);
    check64("cvt.s64.s32 %a3, %r0;", |a, _, _| a as i32 as u64);
    check32("cvt.rzi.s32.f32 %r3, %r0;", |a, _, _| {
        f32::from_bits(a) as i32 as u32
    });
    check32("cvt.rni.s32.f32 %r3, %r0;", |a, _, _| {
        f32::from_bits(a).round_ties_even() as i32 as u32
    });
    check32("cvt.rzi.u32.f32 %r3, %r0;", |a, _, _| f32::from_bits(a) as u32);
    check32("cvt.rn.f32.s32 %r3, %r0;", |a, _, _| (a as i32 as f32).to_bits());
    check("cvt.rn.f32.u64 %r3, %a0; cvt.u64.u32 %out, %r3;", |a, _, _| {
        (a as f32).to_bits().into()
    });
    check64("cvt.rn.f64.s64 %a3, %a0;", |a, _, _| (a as i64 as f64).to_bits());
    check("cvt.rzi.s64.f64 %out, %a0;", |a, _, _| {
        f64::from_bits(a) as i64 as u64
    });
    check32("cvt.sat.s8.s32 %h3, %r0; cvt.s32.s16 %r3, %h3;", |a, _, _| {
        (a as i32).clamp(-128, 127) as u32
    });
    check16("mov.b16 %h3, 0; cvt.rn.f16.s32 %h3, 2049;", |_, _, _| 0x6800);
}

#[test]
fn halves_round_to_nearest_even() {
    // 2048 + 1 is between two f16 values, and so is 1 + 2^-11.
    let packed = eval(
        "mov.b32 %r0, 0x68003c00; mov.b32 %r1, 0x3c001000; add.f16x2 %r3, %r0, %r1; cvt.u64.u32 %out, %r3;",
        &[],
    );
    assert_eq!(packed[0], 0x6800_3c00);
    let fused = eval(
        "mov.b32 %r0, 0x3c033c03; mov.b32 %r1, 0xbc00bc00; fma.rn.f16x2 %r3, %r0, %r0, %r1; cvt.u64.u32 %out, %r3;",
        &[],
    );
    assert_eq!(fused[0], 0x1e02_1e02);
    let pair = eval(
        "mov.b32 %r0, 0f3F800000; mov.b32 %r1, 0f40000000; cvt.rn.f16x2.f32 %r3, %r0, %r1; cvt.u64.u32 %out, %r3;",
        &[],
    );
    assert_eq!(pair[0], 0x3c00_4000);
    let pair = eval(
        "mov.b32 %r0, 0f3F800000; mov.b32 %r1, 0f40000000; cvt.rn.bf16x2.f32 %r3, %r0, %r1; cvt.u64.u32 %out, %r3;",
        &[],
    );
    assert_eq!(pair[0], 0x3f80_4000);
    let wide = eval(
        "mov.b16 %h0, 0xc000; cvt.f32.f16 %r3, %h0; cvt.u64.u32 %out, %r3;",
        &[],
    );
    assert_eq!(wide[0], u64::from((-2f32).to_bits()));
    let product = eval(
        "mov.b32 %r0, 0x40004040; fma.rn.bf16x2 %r3, %r0, %r0, 0; cvt.u64.u32 %out, %r3;",
        &[],
    );
    assert_eq!(product[0], 0x4080_4110);
}

#[test]
fn unknown_opcodes_and_modifiers_are_refused_with_their_line() {
    for body in [
        "add.cc.u32 %r0, %r1, %r2;",
        "add.rz.f32 %r0, %r1, %r2;",
        "add.sat.s32 %r0, %r1, %r2;",
        "cvt.rna.tf32.f32 %r0, %r1;",
        "cvt.rz.f16.f32 %h0, %r1;",
        "prmt.b32.f4e %r0, %r1, %r2, %r3;",
        "shf.l.wrap.b64 %d0, %d1, %d2, %r0;",
        "mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%r0,%r1,%r2,%r3},{%r0,%r1},{%r0},{%r0,%r1,%r2,%r3};",
        "wgmma.fence.sync.aligned;",
        "ld.global.v4.u64 {%d0,%d1,%d2,%d3}, [%d4];",
        "frobnicate.b32 %r0;",
    ] {
        let message = load_error(&format!("\n\n{body}")).to_string();
        assert!(message.starts_with("line 7: "), "{body}: {message}");
        assert!(message.contains("is not executed"), "{body}: {message}");
    }
}

#[test]
fn malformed_text_is_refused_with_its_line() {
    for (body, expected) in [
        ("add.s32 %r0, %r1;", "expects"),
        ("add.s32 %r0, %r1, %q9;", "`%q9` is not declared"),
        ("bra $nowhere;", "`$nowhere` is not declared"),
        ("add.s32 %r0 %r1;", "expected `;`"),
        ("ld.global.u32 %r0, %d0;", "an address in brackets"),
        ("call.uni elsewhere, ();", "cannot be resolved"),
        ("mov.u32 %r0, 12x4;", "expected a number"),
    ] {
        let message = load_error(body).to_string();
        assert!(
            message.starts_with("line 5: ") && message.contains(expected),
            "{body}: {message}"
        );
    }
}
