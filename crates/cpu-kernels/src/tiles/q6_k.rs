//! Q6_K: the K-format of 6 bits, with a scale for each 16 columns.
//!
//! A span is, with the words of the file interleaved and unchanged,
//!
//! | bytes | contents |
//! |---|---|
//! | 2048 | low four bits: for each 128 columns 16 vectors |
//! | 1024 | high two bits: for each 128 columns 8 vectors |
//! | 256 | signed scales, `[16][16 rows]` |
//! | 32 | half-precision scale of the scales |

use tokenmill_quant::formats::BlockQ6K;

use super::{QuantTile, Scales, Span, SuperShort, half_bytes, interleave_halves, interleave_words};
use crate::simd::{Simd, TILE_ROWS};

/// The tiles of blocks of 256 columns: 6-bit quants.
pub(crate) struct Tile;

const HIGH: usize = 2048;
const SCALES: usize = HIGH + 1024;
const SUPER: usize = SCALES + 256;

impl QuantTile for Tile {
    type Class = SuperShort;
    type Block = BlockQ6K;
    type Kernels = Self;
    const BIAS_BITS: Option<u32> = Some(5);
    const IS_DEAR: bool = true;

    fn pack(rows: &[&[BlockQ6K]; TILE_ROWS], out: &mut [u8]) {
        interleave_words(rows, 0, |block| &block.low_bits, out);
        interleave_words(rows, 0, |block| &block.high_bits, &mut out[HIGH..]);
        for (row_idx, row) in rows.iter().enumerate() {
            for (i, scale) in row[0].group_scales.into_iter().enumerate() {
                out[SCALES + 16 * i + row_idx] = scale as u8;
            }
        }
        interleave_halves(rows, 0, |block| block.scale, &mut out[SUPER..][..32]);
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(span: Span, half: usize, out: &mut Scales<S>) {
        // SAFETY: the caller vouches for the span, all of whose parts are read within their bounds.
        unsafe {
            let d = S::load_f16(span.ptr.add(SUPER + half * S::LANES * 2));
            for i in 0..16 {
                let scale = S::load_i8(span.ptr.add(SCALES + 16 * i + half * S::LANES));
                out.set_scale(i, S::mul(d, S::to_f32(scale)));
            }
        }
    }

    #[inline(always)]
    unsafe fn weights<S: Simd>(span: Span, sub: usize, half: usize) -> [S::I; 8] {
        // SAFETY: the caller vouches for the span, which has the quants of 32 columns here.
        unsafe {
            let base = span.ptr.add(half * half_bytes::<S>());
            let (part, quarter) = (sub / 4, sub % 4);
            let low_bits = S::splat_u8(0x0f);
            let high_bits = S::splat_u8(0x30);
            let mut w = [S::splat(0); 8];
            for g in 0..8 {
                let low = S::load(base.add(1024 * part + 512 * (quarter % 2) + 64 * g));
                let low = S::and(if quarter < 2 { low } else { S::shr16(low, 4) }, low_bits);
                let high = S::load(base.add(HIGH + 512 * part + 64 * g));
                let high = match quarter {
                    0 => S::shl16(high, 4),
                    1 => S::shl16(high, 2),
                    2 => high,
                    _ => S::shr16(high, 2),
                };
                w[g] = S::or(low, S::and(high, high_bits));
            }
            w
        }
    }
}
