//! Tiles: weights of 16 rows interleaved, so that a vector holds the same columns of 16 rows.
//!
//! A tile covers 16 rows and all columns, cut into *spans* of 256 columns (the last may be shorter if a
//! format's blocks are shorter). In a span, quants come first, then scales. Four columns of a row are four
//! bytes of a lane: `vpdpbusd` multiplies them with four broadcast activations, so no product is ever summed
//! across lanes. Quants keep the file's bit packing wherever a word of it moves as a whole, so that most
//! tiles take exactly the bytes of their rows.
//!
//! Each format has one file here with its `Tile`: how blocks are packed into a span, how 32 columns become
//! bytes, how scales become f32. Several formats share [`nibbles`] (quants of 4 or 5 bits, a scale for each
//! 32), [`codes`] (quants of 1 to 3 bits), [`k_mins`] and [`k_scales`]. Only `tokenmill-quant` knows the
//! positions of a block's bits: tiles are packed from its fields and parts. Invariant: bytes are unsigned,
//! `value = scale * (byte - bias) - minimum`, and the layout is the same for every instruction set.

mod codes;
mod float;
mod k_mins;
mod k_scales;
mod nibbles;

macro_rules! modules {
    (
        floats: [$($float:ident: $float_block:ident,)*],
        quants: [$($quant:ident: $quant_block:ident,)*],
    ) => {
        $(pub(crate) mod $float;)*
        $(pub(crate) mod $quant;)*
    };
}

for_each_format!(modules);

pub(crate) use float::FloatTile;

use std::mem::MaybeUninit;

use tokenmill_quant::{Block as _, F16Bits, QuantBlock, for_each_format};

use crate::{
    activation_block::{SPAN_SUBS, SUB_COLS, ScaleSpan},
    simd::{Simd, TILE_ROWS},
};

/// The class of arithmetic of a format's products. Formats of one class share kernels.
pub(crate) trait Class: 'static {
    /// The number of activations that share a scale.
    const ACTIVATION_SCALES: ScaleSpan;
    /// Whether weights have a scale for every 16 columns, not 32.
    const HAS_SHORT_SUBS: bool = false;
    /// Whether every run of columns with a scale has an integer minimum, multiplied by one more scale of the
    /// span.
    const HAS_MINS: bool = false;
    /// Whether every 32 columns have an f32 offset to add.
    const HAS_OFFSETS: bool = false;
    /// The number of runs of columns with a scale in each 32.
    const SUB_RUNS: usize = if Self::HAS_SHORT_SUBS { 2 } else { 1 };
    /// The number of pairs of minima of a span.
    const MIN_PAIRS: usize = if Self::HAS_SHORT_SUBS { 8 } else { 4 };
    /// Whether bytes may exceed 127; their bias is then 128.
    const IS_WIDE: bool = false;
}

/// A scale for each 32: `Q4_0`, `Q5_0`, `MXFP4`, `IQ3_S`, `IQ3_XXS` and ternary formats.
pub(crate) struct Scaled;
impl Class for Scaled {
    const ACTIVATION_SCALES: ScaleSpan = ScaleSpan::Sub;
}

/// A scale for each 32, and whole bytes: `Q8_0`, `IQ4_NL`, `IQ4_XS`.
pub(crate) struct ScaledWide;
impl Class for ScaledWide {
    const ACTIVATION_SCALES: ScaleSpan = ScaleSpan::Sub;
    const IS_WIDE: bool = true;
}

/// A scale and an offset for each 32: `Q4_1`, `Q5_1`.
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

/// Scales for each 16: `Q3_K`, `Q6_K`, `NVFP4` and formats of 1 and 2 bits with indices into grids.
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

/// The scales of one span for the rows of a vector. Only the values of a format's class are ever written or
/// read: clearing the rest for every span would take longer than unpacking it.
pub(crate) struct Scales<S: Simd> {
    scale: [MaybeUninit<S::F>; 16],
    offset: [MaybeUninit<S::F>; SPAN_SUBS],
    min_pairs: [MaybeUninit<S::I>; 8],
    neg_min_scale: MaybeUninit<S::F>,
}

/// # Safety
/// For the reading methods: the value was set for this span.
impl<S: Simd> Scales<S> {
    /// Creates scales with no value set.
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

    /// Sets the offset of 32 columns, which is multiplied by the sum of activations and added.
    #[inline(always)]
    pub(crate) fn set_offset(&mut self, sub: usize, offset: S::F) {
        self.offset[sub].write(offset);
    }

    /// Sets the minima of two runs, 16 bits each in one lane.
    #[inline(always)]
    pub(crate) fn set_min_pair(&mut self, pair: usize, mins: S::I) {
        self.min_pairs[pair].write(mins);
    }

    /// Sets the factor of the sum over minima, already negated.
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
    /// The first byte.
    pub(crate) ptr: *const u8,
    /// The number of groups of 32 columns in it, 1 to 8.
    pub(crate) n_subs: usize,
}

/// The tiles of a quantized format.
///
/// # Safety
/// For `scales` and `weights`: the processor has the features of `S`, the span is packed in this format,
/// `sub < span.n_subs`, and `half < S::HALVES` selects the rows `half * S::LANES ..`.
pub(crate) trait QuantTile: 'static {
    /// The class of its arithmetic.
    type Class: Class;
    /// The blocks of the file, of 32 or 256 columns.
    type Block: QuantBlock;
    /// The tiles whose kernels multiply these: the same tiles, or those of another format with the same
    /// layout. So such kernels are compiled once.
    type Kernels: QuantTile;
    /// The bias of the bytes is `1 << BIAS_BITS`; `None` for no bias.
    const BIAS_BITS: Option<u32>;
    /// Whether unpacking costs so much that a panel pays from five rows on; otherwise it pays from about
    /// three times [`Simd::MAX_DIRECT_ROWS`] on.
    const IS_DEAR: bool = false;

    /// Returns the number of bytes of a span.
    #[inline(always)]
    fn span_bytes(n_subs: usize) -> usize {
        (n_subs * SUB_COLS).div_ceil(Self::Block::LEN) * size_of::<Self::Block>() * TILE_ROWS
    }

    /// Packs one span: `rows` are the file's blocks of the span's columns, one slice for each row.
    fn pack(rows: &[&[Self::Block]; TILE_ROWS], out: &mut [u8]);

    /// Sets the values of the format's class.
    unsafe fn scales<S: Simd>(span: Span, half: usize, out: &mut Scales<S>);

    /// Returns 32 columns as bytes: vector `g` holds columns `4 g .. 4 g + 4`.
    unsafe fn weights<S: Simd>(span: Span, sub: usize, half: usize) -> [S::I; 8];
}

/// Returns the number of bytes of a vector's rows in a group of four columns.
#[inline(always)]
pub(crate) const fn half_bytes<S: Simd>() -> usize {
    S::LANES * 4
}

/// Interleaves the words of a field of each row's block `index`: word `w` of row `r` is written to
/// word `16 w + r`.
fn interleave_words<B, const N: usize>(
    rows: &[&[B]; TILE_ROWS],
    index: usize,
    field: impl Fn(&B) -> &[u8; N],
    out: &mut [u8],
) {
    let (out, _) = out[..N * TILE_ROWS].as_chunks_mut::<4>();
    for (row_idx, row) in rows.iter().enumerate() {
        let (words, _) = field(&row[index]).as_chunks::<4>();
        for (word_idx, word) in words.iter().enumerate() {
            out[word_idx * TILE_ROWS + row_idx] = *word;
        }
    }
}

/// Interleaves a half-precision field of each row's block `index`.
fn interleave_halves<B>(
    rows: &[&[B]; TILE_ROWS],
    index: usize,
    field: impl Fn(&B) -> F16Bits,
    out: &mut [u8],
) {
    for (row, out) in rows.iter().zip(out.as_chunks_mut::<2>().0) {
        *out = field(&row[index]).to_le_bytes();
    }
}

/// Returns a codebook with a bias.
const fn biased(codebook: [i8; 16], bias_bits: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut i = 0;
    while i < 16 {
        bytes[i] = (codebook[i] as i32 + (1 << bias_bits)) as u8;
        i += 1;
    }
    bytes
}
