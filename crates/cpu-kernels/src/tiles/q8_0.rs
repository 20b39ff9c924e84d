//! Q8_0: whole bytes with blocks of 32 columns.
//!
//! A span has, for each block, 512 bytes of quants (word `g` of a row holds columns `4 g..`), then 16
//! half-precision scales for each block. Bytes are stored with their top bit flipped: the bias of 128 makes
//! them unsigned.

use bytemuck::cast_ref;
use tokenmill_quant::formats::BlockQ8_0;

use super::{QuantTile, ScaledWide, Scales, Span, half_bytes, interleave_halves, interleave_words};
use crate::simd::{Simd, TILE_ROWS};

/// The tiles of blocks of 32 columns: 8-bit quants and a scale.
pub(crate) struct Tile;

const QUANT_BYTES: usize = 512;

impl QuantTile for Tile {
    type Class = ScaledWide;
    type Block = BlockQ8_0;
    type Kernels = Self;
    const BIAS_BITS: Option<u32> = Some(7);

    fn pack(rows: &[&[BlockQ8_0]; TILE_ROWS], out: &mut [u8]) {
        let (quants, scales) = out.split_at_mut(rows[0].len() * QUANT_BYTES);
        for (sub, quants) in quants.chunks_exact_mut(QUANT_BYTES).enumerate() {
            interleave_words(rows, sub, |block| cast_ref::<_, [u8; 32]>(&block.quants), quants);
            interleave_halves(rows, sub, |block| block.scale, &mut scales[sub * 32..][..32]);
            for quant in quants {
                *quant ^= 0x80;
            }
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(span: Span, half: usize, out: &mut Scales<S>) {
        for sub in 0..span.n_subs {
            // SAFETY: the caller vouches for the span; the scales of its blocks follow its quants.
            unsafe {
                let scales = span.ptr.add(span.n_subs * QUANT_BYTES + sub * 32);
                out.set_scale(sub, S::load_f16(scales.add(half * S::LANES * 2)));
            }
        }
    }

    #[inline(always)]
    unsafe fn weights<S: Simd>(span: Span, sub: usize, half: usize) -> [S::I; 8] {
        // SAFETY: the caller vouches for the span, which has the quants of block `sub` here.
        unsafe {
            let quants = span.ptr.add(sub * QUANT_BYTES + half * half_bytes::<S>());
            let mut w = [S::splat(0); 8];
            for g in 0..8 {
                w[g] = S::load(quants.add(64 * g));
            }
            w
        }
    }
}
