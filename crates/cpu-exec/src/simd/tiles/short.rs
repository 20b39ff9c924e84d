//! [`TileQ4_0`], [`TileQ4_1`], [`TileQ5_0`], [`TileQ5_1`]: the formats of 4 and 5 bits with blocks of 32 columns.
//!
//! One file since they are one layout with and without a fifth bit and an offset. A span is, for each block of columns,
//!
//! | bytes | what |
//! |---|---|
//! | 256 | low bits: word `j` of a row holds columns `4 j..` in its low and `16 + 4 j..` in its high halves of bytes |
//! | 64 | with a fifth bit: bit `g` of byte `b` belongs to column `4 g + b` |
//!
//! and then, for each block, 16 half-precision scales and 16 offsets where the format has them.

use super::{Offset, QuantTile, Scaled, Scales, Span, half_bytes, interleave_halves, interleave_words};
use crate::simd::{Simd, TILE_ROWS, activations::SUB_COLS};

/// Blocks of 32 columns: 4-bit quants, a fifth bit with `HAS_FIFTH`, an offset with `HAS_OFFSET`.
pub(crate) struct TileShort<const HAS_FIFTH: bool, const HAS_OFFSET: bool>;

pub(crate) type TileQ4_0 = TileShort<false, false>;
pub(crate) type TileQ4_1 = TileShort<false, true>;
pub(crate) type TileQ5_0 = TileShort<true, false>;
pub(crate) type TileQ5_1 = TileShort<true, true>;

impl<const HAS_FIFTH: bool, const HAS_OFFSET: bool> TileShort<HAS_FIFTH, HAS_OFFSET> {
    /// Bytes of 16 rows of one block without scales, and of the scales.
    const QUANT_BYTES: usize = 256 + if HAS_FIFTH { 64 } else { 0 };
    const SCALE_BYTES: usize = if HAS_OFFSET { 64 } else { 32 };
    /// Where the parts of a row's block start in the file.
    const FIFTH_START: usize = if HAS_OFFSET { 4 } else { 2 };
    const QUANT_START: usize = Self::FIFTH_START + if HAS_FIFTH { 4 } else { 0 };
    const FILE_BYTES: usize = Self::QUANT_START + 16;

    fn pack_span(rows: &[&[u8]; TILE_ROWS], n_subs: usize, out: &mut [u8]) {
        let (quants, scales) = out.split_at_mut(n_subs * Self::QUANT_BYTES);
        let quants = quants.chunks_exact_mut(Self::QUANT_BYTES);
        let scales = scales.chunks_exact_mut(Self::SCALE_BYTES);
        for (sub, (quants, scales)) in quants.zip(scales).enumerate() {
            let start = sub * Self::FILE_BYTES;
            interleave_words(rows, start + Self::QUANT_START, 4, quants);
            interleave_halves(rows, start, &mut scales[..32]);
            if HAS_OFFSET {
                interleave_halves(rows, start + 2, &mut scales[32..]);
            }
            if HAS_FIFTH {
                for (row, out) in rows.iter().zip(quants[256..].as_chunks_mut::<4>().0) {
                    let at = start + Self::FIFTH_START;
                    let bits = u32::from_le_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]]);
                    *out = std::array::from_fn(|b| {
                        (0..8).fold(0, |byte, g| byte | ((bits >> (4 * g + b)) as u8 & 1) << g)
                    });
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn scale_vectors<S: Simd>(span: Span, half: usize, out: &mut Scales<S>) {
        for sub in 0..span.n_subs {
            // SAFETY: the caller vouches for the span; the scales of its blocks follow its quants.
            unsafe {
                let scales = span
                    .ptr
                    .add(span.n_subs * Self::QUANT_BYTES + sub * Self::SCALE_BYTES);
                out.set_scale(sub, S::load_f16(scales.add(half * S::LANES * 2)));
                if HAS_OFFSET {
                    out.set_offset(sub, S::load_f16(scales.add(32 + half * S::LANES * 2)));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn weight_vectors<S: Simd>(span: Span, sub: usize, half: usize) -> [S::I; 8] {
        // SAFETY: the caller vouches for the span, which has the quants of block `sub` here.
        unsafe {
            let quants = span.ptr.add(sub * Self::QUANT_BYTES + half * half_bytes::<S>());
            let low = S::splat_u8(0x0f);
            let mut w = [S::splat(0); 8];
            for j in 0..4 {
                let v = S::load(quants.add(64 * j));
                w[j] = S::and(v, low);
                w[4 + j] = S::and(S::shr16(v, 4), low);
            }
            if HAS_FIFTH {
                let fifth = S::load(quants.add(256));
                let bit = S::splat_u8(0x10);
                for g in 0..8 {
                    let moved = if g < 4 {
                        S::shl16(fifth, 4 - g as u32)
                    } else {
                        S::shr16(fifth, g as u32 - 4)
                    };
                    w[g] = S::or(w[g], S::and(moved, bit));
                }
            }
            w
        }
    }
}

macro_rules! short_tile {
    ($fifth:literal, $offset:literal, $class:ty, $bias_bits:expr) => {
        impl QuantTile for TileShort<$fifth, $offset> {
            type Class = $class;
            const BLOCK_COLS: usize = SUB_COLS;
            const BLOCK_BYTES: usize = Self::FILE_BYTES;
            const BIAS_BITS: Option<u32> = $bias_bits;

            fn pack(rows: &[&[u8]; TILE_ROWS], n_subs: usize, out: &mut [u8]) {
                Self::pack_span(rows, n_subs, out);
            }

            #[inline(always)]
            unsafe fn scales<S: Simd>(span: Span, half: usize, out: &mut Scales<S>) {
                // SAFETY: the same contract.
                unsafe { Self::scale_vectors::<S>(span, half, out) }
            }

            #[inline(always)]
            unsafe fn weights<S: Simd>(span: Span, sub: usize, half: usize) -> [S::I; 8] {
                // SAFETY: the same contract.
                unsafe { Self::weight_vectors::<S>(span, sub, half) }
            }
        }
    };
}

short_tile!(false, false, Scaled, Some(3));
short_tile!(true, false, Scaled, Some(4));
short_tile!(false, true, Offset, None);
short_tile!(true, true, Offset, None);
