//! [`TileQ8_0`]: whole bytes with blocks of 32 columns.
//!
//! A span is, for each block, 512 bytes of quants (word `g` of a row holds columns `4 g..`), then 16 half-precision scales
//! for each block. Bytes are stored with their top bit flipped, which is the bias of 128 that makes them unsigned.

use super::{QuantTile, ScaledWide, Scales, Span, half_bytes, interleave_halves, interleave_words};
use crate::simd::{Simd, TILE_ROWS, activations::SUB_COLS};

/// Blocks of 32 columns: 8-bit quants and a scale.
pub(crate) struct TileQ8_0;

const QUANT_BYTES: usize = 512;

impl QuantTile for TileQ8_0 {
    type Class = ScaledWide;
    const BLOCK_COLS: usize = SUB_COLS;
    const BLOCK_BYTES: usize = 34;
    const BIAS_BITS: Option<u32> = Some(7);

    fn pack(rows: &[&[u8]; TILE_ROWS], n_subs: usize, out: &mut [u8]) {
        let (quants, scales) = out.split_at_mut(n_subs * QUANT_BYTES);
        for (sub, quants) in quants.chunks_exact_mut(QUANT_BYTES).enumerate() {
            interleave_words(rows, sub * Self::BLOCK_BYTES + 2, 8, quants);
            interleave_halves(rows, sub * Self::BLOCK_BYTES, &mut scales[sub * 32..][..32]);
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
