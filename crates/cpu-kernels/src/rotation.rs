//! [`rotate`]: the Hadamard rotation of heads, before they are rounded to few bits and after they are read.
//!
//! Keys and values are rotated where they are stored. Invariant: the sums are the same for every instruction
//! set: each step adds and subtracts pairs, and nothing is fused.

use tokenmill_quant::CpuFeatures;

use crate::simd::{Kernel, Simd, dispatch};

/// Multiplies each `block` numbers of `row` with the Hadamard matrix,
/// `h[i][j] = (-1)^popcount(i & j) / sqrt(block)`: the fast transform, `block * log2(block)` additions.
/// The rotation is its own inverse, except for rounding.
///
/// # Panics
/// If `block` is not a power of two, or the row is not a whole number of blocks.
pub fn rotate(features: CpuFeatures, row: &mut [f32], block: usize) {
    assert!(
        block.is_power_of_two() && row.len().is_multiple_of(block),
        "a row of {} in blocks of {block}",
        row.len()
    );
    // SAFETY: the kernel has no pointers.
    unsafe { dispatch(features, Rotation { row, block }) }
}

struct Rotation<'a> {
    row: &'a mut [f32],
    block: usize,
}

impl Kernel for Rotation<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let scale = 1.0 / (self.block as f32).sqrt();
        for block in self.row.chunks_exact_mut(self.block) {
            let mut half = 1;
            while half < self.block {
                for pair in block.chunks_exact_mut(2 * half) {
                    let (first, second) = pair.split_at_mut(half);
                    for (a, b) in first.iter_mut().zip(second) {
                        (*a, *b) = (*a + *b, *a - *b);
                    }
                }
                half *= 2;
            }
            for x in block {
                *x *= scale;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(len: usize) -> Vec<f32> {
        (0..len)
            .map(|i| ((i * 37 + 11) % 101) as f32 / 50.0 - 1.0)
            .collect()
    }

    #[test]
    fn a_rotation_is_the_product_with_the_matrix() {
        for (len, block) in [(1, 1), (2, 2), (64, 64), (96, 32), (512, 256), (48, 4), (0, 8)] {
            let before = row(len);
            let mut rotated = before.clone();
            rotate(CpuFeatures::detect(), &mut rotated, block);
            for (at, &found) in rotated.iter().enumerate() {
                let start = at / block * block;
                let exact: f64 = (0..block)
                    .map(|j| {
                        let sign = if ((at - start) & j).count_ones() % 2 == 0 {
                            1.0
                        } else {
                            -1.0
                        };
                        sign * f64::from(before[start + j])
                    })
                    .sum::<f64>()
                    / (block as f64).sqrt();
                // About a dozen roundings of sums below 256.
                assert!(
                    (f64::from(found) - exact).abs() < 1e-5,
                    "{len}, {block}: {found}, {exact}"
                );
            }
            rotate(CpuFeatures::detect(), &mut rotated, block);
            assert!(rotated.iter().zip(&before).all(|(a, b)| (a - b).abs() < 1e-5));
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let mut expected = row(768);
        rotate(CpuFeatures::scalar(), &mut expected, 256);
        for features in CpuFeatures::each_path() {
            let mut found = row(768);
            rotate(features, &mut found, 256);
            assert!(
                found
                    .iter()
                    .zip(&expected)
                    .all(|(a, b)| a.to_bits() == b.to_bits()),
                "{features:?}"
            );
        }
    }
}
