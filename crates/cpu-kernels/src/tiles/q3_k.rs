//! Q3_K: the K-format of 3 bits, with a scale for each 16 columns.
//!
//! A span is, with the words of the file interleaved and unchanged,
//!
//! | bytes | contents |
//! |---|---|
//! | 512 | third bits: bit `s` of a byte belongs to columns `32 s..` |
//! | 1024 | low two bits: for each 128 columns 8 vectors, four times 32 columns in the pairs of bits of a byte |
//! | 192 | 6-bit scales, `[16][16 rows]`, with a bias of 32 |
//! | 32 | half-precision scale of the scales |

use tokenmill_quant::formats::BlockQ3K;

use super::{QuantTile, Scales, Span, SuperShort, half_bytes, interleave_halves, interleave_words, k_scales};
use crate::simd::{Simd, TILE_ROWS};

/// The tiles of blocks of 256 columns: 3-bit quants.
pub(crate) struct Tile;

const LOW: usize = 512;
const SCALES: usize = LOW + 1024;
const SUPER: usize = SCALES + k_scales::PACKED_BYTES;

impl QuantTile for Tile {
    type Class = SuperShort;
    type Block = BlockQ3K;
    type Kernels = Self;
    const BIAS_BITS: Option<u32> = Some(2);
    const IS_DEAR: bool = true;

    fn pack(rows: &[&[BlockQ3K]; TILE_ROWS], out: &mut [u8]) {
        interleave_words(rows, 0, |block| &block.high_bits, out);
        interleave_words(rows, 0, |block| &block.quants, &mut out[LOW..]);
        let mut values = [0; 256];
        for (row_idx, row) in rows.iter().enumerate() {
            for (i, scale) in row[0].unpack_scales().into_iter().enumerate() {
                values[16 * i + row_idx] = (scale + 32) as u8;
            }
        }
        k_scales::pack(&values, &mut out[SCALES..]);
        interleave_halves(rows, 0, |block| block.scale, &mut out[SUPER..][..32]);
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(span: Span, half: usize, out: &mut Scales<S>) {
        // SAFETY: the caller vouches for the span, all of whose parts are read within their bounds.
        unsafe {
            let mut values = [0; 256];
            k_scales::unpack::<S>(span.ptr.add(SCALES), &mut values);
            let d = S::load_f16(span.ptr.add(SUPER + half * S::LANES * 2));
            let bias = S::splat(-32);
            for i in 0..16 {
                let scale = S::load_u8(values.as_ptr().add(16 * i + half * S::LANES));
                out.set_scale(i, S::mul(d, S::to_f32(S::add_i32(scale, bias))));
            }
        }
    }

    #[inline(always)]
    unsafe fn weights<S: Simd>(span: Span, sub: usize, half: usize) -> [S::I; 8] {
        // SAFETY: the caller vouches for the span, which has the quants of 32 columns here.
        unsafe {
            let base = span.ptr.add(half * half_bytes::<S>());
            let (part, quarter) = (sub / 4, sub as u32 % 4);
            let low_bits = S::splat_u8(0x03);
            let third_bit = S::splat_u8(0x04);
            let mut w = [S::splat(0); 8];
            for g in 0..8 {
                let low = S::load(base.add(LOW + 512 * part + 64 * g));
                let low = S::and(S::shr16(low, 2 * quarter), low_bits);
                let third = S::load(base.add(64 * g));
                let sub = sub as u32;
                let third = if sub < 2 {
                    S::shl16(third, 2 - sub)
                } else {
                    S::shr16(third, sub - 2)
                };
                w[g] = S::or(low, S::and(third, third_bit));
            }
            w
        }
    }
}
