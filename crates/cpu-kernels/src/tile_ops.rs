//! [`TileOps`]: a tile format as one row of a table.
//!
//! It is the safe interface of the matrix kernels: it checks lengths, then calls kernels. Every format of
//! `tokenmill-quant` has its row.

use tokenmill_gguf::TensorType;
use tokenmill_quant::{Block as _, CpuFeatures, for_each_format, formats};

use crate::{
    activation_block::{ActivationBlock, SPAN_COLS, SPAN_SUBS, SUB_COLS, ScaleSpan, n_spans},
    float_products::{AddScaled, FloatProducts, Prefetch, Write},
    panel::{FillPanel, Panel},
    products::QuantProducts,
    reduction::{TileRun, sum_stride},
    simd::{Portable, TILE_ROWS, dispatch},
    tiles::{self, Class, FloatTile, QuantTile, Span},
};

/// The activations of all rows of a step, in the forms that matrices read.
#[derive(Clone, Copy, Debug)]
pub struct Activations<'a> {
    /// `[n_tokens, n_cols]`.
    pub x: &'a [f32],
    /// `[n_spans, n_tokens]` if a matrix of the group needs them; otherwise empty.
    pub sub_blocks: &'a [ActivationBlock],
    /// `[n_spans, n_tokens]` if a matrix of the group needs them; otherwise empty.
    pub span_blocks: &'a [ActivationBlock],
    /// The number of rows.
    pub n_tokens: usize,
    /// The number of columns of a row.
    pub n_cols: usize,
}

/// The functions of a tile format.
#[derive(Debug)]
pub struct TileOps {
    ty: TensorType,
    /// The scales that activations are quantized with; `None` if they stay f32.
    pub activation_scales: Option<ScaleSpan>,
    tile_bytes: fn(usize) -> usize,
    pack: fn(&[&[u8]; TILE_ROWS], usize, &mut [u8]),
    products: unsafe fn(CpuFeatures, &TileRun),
    /// The kernel of [`Self::add_products`]; only float formats have it.
    add_products: Option<unsafe fn(CpuFeatures, &TileRun, f32)>,
    /// The number of vector instructions for 16 rows of 256 columns by a row of activations; `None` for
    /// products of floats.
    pub instructions: Option<u32>,
    dequantize_row: unsafe fn(CpuFeatures, *const u8, usize, &mut [f32]),
}

macro_rules! table {
    (
        floats: [$($float:ident: $float_block:ident,)*],
        quants: [$($quant:ident: $quant_block:ident,)*],
    ) => {
        &[
            $(TileOps::float::<tiles::$float::Tile>(formats::$float_block::TYPE),)*
            $(TileOps::quant::<tiles::$quant::Tile>(),)*
        ]
    };
}

static TILE_OPS: &[TileOps] = for_each_format!(table);

impl TileOps {
    const fn quant<T: QuantTile>() -> Self {
        Self {
            ty: T::Block::TYPE,
            activation_scales: Some(T::Class::ACTIVATION_SCALES),
            tile_bytes: quant_tile_bytes::<T>,
            pack: pack_quant::<T>,
            // SAFETY: the function's own contract.
            products: |features, run| unsafe { dispatch(features, QuantProducts::<T::Kernels>::new(run)) },
            add_products: None,
            instructions: Some(instructions::<T>()),
            dequantize_row: dequantize_quant_row::<T::Kernels>,
        }
    }

    const fn float<T: FloatTile>(ty: TensorType) -> Self {
        Self {
            ty,
            activation_scales: None,
            tile_bytes: |n_cols| n_cols * TILE_ROWS * T::VALUE_BYTES,
            pack: |rows, _, out| T::pack(rows, out),
            // SAFETY: the function's own contract.
            products: |features, run| unsafe { dispatch(features, FloatProducts::<T, _>::new(run, Write)) },
            add_products: Some(|features, run, scale| {
                // SAFETY: the function's own contract.
                unsafe { dispatch(features, FloatProducts::<T, _>::new(run, AddScaled(scale))) }
            }),
            instructions: None,
            dequantize_row: dequantize_float_row::<T>,
        }
    }

    /// Returns the tile format of a tensor type, if it has one.
    pub fn of(ty: TensorType) -> Option<&'static Self> {
        TILE_OPS.iter().find(|ops| ops.ty == ty)
    }

    /// Returns the number of bytes of a tile of `n_cols` columns: those of its rows in the file, or a few
    /// more.
    pub fn tile_bytes(&self, n_cols: usize) -> usize {
        (self.tile_bytes)(n_cols)
    }

    /// Packs the rows of a tile, each with the same whole number of blocks.
    pub fn pack(&self, rows: &[&[u8]; TILE_ROWS], n_cols: usize, out: &mut [u8]) {
        assert_eq!(out.len(), self.tile_bytes(n_cols), "bytes of a tile");
        (self.pack)(rows, n_cols, out);
    }

    /// Multiplies tiles with the rows `first_token..first_token + n_rows` and writes their sums. These are
    /// `[n_rows, PAIR_ROWS]` for one or two tiles (with one tile the second half of each row is not written),
    /// and `[n_rows, n_tiles * TILE_ROWS]` for more.
    ///
    /// # Panics
    /// If lengths contradict each other, and for more than two tiles of a quantized format.
    pub fn products(
        &self,
        features: CpuFeatures,
        tiles: &[u8],
        activations: &Activations<'_>,
        first_token: usize,
        n_rows: usize,
        sums: &mut [f32],
    ) {
        let run = self.run(tiles, activations, first_token, n_rows, sums);
        // SAFETY: the lengths above are those of `TileRun`'s contract; the tiles were packed by the same row of the table.
        unsafe { (self.products)(features, &run) }
    }

    /// Does the same as [`TileOps::products`] for a float format, but adds each product times `scale` to the
    /// values in `sums`.
    ///
    /// # Panics
    /// If lengths contradict each other, and for a quantized format.
    pub fn add_products(
        &self,
        features: CpuFeatures,
        tiles: &[u8],
        activations: &Activations<'_>,
        scale: f32,
        sums: &mut [f32],
    ) {
        let add_products = self.add_products.expect("tiles of floats");
        let run = self.run(tiles, activations, 0, activations.n_tokens, sums);
        // SAFETY: as in `products`.
        unsafe { add_products(features, &run, scale) }
    }

    /// Prefetches tiles that [`TileOps::add_products`] will read soon.
    pub fn prefetch(features: CpuFeatures, tiles: &[u8]) {
        // SAFETY: a prefetch of existing bytes accesses nothing.
        unsafe { dispatch(features, Prefetch(tiles)) }
    }

    /// Returns the run of a call after a check of its lengths.
    fn run(
        &self,
        tiles: &[u8],
        activations: &Activations<'_>,
        first_token: usize,
        n_rows: usize,
        sums: &mut [f32],
    ) -> TileRun {
        let Activations { n_tokens, n_cols, .. } = *activations;
        let tile_bytes = self.tile_bytes(n_cols);
        let n_tiles = tiles.len() / tile_bytes;
        assert!(n_tiles > 0 && tiles.len() == n_tiles * tile_bytes, "whole tiles");
        assert!(
            n_tiles <= 2 || self.activation_scales.is_none(),
            "one or two tiles of a quantized format"
        );
        assert!(first_token + n_rows <= n_tokens, "rows of a step");
        assert!(sums.len() >= n_rows * sum_stride(n_tiles), "room for sums");
        let blocks = match self.activation_scales {
            None => {
                assert_eq!(activations.x.len(), n_tokens * n_cols, "activations");
                &[]
            }
            Some(ScaleSpan::Sub) => activations.sub_blocks,
            Some(ScaleSpan::Span) => activations.span_blocks,
        };
        if self.activation_scales.is_some() {
            assert_eq!(blocks.len(), n_spans(n_cols) * n_tokens, "quantized activations");
        }
        TileRun {
            tiles: tiles.as_ptr(),
            tile_bytes,
            n_tiles,
            n_cols,
            blocks: blocks.as_ptr().wrapping_add(first_token),
            block_stride: n_tokens,
            x: activations.x.as_ptr().wrapping_add(first_token * n_cols),
            n_rows,
            sums: sums.as_mut_ptr(),
        }
    }

    /// Writes the values of row `row` of a tile.
    pub fn dequantize_row(&self, features: CpuFeatures, tile: &[u8], row: usize, out: &mut [f32]) {
        assert!(
            row < TILE_ROWS && tile.len() == self.tile_bytes(out.len()),
            "a row of a tile"
        );
        // SAFETY: the tile has `out.len()` columns of this format.
        unsafe { (self.dequantize_row)(features, tile.as_ptr(), row, out) }
    }
}

fn quant_tile_bytes<T: QuantTile>(n_cols: usize) -> usize {
    let rest = n_cols % SPAN_COLS / SUB_COLS;
    n_cols / SPAN_COLS * T::span_bytes(SPAN_SUBS) + if rest > 0 { T::span_bytes(rest) } else { 0 }
}

fn pack_quant<T: QuantTile>(rows: &[&[u8]; TILE_ROWS], n_cols: usize, out: &mut [u8]) {
    let rows = rows.map(bytemuck::cast_slice::<u8, T::Block>);
    let n_blocks = n_cols / T::Block::LEN;
    let span_blocks = SPAN_COLS / T::Block::LEN;
    for (span_idx, out) in out.chunks_mut(T::span_bytes(SPAN_SUBS)).enumerate() {
        let blocks = span_idx * span_blocks..n_blocks.min((span_idx + 1) * span_blocks);
        T::pack(&rows.map(|row| &row[blocks.clone()]), out);
    }
}

/// Returns [`TileOps::instructions`], on two vector ports, for many rows.
const fn instructions<T: QuantTile>() -> u32 {
    let n_runs = 8 * T::Class::SUB_RUNS;
    let (scales, end) = match T::Class::ACTIVATION_SCALES {
        ScaleSpan::Sub => (2 * n_runs, 0),
        ScaleSpan::Span => (n_runs, 1),
    };
    let biases = if T::BIAS_BITS.is_some() { n_runs / 2 } else { 0 };
    let mins = if T::Class::HAS_MINS {
        T::Class::MIN_PAIRS + 2
    } else {
        0
    };
    let offsets = if T::Class::HAS_OFFSETS { 8 } else { 0 };
    (64 + n_runs + scales + biases + mins + offsets + end) as u32
}

/// # Safety
/// `tile` points to a tile of `out.len()` columns in format `T`.
unsafe fn dequantize_quant_row<T: QuantTile>(
    features: CpuFeatures,
    tile: *const u8,
    row: usize,
    out: &mut [f32],
) {
    let bias = T::BIAS_BITS.map_or(0, |bits| 1 << bits);
    let run_cols = SUB_COLS / T::Class::SUB_RUNS;
    let mut panel = Panel::ZERO;
    for (span_idx, out) in out.chunks_mut(SPAN_COLS).enumerate() {
        // SAFETY: the span is inside the tile.
        unsafe {
            let span = Span {
                ptr: tile.add(span_idx * T::span_bytes(SPAN_SUBS)),
                n_subs: out.len() / SUB_COLS,
            };
            dispatch(features, FillPanel::<T>::new(span, &raw mut panel));
        }
        for (run, out) in out.chunks_mut(run_cols).enumerate() {
            let scale = panel.scale[run][row];
            let addend = if T::Class::HAS_MINS {
                let pair = panel.min_pairs[run / 2][row];
                panel.neg_min_scale[row] * ((pair >> (16 * (run % 2))) & 0xffff) as f32
            } else if T::Class::HAS_OFFSETS {
                panel.offset[run][row]
            } else {
                0.0
            };
            for (i, out) in out.iter_mut().enumerate() {
                let col = run * run_cols + i;
                let quant = i32::from(panel.quants[col / 4 * 64 + row * 4 + col % 4]) - bias;
                *out = scale * quant as f32 + addend;
            }
        }
    }
}

/// # Safety
/// `tile` points to a tile of `out.len()` columns in format `T`.
unsafe fn dequantize_float_row<T: FloatTile>(_: CpuFeatures, tile: *const u8, row: usize, out: &mut [f32]) {
    for (col, out) in out.iter_mut().enumerate() {
        // SAFETY: the column's 16 values are inside the tile, and portable code needs no features.
        let values = unsafe { T::weights::<Portable>(tile.add(col * TILE_ROWS * T::VALUE_BYTES)) };
        *out = values[row];
    }
}
