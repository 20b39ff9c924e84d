//! Tiles: weights of 16 rows interleaved, so that a vector holds the same columns of 16 rows.
//!
//! A tile covers 16 rows and all columns, cut into *spans* of 256 columns (the last may be shorter where a format's blocks
//! are shorter). In a span, quants come first, then scales. Four columns of a row are four bytes of a lane: what
//! `vpdpbusd` multiplies with four broadcast activations, so no product is ever summed across lanes. Quants keep the
//! file's bit packing wherever a word of it moves as a whole; a tile takes exactly the bytes of its rows.
//!
//! A format is one file here: how a span is packed, how 32 columns become bytes, how scales become f32. Invariant: bytes
//! are unsigned, `value = scale * (byte - bias) - minimum`, and the layout is the same for every instruction set.

mod float;
mod k_scales;
mod q2_k;
mod q3_k;
mod q4_k;
mod q6_k;
mod q8_0;
mod short;

pub(crate) use float::{FloatTile, TileBF16, TileF16, TileF32};
pub(crate) use q2_k::TileQ2K;
pub(crate) use q3_k::TileQ3K;
pub(crate) use q4_k::{TileQ4K, TileQ5K};
pub(crate) use q6_k::TileQ6K;
pub(crate) use q8_0::TileQ8_0;
pub(crate) use short::{TileQ4_0, TileQ4_1, TileQ5_0, TileQ5_1};

use std::mem::MaybeUninit;

use super::{
    Simd, TILE_ROWS,
    activations::{SPAN_SUBS, SUB_COLS, ScaleSpan},
};

/// What kind of arithmetic a format's products take. Formats of one class share kernels.
pub(crate) trait Class: 'static {
    /// How many activations share a scale.
    const ACTIVATION_SCALES: ScaleSpan;
    /// Whether weights have a scale for every 16 columns, not 32.
    const HAS_SHORT_SUBS: bool = false;
    /// Whether every run of columns with a scale has an integer minimum, multiplied by one more scale of the span.
    const HAS_MINS: bool = false;
    /// Whether every 32 columns have an f32 offset that is added.
    const HAS_OFFSETS: bool = false;
    /// Runs of columns with a scale in each 32.
    const SUB_RUNS: usize = if Self::HAS_SHORT_SUBS { 2 } else { 1 };
    /// Pairs of minima of a span.
    const MIN_PAIRS: usize = if Self::HAS_SHORT_SUBS { 8 } else { 4 };
    /// Whether bytes may exceed 128.
    const IS_WIDE: bool = false;
}

/// Blocks of 32 with a scale: `Q4_0`, `Q5_0`.
pub(crate) struct Scaled;
impl Class for Scaled {
    const ACTIVATION_SCALES: ScaleSpan = ScaleSpan::Sub;
}

/// Blocks of 32 with a scale and whole bytes: `Q8_0`.
pub(crate) struct ScaledWide;
impl Class for ScaledWide {
    const ACTIVATION_SCALES: ScaleSpan = ScaleSpan::Sub;
    const IS_WIDE: bool = true;
}

/// Blocks of 32 with a scale and an offset: `Q4_1`, `Q5_1`.
pub(crate) struct Offset;
impl Class for Offset {
    const ACTIVATION_SCALES: ScaleSpan = ScaleSpan::Sub;
    const HAS_OFFSETS: bool = true;
}

/// Blocks of 256 with scales and minima for each 32: `Q4_K`, `Q5_K`.
pub(crate) struct SuperMins;
impl Class for SuperMins {
    const ACTIVATION_SCALES: ScaleSpan = ScaleSpan::Span;
    const HAS_MINS: bool = true;
}

/// Blocks of 256 with scales for each 16: `Q3_K`, `Q6_K`.
pub(crate) struct SuperShort;
impl Class for SuperShort {
    const ACTIVATION_SCALES: ScaleSpan = ScaleSpan::Span;
    const HAS_SHORT_SUBS: bool = true;
}

/// Blocks of 256 with scales and minima for each 16: `Q2_K`.
pub(crate) struct SuperShortMins;
impl Class for SuperShortMins {
    const ACTIVATION_SCALES: ScaleSpan = ScaleSpan::Span;
    const HAS_SHORT_SUBS: bool = true;
    const HAS_MINS: bool = true;
}

/// Scales of one span for the rows of a vector. Only what a format's class names is ever written or read: clearing the
/// rest for every span would take longer than unpacking it.
pub(crate) struct Scales<S: Simd> {
    scale: [MaybeUninit<S::F>; 16],
    offset: [MaybeUninit<S::F>; SPAN_SUBS],
    min_pairs: [MaybeUninit<S::I>; 8],
    neg_min_scale: MaybeUninit<S::F>,
}

/// # Safety
/// Of the reading methods: the value was set for this span.
impl<S: Simd> Scales<S> {
    /// Nothing set.
    #[inline(always)]
    pub(crate) fn unset() -> Self {
        Self {
            scale: [const { MaybeUninit::uninit() }; 16],
            offset: [const { MaybeUninit::uninit() }; SPAN_SUBS],
            min_pairs: [const { MaybeUninit::uninit() }; 8],
            neg_min_scale: MaybeUninit::uninit(),
        }
    }

    /// Sets the scale of a run of columns.
    #[inline(always)]
    pub(crate) fn set_scale(&mut self, run: usize, scale: S::F) {
        self.scale[run].write(scale);
    }

    /// Sets what is added for 32 columns, times the sum of activations.
    #[inline(always)]
    pub(crate) fn set_offset(&mut self, sub: usize, offset: S::F) {
        self.offset[sub].write(offset);
    }

    /// Sets the minima of two runs, 16 bits each in one lane.
    #[inline(always)]
    pub(crate) fn set_min_pair(&mut self, pair: usize, mins: S::I) {
        self.min_pairs[pair].write(mins);
    }

    /// Sets what the sum over minima is multiplied with, already negated.
    #[inline(always)]
    pub(crate) fn set_neg_min_scale(&mut self, scale: S::F) {
        self.neg_min_scale.write(scale);
    }

    #[inline(always)]
    pub(crate) unsafe fn scale(&self, run: usize) -> S::F {
        // SAFETY: the caller vouches for it.
        unsafe { self.scale[run].assume_init() }
    }

    #[inline(always)]
    pub(crate) unsafe fn offset(&self, sub: usize) -> S::F {
        // SAFETY: the caller vouches for it.
        unsafe { self.offset[sub].assume_init() }
    }

    #[inline(always)]
    pub(crate) unsafe fn min_pair(&self, pair: usize) -> S::I {
        // SAFETY: the caller vouches for it.
        unsafe { self.min_pairs[pair].assume_init() }
    }

    #[inline(always)]
    pub(crate) unsafe fn neg_min_scale(&self) -> S::F {
        // SAFETY: the caller vouches for it.
        unsafe { self.neg_min_scale.assume_init() }
    }
}

/// A span of a tile.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    /// Its first byte.
    pub(crate) ptr: *const u8,
    /// Groups of 32 columns in it, 1 to 8.
    pub(crate) n_subs: usize,
}

/// A quantized format's tiles.
///
/// # Safety
/// Of `scales` and `weights`: the features of `S` are there, the span is packed in this format, `sub < span.n_subs`, and
/// `half < S::HALVES` names the rows `half * S::LANES ..`.
pub(crate) trait QuantTile: 'static {
    /// What kind of arithmetic it takes.
    type Class: Class;
    /// Columns of a block in the file: 32 or 256.
    const BLOCK_COLS: usize;
    /// Bytes of a block in the file.
    const BLOCK_BYTES: usize;
    /// The bias of the bytes is `1 << BIAS_BITS`; there is none where this is `None`.
    const BIAS_BITS: Option<u32>;
    /// Whether unpacking costs so much that a panel pays from five rows on; otherwise it pays from about three times the
    /// rows that [`Simd::MAX_DIRECT_ROWS`] states.
    const IS_DEAR: bool = false;

    /// Bytes of a span.
    #[inline(always)]
    fn span_bytes(n_subs: usize) -> usize {
        (n_subs * SUB_COLS).div_ceil(Self::BLOCK_COLS) * Self::BLOCK_BYTES * TILE_ROWS
    }

    /// Packs one span: `rows` are the file's blocks of the span's columns, one slice for each row.
    fn pack(rows: &[&[u8]; TILE_ROWS], n_subs: usize, out: &mut [u8]);

    /// Fills what the format's class has.
    unsafe fn scales<S: Simd>(span: Span, half: usize, out: &mut Scales<S>);

    /// 32 columns as bytes: vector `g` holds columns `4 g .. 4 g + 4`.
    unsafe fn weights<S: Simd>(span: Span, sub: usize, half: usize) -> [S::I; 8];
}

/// Bytes of a vector's worth of rows in a group of four columns.
#[inline(always)]
pub(crate) const fn half_bytes<S: Simd>() -> usize {
    S::LANES * 4
}

/// Interleaves `n_words` words of each row, starting at byte `start`: word `w` of row `r` goes to word `16 w + r`.
fn interleave_words(rows: &[&[u8]; TILE_ROWS], start: usize, n_words: usize, out: &mut [u8]) {
    let (out, _) = out[..n_words * 64].as_chunks_mut::<4>();
    for (row_idx, row) in rows.iter().enumerate() {
        let (words, _) = row[start..start + 4 * n_words].as_chunks::<4>();
        for (word_idx, word) in words.iter().enumerate() {
            out[word_idx * TILE_ROWS + row_idx] = *word;
        }
    }
}

/// Interleaves one 16-bit value of each row, which starts at byte `start`.
fn interleave_halves(rows: &[&[u8]; TILE_ROWS], start: usize, out: &mut [u8]) {
    for (row, out) in rows.iter().zip(out.as_chunks_mut::<2>().0) {
        out.copy_from_slice(&row[start..start + 2]);
    }
}
