//! Tests that an explicit rounding to nearest changes nothing: without it, instructions round the same way and are never fused.

use crate::bench::{Values, eval};

/// Instructions of each type that may name a rounding, on `%r` and `%a` registers.
const BODIES: [(&str, &str); 5] = [
    (
        "f32",
        "mov.b32 %f0, %r0; mov.b32 %f1, %r1; mov.b32 %f2, %r2; mul.f32 %f3, %f0, %f1; add.f32 %f3, %f3, %f2; \
         sub.f32 %f3, %f3, %f0; mov.b32 %r3, %f3; cvt.u64.u32 %out, %r3;",
    ),
    (
        "ftz.f32",
        "mov.b32 %f0, %r0; mov.b32 %f1, %r1; mov.b32 %f2, %r2; mul.ftz.f32 %f3, %f0, %f1; add.ftz.f32 %f3, %f3, %f2; \
         sub.ftz.f32 %f3, %f3, %f0; mov.b32 %r3, %f3; cvt.u64.u32 %out, %r3;",
    ),
    (
        "f16x2",
        "mul.f16x2 %r3, %r0, %r1; add.f16x2 %r3, %r3, %r2; sub.f16x2 %r3, %r3, %r0; cvt.u64.u32 %out, %r3;",
    ),
    (
        "f16",
        "mul.f16 %h3, %h0, %h1; add.f16 %h3, %h3, %h2; sub.f16 %h3, %h3, %h0; cvt.u64.u16 %out, %h3;",
    ),
    (
        "f64",
        "mov.b64 %d0, %a0; mov.b64 %d1, %a1; mov.b64 %d2, %a2; mul.f64 %d3, %d0, %d1; add.f64 %d3, %d3, %d2; \
         sub.f64 %d3, %d3, %d0; mov.b64 %out, %d3;",
    ),
];

#[test]
fn explicit_rn_does_not_change_results() {
    let mut values = Values(0x51_7cc1_b727_220a);
    for (ty, body) in BODIES {
        let rounded = ["mul", "add", "sub"]
            .iter()
            .fold(body.to_owned(), |body, operation| {
                body.replace(&format!("{operation}.{ty} "), &format!("{operation}.rn.{ty} "))
            });
        assert_eq!(rounded.matches(".rn.").count(), 3, "{rounded}");
        for _ in 0..8 {
            let inputs = [values.lanes(), values.lanes(), values.lanes()];
            assert_eq!(eval(&rounded, &inputs), eval(body, &inputs), "{ty}");
        }
    }
}

/// (1 + 2^-12)^2 - 1 - 2^-11 is 2^-24 if the product is not rounded before the sum.
#[test]
fn a_product_is_rounded_before_the_sum() {
    let (x, rest) = (1.0 + 2f32.powi(-12), -1.0 - 2f32.powi(-11));
    let lanes = |x: f32| [u64::from(x.to_bits()); 32];
    let of = |body: &str| eval(body, &[lanes(x), lanes(x), lanes(rest)])[0];
    let load = "mov.b32 %f0, %r0; mov.b32 %f1, %r1; mov.b32 %f2, %r2;";
    let store = "mov.b32 %r3, %f3; cvt.u64.u32 %out, %r3;";
    for rounding in ["", ".rn"] {
        let apart =
            format!("{load} mul{rounding}.f32 %f3, %f0, %f1; add{rounding}.f32 %f3, %f3, %f2; {store}");
        assert_eq!(of(&apart), 0, "{rounding}");
    }
    let fused = format!("{load} fma.rn.f32 %f3, %f0, %f1, %f2; {store}");
    assert_eq!(of(&fused), u64::from(2f32.powi(-24).to_bits()));
}
