//! [`adapt`]: adds what adapters make of some rows to the products of a linear map.
//!
//! Separate from the products themselves, which know no adapter. Invariant: an element is a function of its own row and its
//! adapter's weights, reduced in one order, whatever other rows there are.
//!
//! ```text
//! small = A x        [rank], of each row
//! out  += scale * B small
//! ```

use std::ops::Range;

use tokenmill_cpu_kernels::{Activations, PAIR_ROWS, TILE_ROWS};

use crate::{
    Host, Matrix, Workspace,
    linear::{TOKEN_BLOCK, chunk_of},
    pool::{Columns, Few, Patches, Rect},
    workspace::{SUMS_LEN, grown},
};

/// Most products that are adapted as one job.
pub(crate) const MAX_TARGETS: usize = 4;

/// Parts of a job for each thread, of which a thread that ends early takes those of others.
const PARTS_PER_THREAD: usize = 4;

/// A product that adapters change.
pub(crate) struct AdaptTarget<'a> {
    /// The product, `[n_rows, n_out]`.
    pub(crate) out: &'a mut [f32],
    /// Its width.
    pub(crate) n_out: usize,
}

/// Rows of a product that one adapter changes.
#[derive(Clone, Debug)]
pub(crate) struct AdaptedRows {
    /// Which of the products.
    pub(crate) target_idx: usize,
    /// Which of the adapters.
    pub(crate) adapter_idx: usize,
    /// The rows.
    pub(crate) rows: Range<usize>,
}

/// How an adapter changes a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    /// `[rank, n_in]`, floats.
    pub(crate) a: &'a Matrix,
    /// `[n_out, rank]`, floats.
    pub(crate) b: &'a Matrix,
    /// Multiplies the change.
    pub(crate) scale: f32,
}

/// Memory that is kept from step to step.
#[derive(Debug, Default)]
pub(crate) struct AdaptScratch {
    /// `A x` of all pieces, one after the other.
    small: Vec<f32>,
    /// The place of each piece there.
    rects: Vec<Rect>,
    /// The rows of each piece, and which of the caller's it is of.
    pieces: Vec<(usize, Range<usize>)>,
}

/// Adds to the rows of each product that `adapted` names what `change_of` says of them; `x` is the input of all products,
/// `[n_rows, n_in]`. A row of a product is named once.
///
/// # Panics
/// When the shapes contradict each other.
pub(crate) fn adapt<'c>(
    host: &Host,
    workspace: &mut Workspace,
    scratch: &mut AdaptScratch,
    x: &[f32],
    adapted: &[AdaptedRows],
    change_of: impl Fn(&AdaptedRows) -> Change<'c> + Sync,
    mut targets: [Option<AdaptTarget<'_>>; MAX_TARGETS],
) {
    let Some(first) = adapted.first() else { return };
    let n_in = change_of(first).a.n_cols();
    let widths = targets
        .each_ref()
        .map(|target| target.as_ref().map_or(0, |target| target.n_out));
    let AdaptScratch { small, rects, pieces } = scratch;
    rects.clear();
    pieces.clear();
    // So many rows at a time that all threads have something to do, and a tile of a matrix serves several rows.
    let n_rows: usize = adapted.iter().map(|adapted| adapted.rows.len()).sum();
    let piece_rows = n_rows
        .div_ceil(PARTS_PER_THREAD * host.pool().n_threads())
        .clamp(1, TOKEN_BLOCK / 2);
    let mut n_small = 0;
    for (idx, adapted) in adapted.iter().enumerate() {
        let Change { a, b, .. } = change_of(adapted);
        let rank = a.n_rows();
        assert_eq!(
            [a.n_cols(), b.n_cols(), b.n_rows()],
            [n_in, rank, widths[adapted.target_idx]],
            "shapes of an adapter's matrices"
        );
        for start in adapted.rows.clone().step_by(piece_rows) {
            let rows = start..adapted.rows.end.min(start + piece_rows);
            let end = n_small + rows.len() * rank;
            rects.push(Rect {
                rows: n_small..end,
                cols: 0..1,
            });
            n_small = end;
            pieces.push((idx, rows));
        }
    }
    let small = grown(small, n_small);
    let inputs = floats(x, n_in);
    let parts = Patches::new(small, 1, rects);
    let features = host.features();
    host.pool().for_each_part_with(
        &mut workspace.per_thread,
        parts,
        |scratch, piece_idx, mut small| {
            let (idx, rows) = &pieces[piece_idx];
            let a = change_of(&adapted[*idx]).a;
            let sums = grown(&mut scratch.sums, SUMS_LEN);
            let small = small.all();
            for_each_run(a, 0..a.n_tiles(), rows.len(), |run, cols| {
                a.products(features, run, &inputs, (rows.start, rows.len()), sums);
                let small = small.chunks_exact_mut(a.n_rows());
                for (small, sums) in small.zip(sums.chunks_exact(sum_stride(run))) {
                    small[cols.clone()].copy_from_slice(&sums[..cols.len()]);
                }
            });
        },
    );
    let small = &*small;
    let n_tiles: usize = widths.iter().map(|n_out| n_out.div_ceil(TILE_ROWS)).sum();
    // A tile has few columns, so a part of a few tiles would be mostly calls.
    let chunk_tiles = n_tiles
        .div_ceil(PARTS_PER_THREAD * host.pool().n_threads())
        .max(2);
    let outs = Few::<_, MAX_TARGETS>::new(
        (targets.iter_mut().flatten())
            .map(|target| Columns::new(target.out, target.n_out, chunk_tiles * TILE_ROWS)),
    );
    host.pool().for_each_part_with(
        &mut workspace.per_thread,
        outs,
        |scratch, _, (target_idx, chunk_idx, mut out)| {
            let tiles = chunk_of(chunk_idx, chunk_tiles, widths[target_idx].div_ceil(TILE_ROWS));
            let first_col = tiles.start * TILE_ROWS;
            let sums = grown(&mut scratch.sums, SUMS_LEN);
            for ((idx, rows), place) in pieces.iter().zip(&*rects) {
                if adapted[*idx].target_idx != target_idx {
                    continue;
                }
                let Change { b, scale, .. } = change_of(&adapted[*idx]);
                let small = floats(&small[place.rows.clone()], b.n_cols());
                for_each_run(b, tiles.clone(), rows.len(), |run, cols| {
                    b.products(features, run, &small, (0, rows.len()), sums);
                    for (row, sums) in rows.clone().zip(sums.chunks_exact(sum_stride(run))) {
                        let out = &mut out.row(row)[cols.start - first_col..cols.end - first_col];
                        for (out, sum) in out.iter_mut().zip(sums) {
                            *out += scale * sum;
                        }
                    }
                });
            }
        },
    );
}

/// Rows of floats.
fn floats(x: &[f32], n_cols: usize) -> Activations<'_> {
    Activations {
        x,
        sub_blocks: &[],
        span_blocks: &[],
        n_tokens: x.len() / n_cols,
        n_cols,
    }
}

/// Calls `f` for as many neighbouring tiles at a time as there is room for the sums of `n_rows` rows, with the first tile and their number, and with
/// the rows of the matrix that they hold.
fn for_each_run(
    matrix: &Matrix,
    tiles: Range<usize>,
    n_rows: usize,
    mut f: impl FnMut((usize, usize), Range<usize>),
) {
    let most = (SUMS_LEN / (n_rows * TILE_ROWS)).max(2);
    for first_tile in tiles.clone().step_by(most) {
        let n_tiles = (tiles.end - first_tile).min(most);
        let end = matrix.n_rows().min((first_tile + n_tiles) * TILE_ROWS);
        f((first_tile, n_tiles), first_tile * TILE_ROWS..end);
    }
}

/// Sums of a row of `n_tiles` tiles, as [`Matrix::products`] writes them.
fn sum_stride((_, n_tiles): (usize, usize)) -> usize {
    PAIR_ROWS.max(n_tiles * TILE_ROWS)
}
