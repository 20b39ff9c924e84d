//! [`Nibbles`]: quants of 4 or 5 bits with a scale for each 32 columns.
//!
//! Most formats with blocks of 32, and those with a codebook, share this layout. A span is, for each 32
//! columns,
//!
//! | bytes | contents |
//! |---|---|
//! | 256 | low bits: word `j` of a row holds columns `4 j..` in its low and `16 + 4 j..` in its high halves of bytes |
//! | 64 | with a fifth bit: bit `g` of byte `b` belongs to column `4 g + b` |
//!
//! and then the scales. Blocks of 32 have, for each block, 16 half-precision scales, and 16 offsets if the
//! format has them; or 16 exponents of a power of two. Blocks of 64 have, for each 32 columns, twice 16 8-bit
//! floats. Blocks of 256 have 16 signed bytes for each 32 columns, then 16 half-precision scales of these.

use std::marker::PhantomData;

use tokenmill_quant::{BlockParts, QuantBlock};

use super::{Class, QuantTile, Scales, Span, biased, half_bytes};
use crate::{
    activation_block::{SPAN_COLS, SUB_COLS},
    simd::{Simd, TILE_ROWS},
};

/// The properties of a format in addition to the parts of its blocks.
pub(crate) trait NibblesBlock: QuantBlock {
    /// The class of arithmetic of its products.
    type Class: Class;
    /// The bias that makes quants, or the values of a codebook, unsigned.
    const BIAS_BITS: Option<u32>;
    /// The factor of the scale of a block of 256.
    const FACTOR: f32 = 1.0;
}

/// Tiles of blocks of 32 or 256 columns.
pub(crate) struct Nibbles<B>(PhantomData<B>);

impl<B: NibblesBlock> Nibbles<B> {
    const HAS_FIFTH: bool = B::QUANT_BITS == 5;
    const HAS_SUPER: bool = B::LEN == SPAN_COLS;
    /// Whether each 16 columns have an 8-bit float.
    const HAS_SHORT: bool = B::GROUP_SCALE_BYTES == 2;
    /// The number of bytes of a scale and an offset, a scale, or an exponent.
    const HEADER_BYTES: usize = B::HEADER_BYTES;
    /// The number of bytes of 16 rows for 32 columns, without scales.
    const QUANT_BYTES: usize = 256 + if Self::HAS_FIFTH { 64 } else { 0 };
    /// The number of bytes of the scales of 16 rows for 32 columns.
    const SCALE_BYTES: usize = TILE_ROWS
        * if Self::HAS_SUPER {
            1
        } else if Self::HAS_SHORT {
            2
        } else {
            Self::HEADER_BYTES
        };
    /// The codebook as unsigned bytes.
    const BYTES: Option<[u8; 16]> = match (B::CODEBOOK, B::BIAS_BITS) {
        (Some(codebook), Some(bias_bits)) => Some(biased(codebook, bias_bits)),
        (Some(_), None) => panic!("the values of a codebook have signs"),
        (None, _) => None,
    };

    /// Packs the quants of 32 columns of a row.
    #[inline(always)]
    fn pack_quants(quants: &[u8; SUB_COLS], row_idx: usize, out: &mut [u8]) {
        let mut packed = [0; 16];
        for i in 0..16 {
            packed[i] = quants[i] & 0xf | quants[i + 16] << 4;
        }
        let (words, _) = out.as_chunks_mut::<4>();
        for (j, word) in packed.as_chunks::<4>().0.iter().enumerate() {
            words[TILE_ROWS * j + row_idx] = *word;
        }
        if Self::HAS_FIFTH {
            let mut fifth = 0;
            for (g, four) in quants.as_chunks::<4>().0.iter().enumerate() {
                fifth |= (u32::from_le_bytes(*four) >> 4 & 0x0101_0101) << g;
            }
            words[TILE_ROWS * 4 + row_idx] = fifth.to_le_bytes();
        }
    }

    /// Packs the scales of a row's block, the `index`th of the span.
    #[inline(always)]
    fn pack_scales(block: &BlockParts<B::Quants>, index: usize, row_idx: usize, out: &mut [u8]) {
        if Self::HAS_SUPER {
            for sub in 0..8 {
                out[TILE_ROWS * sub + row_idx] = block.group_scales[sub];
            }
            out[TILE_ROWS * 8 + 2 * row_idx..][..2].copy_from_slice(&block.header[..2]);
            return;
        }
        if Self::HAS_SHORT {
            let groups = out.chunks_exact_mut(TILE_ROWS).skip(index * B::LEN / 16);
            for (scale, out) in block.group_scales[..B::LEN / 16].iter().zip(groups) {
                out[row_idx] = *scale;
            }
            return;
        }
        let out = &mut out[index * Self::SCALE_BYTES..][..Self::SCALE_BYTES];
        if Self::HEADER_BYTES == 1 {
            out[row_idx] = block.header[0];
            return;
        }
        for (out, half) in out
            .chunks_exact_mut(2 * TILE_ROWS)
            .zip(block.header.as_chunks::<2>().0)
        {
            out[2 * row_idx..][..2].copy_from_slice(half);
        }
    }
}

impl<B: NibblesBlock> QuantTile for Nibbles<B> {
    type Class = B::Class;
    type Block = B;
    type Kernels = Self;
    const BIAS_BITS: Option<u32> = B::BIAS_BITS;

    #[inline(always)]
    fn span_bytes(n_subs: usize) -> usize {
        let supers = if Self::HAS_SUPER { 2 * TILE_ROWS } else { 0 };
        n_subs * (Self::QUANT_BYTES + Self::SCALE_BYTES) + supers
    }

    fn pack(rows: &[&[B]; TILE_ROWS], out: &mut [u8]) {
        let block_subs = B::LEN / SUB_COLS;
        let (quants, scales) = out.split_at_mut(rows[0].len() * block_subs * Self::QUANT_BYTES);
        // Blocks are the outer loop: the written bytes stay in the first-level cache until all rows are done.
        let outs = quants.chunks_exact_mut(block_subs * Self::QUANT_BYTES);
        for (index, out) in outs.enumerate() {
            for (row_idx, row) in rows.iter().enumerate() {
                let block = row[index].parts();
                let (subs, _) = block.quants.as_ref().as_chunks();
                for (sub, quants) in subs.iter().enumerate() {
                    let out = &mut out[sub * Self::QUANT_BYTES..][..Self::QUANT_BYTES];
                    Self::pack_quants(quants, row_idx, out);
                }
                Self::pack_scales(&block, index, row_idx, scales);
            }
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(span: Span, half: usize, out: &mut Scales<S>) {
        // SAFETY: the caller vouches for the span; the scales of its columns follow its quants.
        unsafe {
            let scales = span.ptr.add(span.n_subs * Self::QUANT_BYTES);
            let first = half * S::LANES;
            if Self::HAS_SUPER {
                let mut d = S::load_f16(scales.add(8 * TILE_ROWS + 2 * first));
                if B::FACTOR != 1.0 {
                    d = S::mul(d, S::splat_f32(B::FACTOR));
                }
                for sub in 0..8 {
                    let scale = S::load_i8(scales.add(sub * TILE_ROWS + first));
                    out.set_scale(sub, S::mul(d, S::to_f32(scale)));
                }
                return;
            }
            for sub in 0..span.n_subs {
                let scales = scales.add(sub * Self::SCALE_BYTES);
                if Self::HAS_SHORT {
                    out.set_scale(2 * sub, half_of_e4m3::<S>(scales.add(first)));
                    out.set_scale(2 * sub + 1, half_of_e4m3::<S>(scales.add(TILE_ROWS + first)));
                    continue;
                }
                if Self::HEADER_BYTES == 1 {
                    out.set_scale(sub, power_of_two::<S>(scales.add(first)));
                    continue;
                }
                out.set_scale(sub, S::load_f16(scales.add(2 * first)));
                if Self::Class::HAS_OFFSETS {
                    out.set_offset(sub, S::load_f16(scales.add(2 * TILE_ROWS + 2 * first)));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn weights<S: Simd>(span: Span, sub: usize, half: usize) -> [S::I; 8] {
        // SAFETY: the caller vouches for the span, which has the quants of these columns here.
        unsafe {
            let quants = span.ptr.add(sub * Self::QUANT_BYTES + half * half_bytes::<S>());
            let low = S::splat_u8(0x0f);
            let mut w = [S::splat(0); 8];
            for j in 0..4 {
                let v = S::load(quants.add(64 * j));
                w[j] = S::and(v, low);
                w[4 + j] = S::and(S::shr16(v, 4), low);
            }
            if Self::HAS_FIFTH {
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
            if let Some(bytes) = const { &Self::BYTES } {
                for g in 0..8 {
                    w[g] = S::look_up(bytes, w[g]);
                }
            }
            w
        }
    }
}

/// Returns half of the 8-bit floats of a vector's rows: no sign, four bits of exponent, three of mantissa.
#[inline(always)]
unsafe fn half_of_e4m3<S: Simd>(bytes: *const u8) -> S::F {
    // SAFETY: the caller vouches for the bytes, one for each lane.
    unsafe {
        // The exponent's bias is off by 120; the factor corrects it, for subnormal numbers too.
        let bits = S::shl32(S::load_u8(bytes), 20);
        S::mul(
            S::from_bits(bits),
            S::splat_f32(f32::from_bits((119 + 127) << 23)),
        )
    }
}

/// Returns `2^(exponent - 128)` for the bytes of a vector's rows, as two factors, because the least is not a
/// normal number.
#[inline(always)]
unsafe fn power_of_two<S: Simd>(exponents: *const u8) -> S::F {
    // SAFETY: the caller vouches for the bytes, one for each lane.
    unsafe {
        let exponent = S::load_u8(exponents);
        let part = S::shr32(exponent, 1);
        let rest = S::sub_i32(exponent, part);
        let first = S::shl32(S::add_i32(part, S::splat(64)), 23);
        let second = S::shl32(S::add_i32(rest, S::splat(62)), 23);
        S::mul(S::from_bits(first), S::from_bits(second))
    }
}
