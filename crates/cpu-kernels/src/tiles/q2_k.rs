//! Q2_K: the K-format of 2 bits, with scales and minima for each 16 columns.
//!
//! A span is
//!
//! | bytes | contents |
//! |---|---|
//! | 1024 | quants as in the file: for each 128 columns 8 vectors, four times 32 columns in the pairs of bits of a byte |
//! | 256 | `[8][16 rows][2]`: scale in the low, minimum in the high half of a byte |
//! | 64 | half-precision scale of the scales, then of the minima |

use tokenmill_quant::formats::BlockQ2K;

use super::{QuantTile, Scales, Span, SuperShortMins, half_bytes, interleave_halves, interleave_words};
use crate::simd::{Simd, TILE_ROWS};

/// The tiles of blocks of 256 columns: 2-bit quants.
pub(crate) struct Tile;

const SCALES: usize = 1024;
const SUPER: usize = SCALES + 256;

impl QuantTile for Tile {
    type Class = SuperShortMins;
    type Block = BlockQ2K;
    type Kernels = Self;
    const BIAS_BITS: Option<u32> = None;

    fn pack(rows: &[&[BlockQ2K]; TILE_ROWS], out: &mut [u8]) {
        interleave_words(rows, 0, |block| &block.quants, out);
        for (row_idx, row) in rows.iter().enumerate() {
            for (i, scale) in row[0].group_scales.iter().enumerate() {
                out[SCALES + 32 * (i / 2) + 2 * row_idx + i % 2] = *scale;
            }
        }
        interleave_halves(rows, 0, |block| block.scale, &mut out[SUPER..][..32]);
        interleave_halves(rows, 0, |block| block.min, &mut out[SUPER + 32..][..32]);
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(span: Span, half: usize, out: &mut Scales<S>) {
        // SAFETY: the caller vouches for the span, all of whose parts are read within their bounds.
        unsafe {
            let d = S::load_f16(span.ptr.add(SUPER + half * S::LANES * 2));
            let low = S::splat(0x0f);
            for pair in 0..8 {
                let both = S::load_u8_pairs(span.ptr.add(SCALES + 32 * pair + half * S::LANES * 2));
                out.set_scale(2 * pair, S::mul(d, S::to_f32(S::and(both, low))));
                out.set_scale(
                    2 * pair + 1,
                    S::mul(d, S::to_f32(S::and(S::shr32(both, 16), low))),
                );
                out.set_min_pair(pair, S::shr16(both, 4));
            }
            let d_min = S::load_f16(span.ptr.add(SUPER + 32 + half * S::LANES * 2));
            out.set_neg_min_scale(S::mul(d_min, S::splat_f32(-1.0)));
        }
    }

    #[inline(always)]
    unsafe fn weights<S: Simd>(span: Span, sub: usize, half: usize) -> [S::I; 8] {
        // SAFETY: the caller vouches for the span, which has the quants of 32 columns here.
        unsafe {
            let base = span.ptr.add(half * half_bytes::<S>());
            let bits = S::splat_u8(0x03);
            let mut w = [S::splat(0); 8];
            for g in 0..8 {
                let v = S::load(base.add(512 * (sub / 4) + 64 * g));
                w[g] = S::and(S::shr16(v, 2 * (sub as u32 % 4)), bits);
            }
            w
        }
    }
}
