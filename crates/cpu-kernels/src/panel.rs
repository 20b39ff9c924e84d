//! [`Panel`]: a span of a tile unpacked for many rows of activations.
//!
//! Unpacking is paid once for a block of rows. The rest is the same for every format of a class: the product
//! of bytes in the first-level cache. It takes two vectors of weight rows by up to six rows of activations at
//! a time, so that multiplication limits it rather than loads or latency.
//!
//! If an instruction set multiplies matrices of bytes ([`Simd::HAS_MATRIX`]), two rows of activations are
//! multiplied at once, and columns are in groups of eight for it ([`arrange_eights`]).
//!
//! Invariant: an output element is reduced in the order of [`reduction`](super::reduction).

use std::{
    mem::MaybeUninit,
    sync::atomic::{Ordering, compiler_fence},
};

use crate::{
    activation_block::{ActivationBlock, SPAN_COLS, SPAN_SUBS, ScaleSpan, n_spans},
    reduction::{PAIR_ROWS, TileRun, add_min_pair, add_offset, add_run, dot, end_span, n_subs, start},
    simd::{Kernel, Simd, TILE_ROWS},
    tiles::{Class, QuantTile, Scales, Span, half_bytes},
};

/// The distance in bytes at which weights are prefetched. It is less than for weights that are used at once,
/// since the products of a panel take longer than memory does.
const PREFETCH_BYTES: usize = 4096;

/// A span of a tile, unpacked.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct Panel {
    /// `[64 groups of four columns][16 rows][4]`.
    pub(crate) quants: [u8; SPAN_COLS * TILE_ROWS],
    pub(crate) scale: [[f32; TILE_ROWS]; 16],
    pub(crate) min_pairs: [[i32; TILE_ROWS]; 8],
    pub(crate) neg_min_scale: [f32; TILE_ROWS],
    pub(crate) offset: [[f32; TILE_ROWS]; SPAN_SUBS],
}

impl Panel {
    pub(crate) const ZERO: Self = Self {
        quants: [0; SPAN_COLS * TILE_ROWS],
        scale: [[0.0; TILE_ROWS]; 16],
        min_pairs: [[0; TILE_ROWS]; 8],
        neg_min_scale: [0.0; TILE_ROWS],
        offset: [[0.0; TILE_ROWS]; SPAN_SUBS],
    };
}

/// Unpacks a span into a panel.
pub(crate) struct FillPanel<T> {
    span: Span,
    panel: *mut Panel,
    tile: std::marker::PhantomData<T>,
}

impl<T: QuantTile> FillPanel<T> {
    /// Writes the parts that the span and the format's class have, and leaves the rest as it is: clearing a
    /// panel takes as long as some rows.
    ///
    /// # Safety
    /// The span is packed in format `T`, and `panel` may be written while the kernel runs.
    pub(crate) unsafe fn new(span: Span, panel: *mut Panel) -> Self {
        Self {
            span,
            panel,
            tile: std::marker::PhantomData,
        }
    }
}

impl<T: QuantTile> Kernel for FillPanel<T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Self { span, panel, .. } = self;
        // SAFETY: the kernel's own contract; every store is inside its array.
        unsafe {
            for half in 0..S::HALVES {
                let mut scales = Scales::<S>::unset();
                T::scales(span, half, &mut scales);
                let first = half * S::LANES;
                for run in 0..span.n_subs * T::Class::SUB_RUNS {
                    S::store_f32(row_of(&raw mut (*panel).scale, run).add(first), scales.scale(run));
                }
                if T::Class::HAS_MINS {
                    for pair in 0..T::Class::MIN_PAIRS {
                        let mins = row_of(&raw mut (*panel).min_pairs, pair).add(first);
                        S::store(mins.cast(), scales.min_pair(pair));
                    }
                    let neg_min_scale = (&raw mut (*panel).neg_min_scale).cast::<f32>().add(first);
                    S::store_f32(neg_min_scale, scales.neg_min_scale());
                }
                if T::Class::HAS_OFFSETS {
                    for sub in 0..span.n_subs {
                        S::store_f32(
                            row_of(&raw mut (*panel).offset, sub).add(first),
                            scales.offset(sub),
                        );
                    }
                }
                for sub in 0..span.n_subs {
                    let w = T::weights::<S>(span, sub, half);
                    for g in 0..8 {
                        let at = (sub * 8 + g) * 64 + half * half_bytes::<S>();
                        S::store((&raw mut (*panel).quants).cast::<u8>().add(at), w[g]);
                    }
                }
            }
        }
    }
}

/// Returns row `index` of an array of a panel.
#[inline(always)]
unsafe fn row_of<T, const N: usize>(rows: *mut [[T; TILE_ROWS]; N], index: usize) -> *mut T {
    // SAFETY: the caller vouches for the panel and the index.
    unsafe { rows.cast::<T>().add(index * TILE_ROWS) }
}

/// Moves quants so that eight columns of a row are adjacent. The fours of columns `8 k ..` and `8 k + 4 ..`
/// of eight rows become the eights of the first four rows, then those of the other four.
///
/// # Safety
/// The processor has the features of `S`, which has matrices, and the panel has the quants of `n_subs`
/// groups.
#[inline(always)]
unsafe fn arrange_eights<S: Simd>(panel: *mut Panel, n_subs: usize) {
    // SAFETY: the caller vouches for the panel.
    let quants = unsafe { (&raw mut (*panel).quants).cast::<u8>() };
    for g in (0..n_subs * 8).step_by(2) {
        for half in 0..S::HALVES {
            let at = g * 64 + half * half_bytes::<S>();
            // SAFETY: both vectors are inside the quants of `n_subs` groups.
            unsafe {
                let (first, second) = (quants.add(at), quants.add(at + 64));
                let [low, high] = S::zip32(S::load(first), S::load(second));
                S::store(first, low);
                S::store(second, high);
            }
        }
    }
}

/// Multiplies one or two tiles with many rows.
///
/// # Safety
/// The contract of [`TileRun`] holds, and its tiles are packed in format `T`.
#[inline(always)]
pub(crate) unsafe fn products<S: Simd, T: QuantTile>(run: &TileRun) {
    // SAFETY: the caller's contract is that of `TileRun`.
    unsafe {
        // Panels are filled span by span; parts that a span or a class does not have are neither written nor
        // read.
        let mut panels = MaybeUninit::<[Panel; 2]>::uninit();
        let panels = panels.as_mut_ptr().cast::<Panel>();
        for row in 0..run.n_rows {
            for at in (0..run.n_tiles * TILE_ROWS).step_by(S::LANES) {
                S::store_f32(run.sums.add(row * PAIR_ROWS + at), S::splat_f32(0.0));
            }
        }
        for span_idx in 0..n_spans(run.n_cols) {
            let n_subs = n_subs(run.n_cols, span_idx);
            for tile_idx in 0..run.n_tiles {
                let ptr = run
                    .tiles
                    .add(tile_idx * run.tile_bytes + span_idx * T::span_bytes(SPAN_SUBS));
                let panel = panels.add(tile_idx);
                S::call(FillPanel::<T>::new(Span { ptr, n_subs }, panel));
                if const { S::HAS_MATRIX } {
                    arrange_eights::<S>(panel, n_subs);
                }
            }
            let blocks = run.blocks.add(span_idx * run.block_stride);
            // Vectors of weight rows are taken in pairs, so that each broadcast activation is used twice.
            let n_vectors = run.n_tiles * S::HALVES;
            let ahead = Ahead::new::<T>(run, span_idx, run.n_rows * n_vectors.div_ceil(2));
            for vector_idx in (0..n_vectors).step_by(2) {
                let job = PanelJob {
                    panels,
                    vector_idx,
                    n_subs,
                    bias_bits: T::BIAS_BITS,
                    blocks,
                    sums: run.sums.add(vector_idx * S::LANES),
                    ahead: ahead.behind(vector_idx / 2 * run.n_rows),
                };
                if n_vectors - vector_idx >= 2 {
                    panel_rows::<S, T::Class, 2>(job, run.n_rows);
                } else {
                    panel_rows::<S, T::Class, 1>(job, run.n_rows);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn panel_rows<S: Simd, C: Class, const VECTORS: usize>(job: PanelJob, n_rows: usize) {
    let mut row_idx = 0;
    while row_idx < n_rows {
        // SAFETY: `n_rows` rows of blocks and sums follow the pointers.
        unsafe {
            let part = PanelJob {
                blocks: job.blocks.add(row_idx),
                sums: job.sums.add(row_idx * PAIR_ROWS),
                ahead: job.ahead.behind(row_idx),
                ..job
            };
            let n_left = n_rows - row_idx;
            // Eight rows are taken as four and four: two rows alone have too few sums to hide the latency of
            // products.
            row_idx += match if n_left == 8 { 4 } else { n_left } {
                6.. if const { S::MAX_ROWS >= 6 } => PanelRows::<C, VECTORS, 6>::call::<S>(part),
                4.. if const { S::MAX_ROWS >= 4 } => PanelRows::<C, VECTORS, 4>::call::<S>(part),
                2.. => PanelRows::<C, VECTORS, 2>::call::<S>(part),
                _ => PanelRows::<C, VECTORS, 1>::call::<S>(part),
            };
        }
    }
}

#[derive(Clone, Copy)]
struct PanelJob {
    /// One or two panels, with all parts that the span and the class have.
    panels: *const Panel,
    /// The index of the first vector of weight rows, counted over both panels.
    vector_idx: usize,
    n_subs: usize,
    bias_bits: Option<u32>,
    blocks: *const ActivationBlock,
    sums: *mut f32,
    ahead: Ahead,
}

/// Lines of tiles to prefetch while rows are multiplied, a few at a time. To prefetch the lines of a whole
/// span while a panel is filled would be more than a core can have in flight.
#[derive(Clone, Copy)]
struct Ahead {
    /// The address of the first line of each tile.
    tiles: [*const u8; 2],
    /// The number of bytes from there to the end of the tile. The lines after it belong to the next two
    /// tiles, `skipped` bytes further.
    n_left: usize,
    skipped: usize,
    /// The number of lines per row of activations, in units of 1/65,536.
    lines_per_row: usize,
    /// The number of rows whose lines were prefetched; each row occurs once per two vectors of weight rows.
    first_row: usize,
}

impl Ahead {
    /// Creates the lines that begin [`PREFETCH_BYTES`] after the start of a span, divided among `n_rows`
    /// rows.
    #[inline(always)]
    fn new<T: QuantTile>(run: &TileRun, span_idx: usize, n_rows: usize) -> Self {
        let at = span_idx * T::span_bytes(SPAN_SUBS) + PREFETCH_BYTES;
        let first = run.tiles.wrapping_add(at);
        let n_lines = T::span_bytes(SPAN_SUBS).div_ceil(64);
        // A single tile is two halves, and the next tile follows it.
        let (second, skipped) = match run.n_tiles {
            1 => (n_lines.div_ceil(2) * 64, 0),
            _ => (run.tile_bytes, run.tile_bytes),
        };
        let n_lines = run.n_tiles * n_lines;
        Self {
            tiles: [first, first.wrapping_add(second)],
            n_left: run.tile_bytes.saturating_sub(at),
            skipped,
            lines_per_row: (n_lines << 16).div_ceil(n_rows),
            first_row: 0,
        }
    }

    #[inline(always)]
    fn behind(self, n_rows: usize) -> Self {
        Self {
            first_row: self.first_row + n_rows,
            ..self
        }
    }

    /// Prefetches the lines of the next `n_rows` rows that belong to one of `n_runs` runs of columns.
    #[inline(always)]
    fn prefetch<S: Simd>(&self, n_rows: usize, run: usize, n_runs: usize) {
        let first = (self.first_row * self.lines_per_row) >> 16;
        let until = ((self.first_row + n_rows) * self.lines_per_row) >> 16;
        let n = (until - first).div_ceil(n_runs);
        // The fence keeps the compiler from moving all prefetches to the beginning.
        compiler_fence(Ordering::SeqCst);
        for line in first + run * n..(first + (run + 1) * n).min(until) {
            let at = 64 * (line / 2);
            let skipped = if at < self.n_left { 0 } else { self.skipped };
            S::prefetch(self.tiles[line % 2].wrapping_add(at + skipped));
        }
    }
}

/// The products of one span: `VECTORS` vectors of weight rows by `ROWS` rows of activations.
struct PanelRows<C, const VECTORS: usize, const ROWS: usize> {
    job: PanelJob,
    class: std::marker::PhantomData<C>,
}

impl<C: Class, const VECTORS: usize, const ROWS: usize> PanelRows<C, VECTORS, ROWS> {
    /// Runs the kernel as a separate function, and returns `ROWS`.
    #[inline(always)]
    unsafe fn call<S: Simd>(job: PanelJob) -> usize {
        // SAFETY: the caller's contract is the kernel's.
        unsafe {
            S::call(Self {
                job,
                class: std::marker::PhantomData,
            });
        }
        ROWS
    }
}

impl<C: Class, const VECTORS: usize, const ROWS: usize> Kernel for PanelRows<C, VECTORS, ROWS> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let PanelJob {
            panels,
            vector_idx,
            n_subs,
            bias_bits,
            blocks,
            sums,
            ahead,
        } = self.job;
        // SAFETY: the kernel's own contract; panels have all groups, runs and pairs of a span.
        unsafe {
            // All loops count: an iterator over vectors that is not inlined has no features, and is slow.
            let mut vectors = [PanelVector::new::<S>(panels, vector_idx, sums); VECTORS];
            for v in 0..VECTORS {
                vectors[v] = PanelVector::new::<S>(panels, vector_idx + v, sums.add(v * S::LANES));
            }
            let mut parts = [[S::splat_f32(0.0); ROWS]; VECTORS];
            if C::ACTIVATION_SCALES == ScaleSpan::Sub {
                for v in 0..VECTORS {
                    for row in 0..ROWS {
                        parts[v][row] = S::load_f32(vectors[v].sums.add(row * PAIR_ROWS));
                    }
                }
            }
            let run_len = 8 / C::SUB_RUNS;
            for run in 0..n_subs * C::SUB_RUNS {
                ahead.prefetch::<S>(ROWS, run, SPAN_SUBS * C::SUB_RUNS);
                let mut acc = [[S::splat(0); ROWS]; VECTORS];
                for row in 0..ROWS {
                    let start = start::<S, C>(blocks.add(row), run, bias_bits);
                    for v in 0..VECTORS {
                        acc[v][row] = start;
                    }
                }
                let fours = run * run_len..(run + 1) * run_len;
                if const { S::HAS_MATRIX } {
                    dot_matrices::<S, VECTORS, ROWS>(&mut acc, &vectors, blocks, fours);
                } else {
                    for g in fours {
                        let mut w = [S::splat(0); VECTORS];
                        for v in 0..VECTORS {
                            w[v] = S::load(vectors[v].quants().add(64 * g));
                        }
                        for row in 0..ROWS {
                            let x =
                                S::load_splat((&raw const (*blocks.add(row)).quants).cast::<u8>().add(4 * g));
                            for v in 0..VECTORS {
                                acc[v][row] = dot::<S, C>(acc[v][row], w[v], x);
                            }
                        }
                    }
                }
                for v in 0..VECTORS {
                    let PanelVector { panel, first, .. } = vectors[v];
                    let scale = S::load_f32(row_of((&raw const (*panel).scale).cast_mut(), run).add(first));
                    for row in 0..ROWS {
                        parts[v][row] =
                            add_run::<S, C>(parts[v][row], acc[v][row], scale, blocks.add(row), run);
                    }
                    if C::HAS_OFFSETS {
                        let offset =
                            S::load_f32(row_of((&raw const (*panel).offset).cast_mut(), run).add(first));
                        for row in 0..ROWS {
                            parts[v][row] = add_offset::<S>(parts[v][row], offset, blocks.add(row), run);
                        }
                    }
                }
            }
            for v in 0..VECTORS {
                let PanelVector { panel, first, sums } = vectors[v];
                for row in 0..ROWS {
                    let block = blocks.add(row);
                    let at = sums.add(row * PAIR_ROWS);
                    let mut total = parts[v][row];
                    if C::HAS_MINS {
                        let mut sum = S::splat(0);
                        for pair in 0..C::MIN_PAIRS {
                            let mins = S::load(
                                row_of((&raw const (*panel).min_pairs).cast_mut(), pair)
                                    .add(first)
                                    .cast(),
                            );
                            sum = add_min_pair::<S, C>(sum, mins, block, pair);
                        }
                        let neg_min_scale = (&raw const (*panel).neg_min_scale).cast::<f32>().add(first);
                        let neg_min_scale = S::load_f32(neg_min_scale);
                        total = S::fma(S::to_f32(sum), neg_min_scale, total);
                    }
                    if C::ACTIVATION_SCALES == ScaleSpan::Span {
                        total = end_span::<S>(S::load_f32(at), total, block);
                    }
                    S::store_f32(at, total);
                }
            }
        }
    }
}

/// Adds the products of columns in eights to sums that start as those of each row do.
///
/// # Safety
/// As for [`PanelRows`]; the panels were arranged in eights, and `fours` is an even number of groups of four
/// columns.
#[inline(always)]
unsafe fn dot_matrices<S: Simd, const VECTORS: usize, const ROWS: usize>(
    acc: &mut [[S::I; ROWS]; VECTORS],
    vectors: &[PanelVector; VECTORS],
    blocks: *const ActivationBlock,
    fours: std::ops::Range<usize>,
) {
    // SAFETY: the caller's contract.
    unsafe {
        // Two rows of activations each; with an odd number the last row is by itself.
        let mut sums = [[[S::splat(0); 2]; ROWS]; VECTORS];
        for v in 0..VECTORS {
            for row in (0..ROWS).step_by(2) {
                let other = if row + 1 < ROWS { row + 1 } else { row };
                sums[v][row] = S::zip32(acc[v][row], acc[v][other]);
            }
        }
        for g in fours.step_by(2) {
            let mut w = [[S::splat(0); 2]; VECTORS];
            for v in 0..VECTORS {
                let quants = vectors[v].quants().add(64 * g);
                w[v] = [S::load(quants), S::load(quants.add(64))];
            }
            for row in (0..ROWS).step_by(2) {
                let other = if row + 1 < ROWS { row + 1 } else { row };
                let x = [
                    (&raw const (*blocks.add(row)).quants).cast::<u8>().add(4 * g),
                    (&raw const (*blocks.add(other)).quants).cast::<u8>().add(4 * g),
                ];
                for v in 0..VECTORS {
                    sums[v][row] = S::dot_eights(sums[v][row], w[v], x);
                }
            }
        }
        for v in 0..VECTORS {
            for row in (0..ROWS).step_by(2) {
                let [first, second] = S::unzip32(sums[v][row]);
                acc[v][row] = first;
                if row + 1 < ROWS {
                    acc[v][row + 1] = second;
                }
            }
        }
    }
}

/// A vector of weight rows of a panel, and the address of its sums.
#[derive(Clone, Copy)]
struct PanelVector {
    panel: *const Panel,
    /// The first row.
    first: usize,
    sums: *mut f32,
}

impl PanelVector {
    #[inline(always)]
    unsafe fn new<S: Simd>(panels: *const Panel, vector_idx: usize, sums: *mut f32) -> Self {
        Self {
            // SAFETY: the caller vouches for the panel of this vector.
            panel: unsafe { panels.add(vector_idx / S::HALVES) },
            first: vector_idx % S::HALVES * S::LANES,
            sums,
        }
    }

    #[inline(always)]
    unsafe fn quants(&self) -> *const u8 {
        // SAFETY: a panel has four bytes for each of its rows in a group of columns.
        unsafe { (&raw const (*self.panel).quants).cast::<u8>().add(4 * self.first) }
    }
}
