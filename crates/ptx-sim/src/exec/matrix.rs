//! `mma.sync`: converts the fragments of a warp to matrices, multiplies them, and converts back.
//!
//! Layouts. Source: PTX ISA, "Warp-level matrix fragment" of each shape. With `g = lane / 4` and `t = lane % 4`: register
//! `i` of A holds rows `g + 8 (i % 2)`, of B column `g`, of C and D elements `(g + 8 (i / 2), 2t + i % 2)`. Products are
//! exact in f32 and summed in order of k; a device sums in another order, so f32 results may differ in the last places.

#![expect(
    clippy::needless_range_loop,
    reason = "rows, columns and registers are indexed alike"
)]

use super::{FULL, Warp};
use crate::{
    half::{bf16_to_f32, f16_to_f32, f32_to_f16},
    lanes::{LANES, Lanes32},
    op::MatrixKind,
};

const ROWS: usize = 16;
const COLUMNS: usize = 8;

/// Multiplies with the instruction set of the function that this is inlined into.
#[inline(always)]
pub(super) fn multiply(
    warp: &mut Warp,
    kind: MatrixKind,
    d: [u16; 4],
    a: [u16; 4],
    b: [u16; 2],
    c: [u16; 4],
) {
    let a = a.map(|register| *warp.r32(register));
    let b = b.map(|register| *warp.r32(register));
    let c = c.map(|register| *warp.r32(register));
    let out = match kind {
        MatrixKind::F16F32 => float::<16>(&a, &b, &c, f16_to_f32),
        MatrixKind::Bf16 => float::<16>(&a, &b, &c, bf16_to_f32),
        MatrixKind::F16K8 => float::<8>(&a, &b, &c, f16_to_f32),
        MatrixKind::Tf32 => tf32(&a, &b, &c),
        MatrixKind::F16F16 => {
            let halves = |register: &Lanes32, shift: u32| {
                register.map(|bits| f16_to_f32((bits >> shift) as u16).to_bits())
            };
            let wide = [
                halves(&c[0], 0),
                halves(&c[0], 16),
                halves(&c[1], 0),
                halves(&c[1], 16),
            ];
            let sums = float::<16>(&a, &b, &wide, f16_to_f32);
            let round = |bits: u32| u32::from(f32_to_f16(f32::from_bits(bits)));
            for (register, pair) in d.iter().zip(sums.chunks(2)) {
                let packed = std::array::from_fn(|lane| round(pair[0][lane]) | round(pair[1][lane]) << 16);
                warp.set32(*register, &packed, FULL);
            }
            return;
        }
        MatrixKind::S8 => integer::<32>(&a, &b, &c),
        MatrixKind::S8K16 => integer::<16>(&a, &b, &c),
    };
    for (register, value) in d.iter().zip(&out) {
        warp.set32(*register, value, FULL);
    }
}

/// Returns the first of `per_register` consecutive elements `k` of a row or column that register `index` of thread `t` holds: the
/// upper half of the registers holds the upper half of k.
fn first_k(index: usize, t: usize, per_register: usize, k_half: usize) -> usize {
    index * k_half + t * per_register
}

#[inline(always)]
fn float<const K: usize>(
    a: &[Lanes32; 4],
    b: &[Lanes32; 2],
    c: &[Lanes32; 4],
    value: impl Fn(u16) -> f32 + Copy,
) -> [Lanes32; 4] {
    let mut left = [[0f32; K]; ROWS];
    let mut right = [[0f32; COLUMNS]; K];
    // Each register is converted as a whole, which is vectorized, before its lanes are put in their places.
    for index in 0..K / 4 {
        let [low, high] = pairs(&a[index], value);
        for lane in 0..LANES {
            let (g, t) = (lane / 4, lane % 4);
            let k = first_k(index / 2, t, 2, 8);
            let row = g + 8 * (index % 2);
            left[row][k] = low[lane];
            left[row][k + 1] = high[lane];
        }
    }
    for index in 0..K / 8 {
        let [low, high] = pairs(&b[index], value);
        for lane in 0..LANES {
            let (g, t) = (lane / 4, lane % 4);
            let k = first_k(index, t, 2, 8);
            right[k][g] = low[lane];
            right[k + 1][g] = high[lane];
        }
    }
    sums(&left, &right, c)
}

/// Returns the values of the lower and of the upper half of each lane.
#[inline(always)]
fn pairs(register: &Lanes32, value: impl Fn(u16) -> f32) -> [[f32; LANES]; 2] {
    let (mut low, mut high) = ([0f32; LANES], [0f32; LANES]);
    for lane in 0..LANES {
        low[lane] = value(register[lane] as u16);
        high[lane] = value((register[lane] >> 16) as u16);
    }
    [low, high]
}

/// Multiplies tf32 fragments. Registers hold one number each, `t + 4 i` of k in register `i` of B and in registers `2 i` and
/// `2 i + 1` of A. A tf32 number is an f32 whose low 13 bits are ignored.
#[inline(always)]
fn tf32(a: &[Lanes32; 4], b: &[Lanes32; 2], c: &[Lanes32; 4]) -> [Lanes32; 4] {
    let value = |bits: u32| f32::from_bits(bits & !0x1fff);
    let mut left = [[0f32; 8]; ROWS];
    let mut right = [[0f32; COLUMNS]; 8];
    for lane in 0..LANES {
        let (g, t) = (lane / 4, lane % 4);
        for index in 0..4 {
            left[g + 8 * (index % 2)][t + 4 * (index / 2)] = value(a[index][lane]);
        }
        for index in 0..2 {
            right[t + 4 * index][g] = value(b[index][lane]);
        }
    }
    sums(&left, &right, c)
}

/// Adds the products of rows and columns to `c` in order of k.
#[inline(always)]
fn sums<const K: usize>(
    left: &[[f32; K]; ROWS],
    right: &[[f32; COLUMNS]; K],
    c: &[Lanes32; 4],
) -> [Lanes32; 4] {
    let mut out = [[0; LANES]; 4];
    for row in 0..ROWS {
        let mut sums: [f32; COLUMNS] = std::array::from_fn(|column| {
            let (index, lane) = position(row, column);
            f32::from_bits(c[index][lane])
        });
        for k in 0..K {
            for column in 0..COLUMNS {
                sums[column] += left[row][k] * right[k][column];
            }
        }
        for (column, sum) in sums.iter().enumerate() {
            let (index, lane) = position(row, column);
            out[index][lane] = sum.to_bits();
        }
    }
    out
}

#[inline(always)]
fn integer<const K: usize>(a: &[Lanes32; 4], b: &[Lanes32; 2], c: &[Lanes32; 4]) -> [Lanes32; 4] {
    let mut left = [[0i32; K]; ROWS];
    let mut right = [[0i32; COLUMNS]; K];
    for lane in 0..LANES {
        let (g, t) = (lane / 4, lane % 4);
        for index in 0..K / 8 {
            let k = first_k(index / 2, t, 4, 16);
            let row = g + 8 * (index % 2);
            for byte in 0..4 {
                left[row][k + byte] = i32::from((a[index][lane] >> (8 * byte)) as i8);
            }
        }
        for index in 0..K / 16 {
            let k = first_k(index, t, 4, 16);
            for byte in 0..4 {
                right[k + byte][g] = i32::from((b[index][lane] >> (8 * byte)) as i8);
            }
        }
    }
    let mut out = [[0; LANES]; 4];
    for row in 0..ROWS {
        let mut sums: [i32; COLUMNS] = std::array::from_fn(|column| {
            let (index, lane) = position(row, column);
            c[index][lane] as i32
        });
        for k in 0..K {
            for column in 0..COLUMNS {
                sums[column] = sums[column].wrapping_add(left[row][k] * right[k][column]);
            }
        }
        for (column, sum) in sums.iter().enumerate() {
            let (index, lane) = position(row, column);
            out[index][lane] = *sum as u32;
        }
    }
    out
}

/// Returns the register and lane that hold an element of C or D.
fn position(row: usize, column: usize) -> (usize, usize) {
    (2 * (row / 8) + column % 2, row % 8 * 4 + column / 2)
}
