//! [`KMins`]: the K-formats of 4 and 5 bits, with scales and minima for each 32 columns.
//!
//! Q5_K is Q4_K with a fifth bit. A span is
//!
//! | bytes | contents |
//! |---|---|
//! | 2048 | low bits, as in the file: 32 columns in the low halves of 8 vectors, the next 32 in the high halves |
//! | 512 | `Q5_K` only, the fifth bits as in the file: bit `s` of a byte belongs to columns `32 s..` |
//! | 192 | 6-bit values: scales `[8][16 rows]`, then minima `[4][16 rows][2]` |
//! | 64 | half-precision scale of the scales, then of the minima |

use std::marker::PhantomData;

use tokenmill_quant::{F16Bits, QuantBlock, formats::KScales};

use super::{QuantTile, Scales, Span, SuperMins, half_bytes, interleave_halves, interleave_words, k_scales};
use crate::simd::{Simd, TILE_ROWS};

/// The parts of a block that its tile holds.
pub(crate) trait KMinsBlock: QuantBlock {
    /// Returns the low four bits of quants.
    fn low_bits(&self) -> &[u8; 128];
    /// Returns the fifth bits; not called for quants of four bits.
    fn fifth_bits(&self) -> &[u8; 32];
    /// Returns the scales and minima of the groups.
    fn group_scales(&self) -> KScales;
    /// Returns the factors of the groups' scales and of their minima.
    fn supers(&self) -> [F16Bits; 2];
}

/// The tiles of blocks of 256 columns: quants of four or five bits.
pub(crate) struct KMins<B>(PhantomData<B>);

impl<B: KMinsBlock> KMins<B> {
    const HAS_FIFTH: bool = B::QUANT_BITS == 5;
    const FIFTH: usize = 2048;
    const SCALES: usize = Self::FIFTH + if Self::HAS_FIFTH { 512 } else { 0 };
    const SUPER: usize = Self::SCALES + k_scales::PACKED_BYTES;
}

impl<B: KMinsBlock> QuantTile for KMins<B> {
    type Class = SuperMins;
    type Block = B;
    type Kernels = Self;
    const BIAS_BITS: Option<u32> = None;

    fn pack(rows: &[&[B]; TILE_ROWS], out: &mut [u8]) {
        interleave_words(rows, 0, B::low_bits, out);
        if Self::HAS_FIFTH {
            interleave_words(rows, 0, B::fifth_bits, &mut out[Self::FIFTH..]);
        }
        let mut values = [0; 256];
        for (row_idx, row) in rows.iter().enumerate() {
            let (scales, mins) = row[0].group_scales().unpack();
            for sub in 0..8 {
                values[16 * sub + row_idx] = scales[sub];
                values[128 + 32 * (sub / 2) + 2 * row_idx + sub % 2] = mins[sub];
            }
        }
        k_scales::pack(&values, &mut out[Self::SCALES..]);
        interleave_halves(rows, 0, |block| block.supers()[0], &mut out[Self::SUPER..][..32]);
        interleave_halves(
            rows,
            0,
            |block| block.supers()[1],
            &mut out[Self::SUPER + 32..][..32],
        );
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
                if Self::HAS_FIFTH {
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
