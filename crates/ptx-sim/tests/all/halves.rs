//! Conversions of the 16-bit float formats, for each of their numbers and for numbers between two of them.

use crate::bench::eval;

/// Converts f32 values by `instruction`, which writes the 16 bits of `%r0` to `%h3`.
fn rounded(instruction: &str, values: &[f32]) -> Vec<u16> {
    let body = format!("{instruction} cvt.u64.u16 %out, %h3;");
    by_lanes(&body, values.iter().map(|value| u64::from(value.to_bits())))
        .into_iter()
        .map(|bits| bits as u16)
        .collect()
}

/// Runs `body` on the lanes of as many warps as there are inputs for.
fn by_lanes(body: &str, inputs: impl Iterator<Item = u64>) -> Vec<u64> {
    let inputs: Vec<u64> = inputs.collect();
    let of_warp = |inputs: &[u64]| {
        let lanes = std::array::from_fn(|lane| inputs.get(lane).copied().unwrap_or(0));
        eval(body, &[lanes])[..inputs.len()].to_vec()
    };
    inputs.chunks(32).flat_map(of_warp).collect()
}

#[test]
fn every_f16_survives_a_round_trip() {
    let all = (0..=u16::MAX).map(u64::from);
    let values: Vec<f32> = by_lanes("cvt.f32.f16 %r3, %h0; cvt.u64.u32 %out, %r3;", all)
        .into_iter()
        .map(|bits| f32::from_bits(bits as u32))
        .collect();
    for ((bits, value), back) in (0..=u16::MAX)
        .zip(&values)
        .zip(rounded("cvt.rn.f16.f32 %h3, %r0;", &values))
    {
        assert_eq!(back, if value.is_nan() { 0x7fff } else { bits }, "{value}");
    }
}

#[test]
fn rounding_to_f16_is_to_nearest_even() {
    let cases = [
        (65504.0, 0x7bff),
        (65519.9, 0x7bff),
        (65520.0, 0x7c00),
        (1.0 + 1.0 / 2048.0, 0x3c00),
        (1.0 + 3.0 / 2048.0, 0x3c02),
        (2f32.powi(-25), 0),
        (2f32.powi(-25) * 1.5, 1),
        (-2f32.powi(-24), 0x8001),
    ];
    assert_eq!(
        rounded("cvt.rn.f16.f32 %h3, %r0;", &cases.map(|(value, _)| value)),
        cases.map(|(_, expected)| expected)
    );
}

#[test]
fn rounding_to_bf16_is_to_nearest_even() {
    let values = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, f32::INFINITY];
    assert_eq!(
        rounded("cvt.rn.bf16.f32 %h3, %r0;", &values),
        [0x3f80, 0x3f82, 0x7f80]
    );
}

#[test]
fn fused_multiply_add_rounds_once() {
    // (1 + 3 * 2^-10)^2 - 1: a product rounded first would lose the square of 3 * 2^-10.
    let found = by_lanes(
        "mov.b16 %h3, 0xbc00; fma.rn.f16 %h3, %h0, %h0, %h3; cvt.f32.f16 %r3, %h3; cvt.u64.u32 %out, %r3;",
        [0x3c03].into_iter(),
    );
    assert_eq!(
        f32::from_bits(found[0] as u32),
        6.0 * 2f32.powi(-10) + 2f32.powi(-17)
    );
}
