//! [`TileQ4K`], [`TileQ5K`]: the K-formats of 4 and 5 bits, with scales and minima for each 32 columns.
//!
//! One file since the second is the first with a fifth bit. A span is
//!
//! | bytes | what |
//! |---|---|
//! | 2048 | low bits, as in the file: 32 columns in the low halves of 8 vectors, the next 32 in the high halves |
//! | 512 | `Q5_K` only, the fifth bits as in the file: bit `s` of a byte belongs to columns `32 s..` |
//! | 192 | 6-bit values: scales `[8][16 rows]`, then minima `[4][16 rows][2]` |
//! | 64 | half-precision scale of the scales, then of the minima |

use super::{QuantTile, Scales, Span, SuperMins, half_bytes, interleave_halves, interleave_words, k_scales};
use crate::simd::{Simd, TILE_ROWS, activations::SPAN_COLS};

/// Blocks of 256 columns: 4-bit quants, a fifth bit with `HAS_FIFTH`.
pub(crate) struct TileMid<const HAS_FIFTH: bool>;

pub(crate) type TileQ4K = TileMid<false>;
pub(crate) type TileQ5K = TileMid<true>;

impl<const HAS_FIFTH: bool> TileMid<HAS_FIFTH> {
    const FIFTH: usize = 2048;
    const SCALES: usize = Self::FIFTH + if HAS_FIFTH { 512 } else { 0 };
    const SUPER: usize = Self::SCALES + k_scales::PACKED_BYTES;
    /// Where the quants of a row's block start in the file, after two scales and twelve bytes of 6-bit values.
    const FIFTH_START: usize = 16;
    const QUANT_START: usize = Self::FIFTH_START + if HAS_FIFTH { 32 } else { 0 };
}

/// Scale and minimum `sub` of a block's twelve bytes of 6-bit values.
///
/// Source: llama.cpp, ggml/src/ggml-quants.c, `get_scale_min_k4`.
fn scale_and_min(packed: &[u8], sub: usize) -> (u8, u8) {
    if sub < 4 {
        (packed[sub] & 63, packed[sub + 4] & 63)
    } else {
        (
            (packed[sub + 4] & 15) | (packed[sub - 4] >> 6) << 4,
            (packed[sub + 4] >> 4) | (packed[sub] >> 6) << 4,
        )
    }
}

impl<const HAS_FIFTH: bool> QuantTile for TileMid<HAS_FIFTH> {
    type Class = SuperMins;
    const BLOCK_COLS: usize = SPAN_COLS;
    const BLOCK_BYTES: usize = Self::QUANT_START + 128;
    const BIAS_BITS: Option<u32> = None;

    fn pack(rows: &[&[u8]; TILE_ROWS], _n_subs: usize, out: &mut [u8]) {
        interleave_words(rows, Self::QUANT_START, 32, out);
        if HAS_FIFTH {
            interleave_words(rows, Self::FIFTH_START, 8, &mut out[Self::FIFTH..]);
        }
        let mut values = [0; 256];
        for (row_idx, row) in rows.iter().enumerate() {
            for sub in 0..8 {
                let (scale, min) = scale_and_min(&row[4..16], sub);
                values[16 * sub + row_idx] = scale;
                values[128 + 32 * (sub / 2) + 2 * row_idx + sub % 2] = min;
            }
        }
        k_scales::pack(&values, &mut out[Self::SCALES..]);
        interleave_halves(rows, 0, &mut out[Self::SUPER..][..32]);
        interleave_halves(rows, 2, &mut out[Self::SUPER + 32..][..32]);
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(span: Span, half: usize, out: &mut Scales<S>) {
        // SAFETY: the caller vouches for the span, all of whose parts are read within their bounds.
        unsafe {
            let mut values = [0; 256];
            k_scales::unpack::<S>(span.ptr.add(Self::SCALES), &mut values);
            let d = S::load_f16(span.ptr.add(Self::SUPER + half * S::LANES * 2));
            for sub in 0..8 {
                let scale = S::load_u8(values.as_ptr().add(16 * sub + half * S::LANES));
                out.set_scale(sub, S::mul(d, S::to_f32(scale)));
            }
            for pair in 0..4 {
                let mins = values.as_ptr().add(128 + 32 * pair + half * S::LANES * 2);
                out.set_min_pair(pair, S::load_u8_pairs(mins));
            }
            let d_min = S::load_f16(span.ptr.add(Self::SUPER + 32 + half * S::LANES * 2));
            out.set_neg_min_scale(S::mul(d_min, S::splat_f32(-1.0)));
        }
    }

    #[inline(always)]
    unsafe fn weights<S: Simd>(span: Span, sub: usize, half: usize) -> [S::I; 8] {
        // SAFETY: the caller vouches for the span, which has the quants of 32 columns here.
        unsafe {
            let base = span.ptr.add(half * half_bytes::<S>());
            let low = S::splat_u8(0x0f);
            let mut w = [S::splat(0); 8];
            for g in 0..8 {
                let v = S::load(base.add(512 * (sub / 2) + 64 * g));
                w[g] = S::and(if sub.is_multiple_of(2) { v } else { S::shr16(v, 4) }, low);
                if HAS_FIFTH {
                    let fifth = S::load(base.add(Self::FIFTH + 64 * g));
                    let sub = sub as u32;
                    let moved = if sub < 4 {
                        S::shl16(fifth, 4 - sub)
                    } else {
                        S::shr16(fifth, sub - 4)
                    };
                    w[g] = S::or(w[g], S::and(moved, S::splat_u8(0x10)));
                }
            }
            w
        }
    }
}
