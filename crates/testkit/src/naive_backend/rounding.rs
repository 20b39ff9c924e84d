//! [`round_to`]: rounds keys and values as a KV store of few bits does.
//!
//! (The naive store holds f32.) Invariant: each head is rounded separately: for block types by the quantizer
//! of files, for E4M3 by a search of its codes that shares no code with the product's encoder.

use std::cmp::Ordering;

use half::f16;
use tokenmill_backend::KvType;
use tokenmill_gguf::TensorType;
use tokenmill_quant::{dequantize_row, e4m3, quantize_row};

/// Multiplies each `block` numbers of `row` with the Hadamard matrix, entry by entry.
fn rotated(row: &[f32], block: usize) -> Vec<f32> {
    let sign = |i: usize, j: usize| {
        if (i & j).count_ones().is_multiple_of(2) {
            1.0
        } else {
            -1.0
        }
    };
    let product = |block: &[f32], i: usize| {
        let sum: f64 = (block.iter().enumerate())
            .map(|(j, &x)| sign(i, j) * f64::from(x))
            .sum();
        (sum / (block.len() as f64).sqrt()) as f32
    };
    (row.chunks_exact(block))
        .flat_map(|block| (0..block.len()).map(move |i| product(block, i)))
        .collect()
}

/// Returns the nearest number of E4M3, found among all; in a tie, the one with the even code.
fn nearest_e4m3(x: f32) -> f32 {
    if !x.is_finite() {
        return f32::NAN;
    }
    let distance = |code: &u8| (f64::from(e4m3::decode(*code)) - f64::from(x).abs()).abs();
    let better = |a: u8, b: u8| match distance(&a).total_cmp(&distance(&b)) {
        Ordering::Less => a,
        Ordering::Greater => b,
        Ordering::Equal => [a, b][usize::from(b.is_multiple_of(2))],
    };
    e4m3::decode((0..0x7e).fold(0x7e, better)).copysign(x)
}

/// Rounds a row of heads to numbers that the KV store can hold. A row that is rotated for the store is
/// rotated back, since its products with a query that is not rotated are the same.
pub(super) fn round_to(ty: KvType, head_dim: usize, rotation: usize, row: &mut [f32]) {
    match ty {
        KvType::F32 => {}
        KvType::F16 => row.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32()),
        KvType::E4M3 => row.iter_mut().for_each(|x| *x = nearest_e4m3(*x)),
        KvType::Q8_0 => {
            for head in row.chunks_exact_mut(head_dim) {
                let mut bytes = vec![0; head_dim / 32 * 34];
                quantize_row(TensorType::Q8_0, head, &mut bytes)
                    .expect("whole blocks, as checked at allocation");
                dequantize_row(TensorType::Q8_0, &bytes, head)
                    .expect("whole blocks, as checked at allocation");
            }
        }
        KvType::Q4_0 => {
            for head in row.chunks_exact_mut(head_dim) {
                let mut bytes = vec![0; head_dim / 32 * 18];
                quantize_row(TensorType::Q4_0, &rotated(head, rotation), &mut bytes)
                    .expect("whole blocks, as checked at allocation");
                dequantize_row(TensorType::Q4_0, &bytes, head)
                    .expect("whole blocks, as checked at allocation");
                let back = rotated(head, rotation);
                head.copy_from_slice(&back);
            }
        }
    }
}
