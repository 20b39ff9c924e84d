//! [`Codes`]: quants of one to three bits, with scales for each 16 or 32 columns or for a block.
//!
//! The formats with indices into grids, and the ternary ones, share this layout. Grids are looked up when a
//! tile is packed, so that products need no gather. A span has room for 256 columns, even if a row ends in
//! it:
//!
//! | bytes | contents |
//! |---|---|
//! | 1024 | with two bits or more, the low two: for each 128 columns 8 vectors, four times 32 columns in the pairs of bits of a byte |
//! | 512 | with one bit or three, the highest: bit `s` of a byte belongs to columns `32 s..` |
//! | 128, 256 | if groups have scales, the bytes of the groups, `[8][16 rows]` or `[16][16 rows]` |
//! | 32, 64, 128 | for each block 16 half-precision scales |

use std::marker::PhantomData;

use tokenmill_quant::QuantBlock;

use super::{Class, QuantTile, Scales, Span, half_bytes};
use crate::{
    activation_block::{SPAN_COLS, SPAN_SUBS, SUB_COLS},
    simd::{Simd, TILE_ROWS},
};

/// The contents of the groups' bytes. If there are any, a block's scale is multiplied by `2 n + 1` of an
/// integer `n`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Groups {
    /// Groups have no bytes.
    None,
    /// Each 32 columns have a byte with two integers, one for each 16.
    Pairs,
    /// Each 16 columns have a byte with an integer in its low three bits. Each 8 columns then have a bit,
    /// which becomes the third bit of their quants.
    Shifts,
}

/// The properties of a format in addition to the parts of its blocks.
pub(crate) trait CodesBlock: QuantBlock {
    /// The format whose kernels compute these tiles: this one, or one with the same layout.
    type Kernels: CodesBlock;
    /// The class of arithmetic of its products.
    type Class: Class;
    /// The bias that makes values unsigned.
    const BIAS_BITS: u32;
    /// The contents of the groups' bytes.
    const GROUPS: Groups = Groups::None;
    /// The factor of the scales.
    const FACTOR: f32 = 1.0;
    /// The bytes that quants stand for, if they are indices.
    const TABLE: Option<[u8; 16]> = None;
}

/// Tiles of blocks of 64 to 256 columns.
pub(crate) struct Codes<B>(PhantomData<B>);

impl<B: CodesBlock> Codes<B> {
    const HAS_LOW: bool = B::QUANT_BITS >= 2;
    const HAS_TOP: bool = B::QUANT_BITS % 2 == 1;
    /// The position of the top bit. A single bit is the second, which makes values odd.
    const TOP_BIT: u32 = if Self::HAS_LOW { 2 } else { 1 };
    const TOP: usize = if Self::HAS_LOW { 1024 } else { 0 };
    const GROUPS: usize = Self::TOP + if Self::HAS_TOP { 512 } else { 0 };
    const GROUP_BYTES: usize = TILE_ROWS * SPAN_SUBS * B::GROUP_SCALE_BYTES;
    const BLOCK_SCALES: usize = Self::GROUPS + Self::GROUP_BYTES;
    const SPAN_BYTES: usize = Self::BLOCK_SCALES + SPAN_COLS / B::LEN * 2 * TILE_ROWS;
}

impl<B: CodesBlock> QuantTile for Codes<B> {
    type Class = B::Class;
    type Block = B;
    type Kernels = Codes<B::Kernels>;
    const BIAS_BITS: Option<u32> = Some(B::BIAS_BITS);
    const IS_DEAR: bool = B::QUANT_BITS == 3;

    #[inline(always)]
    fn span_bytes(_: usize) -> usize {
        Self::SPAN_BYTES
    }

    fn pack(rows: &[&[B]; TILE_ROWS], out: &mut [u8]) {
        for (row_idx, row) in rows.iter().enumerate() {
            let mut quants = [0; SPAN_COLS];
            for (index, (block, quants)) in row.iter().zip(quants.chunks_exact_mut(B::LEN)).enumerate() {
                let block = block.parts();
                quants.copy_from_slice(block.quants.as_ref());
                let groups = &mut out[Self::GROUPS..][..Self::GROUP_BYTES];
                for (group, out) in block.group_scales.iter().zip(groups.chunks_exact_mut(TILE_ROWS)) {
                    out[row_idx] = *group;
                }
                let scale = &mut out[Self::BLOCK_SCALES + 2 * (TILE_ROWS * index + row_idx)..][..2];
                scale.copy_from_slice(&block.header[..2]);
            }
            for g in 0..8 {
                let at = 64 * g + 4 * row_idx;
                for b in 0..4 {
                    let quant = |sub: usize| quants[SUB_COLS * sub + 4 * g + b];
                    if Self::HAS_LOW {
                        for part in 0..2 {
                            out[512 * part + at + b] =
                                (0..4).fold(0, |byte, k| byte | (quant(4 * part + k) & 3) << (2 * k));
                        }
                    }
                    if Self::HAS_TOP {
                        let top = B::QUANT_BITS - 1;
                        out[Self::TOP + at + b] =
                            (0..8).fold(0, |byte, sub| byte | (quant(sub) >> top & 1) << sub);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(span: Span, half: usize, out: &mut Scales<S>) {
        // SAFETY: the caller vouches for the span, all of whose parts are read within their bounds.
        unsafe {
            let first = half * S::LANES;
            let groups = span.ptr.add(Self::GROUPS + first);
            for sub in 0..span.n_subs {
                let block = sub * SUB_COLS / B::LEN;
                let mut d = S::load_f16(span.ptr.add(Self::BLOCK_SCALES + 2 * (TILE_ROWS * block + first)));
                if B::FACTOR != 1.0 {
                    d = S::mul(d, S::splat_f32(B::FACTOR));
                }
                match B::GROUPS {
                    Groups::None => out.set_scale(sub, d),
                    Groups::Pairs => {
                        let pair = S::load_u8(groups.add(TILE_ROWS * sub));
                        out.set_scale(2 * sub, odd_times::<S>(S::and(pair, S::splat(0xf)), d));
                        out.set_scale(2 * sub + 1, odd_times::<S>(S::shr32(pair, 4), d));
                    }
                    Groups::Shifts => {
                        for run in [2 * sub, 2 * sub + 1] {
                            let n = S::and(S::load_u8(groups.add(TILE_ROWS * run)), S::splat(7));
                            out.set_scale(run, odd_times::<S>(n, d));
                        }
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn weights<S: Simd>(span: Span, sub: usize, half: usize) -> [S::I; 8] {
        // SAFETY: the caller vouches for the span, which has the quants of 32 columns here.
        unsafe {
            let base = span.ptr.add(half * half_bytes::<S>());
            let mut w = [S::splat(0); 8];
            for g in 0..8 {
                if Self::HAS_LOW {
                    let low = S::load(base.add(512 * (sub / 4) + 64 * g));
                    w[g] = S::and(S::shr16(low, 2 * (sub as u32 % 4)), S::splat_u8(0x03));
                }
                if Self::HAS_TOP {
                    let top = S::load(base.add(Self::TOP + 64 * g));
                    let sub = sub as u32;
                    let moved = if sub < Self::TOP_BIT {
                        S::shl16(top, Self::TOP_BIT - sub)
                    } else {
                        S::shr16(top, sub - Self::TOP_BIT)
                    };
                    w[g] = S::or(w[g], S::and(moved, S::splat_u8(1 << Self::TOP_BIT)));
                }
            }
            if B::GROUPS == Groups::Shifts {
                for eight in 0..4 {
                    let group = span.ptr.add(Self::GROUPS + TILE_ROWS * (2 * sub + eight / 2));
                    let byte = S::load_u8(group.add(half * S::LANES));
                    let bit = S::and(S::shr32(byte, 1 + eight as u32 % 2), S::splat(4));
                    let two = S::or(bit, S::shl32(bit, 8));
                    let four = S::or(two, S::shl32(two, 16));
                    w[2 * eight] = S::or(w[2 * eight], four);
                    w[2 * eight + 1] = S::or(w[2 * eight + 1], four);
                }
            }
            if let Some(table) = const { &B::TABLE } {
                for g in 0..8 {
                    w[g] = S::look_up(table, w[g]);
                }
            }
            w
        }
    }
}

/// `(2 n + 1) * d`.
#[inline(always)]
unsafe fn odd_times<S: Simd>(n: S::I, d: S::F) -> S::F {
    // SAFETY: the caller vouches for the features.
    unsafe { S::mul(d, S::to_f32(S::add_i32(S::shl32(n, 1), S::splat(1)))) }
}
