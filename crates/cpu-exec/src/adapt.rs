//! [`Adapting`] and [`Adding`]: the changes that adapters add to some rows of a linear map's products.
//!
//! The products call it: `A x` is computed before the first product of a group, the rest for each pair of
//! tiles while its sums are in the first-level cache. So `B` is read while the products wait for their
//! instructions, and a group stays one job. Invariant: an element is a function of its own row and its
//! adapter's weights, reduced in one order, whatever other rows there are.
//!
//! ```text
//! small = A x        [rank], of each row
//! out  += scale * B small
//! ```

use std::ops::Range;

use tokenmill_cpu_kernels::{Activations, PAIR_ROWS, TILE_ROWS};

use crate::{
    Host, Matrix,
    pool::{Patches, Rect},
    thread_scratch::{SUMS_LEN, TOKEN_BLOCK, ThreadScratch, grown},
};

/// The number of parts per thread into which the first products are cut, if there are enough rows.
const PARTS_PER_THREAD: usize = 2;

/// Rows of a product that one adapter changes.
#[derive(Clone, Debug)]
pub(crate) struct AdaptedRows {
    /// The index of the product in its group.
    pub(crate) target_idx: usize,
    /// The index of the adapter.
    pub(crate) adapter_idx: usize,
    /// The rows.
    pub(crate) rows: Range<usize>,
}

/// The change that an adapter makes to a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    /// `[rank, n_in]`, floats.
    pub(crate) a: &'a Matrix,
    /// `[n_out, rank]`, floats.
    pub(crate) b: &'a Matrix,
    /// The factor of the change.
    pub(crate) scale: f32,
}

/// Looks up the changes of adapters.
pub(crate) trait Changes: Sync {
    /// Returns the change of these rows.
    fn of(&self, rows: &AdaptedRows) -> Change<'_>;
}

/// Memory that is kept from step to step.
#[derive(Debug, Default)]
pub(crate) struct AdaptScratch {
    /// `A x` of all pieces, one after the other.
    small: Vec<f32>,
    /// The offset in `small` of each of the adapted rows' values.
    starts: Vec<usize>,
    /// The place of each piece in `small`.
    rects: Vec<Rect>,
    /// The adapted rows that each piece belongs to, by index, and the rows of the piece.
    pieces: Vec<(usize, Range<usize>)>,
    /// The indices of the adapted rows, sorted by product and row.
    order: Vec<usize>,
}

/// The changes that adapters make to the products of a group.
pub(crate) struct Adapting<'a> {
    /// The adapted rows; each row of a product occurs once.
    pub(crate) adapted: &'a [AdaptedRows],
    /// The changes of these rows.
    pub(crate) changes: &'a dyn Changes,
    /// Scratch memory to compute the changes in.
    pub(crate) scratch: &'a mut AdaptScratch,
}

impl<'a> Adapting<'a> {
    /// Computes `A x` of all adapted rows. `x` is the input of the group, `[n_rows, n_in]`; `width_of`
    /// returns the width of each product.
    ///
    /// # Panics
    /// If the shapes contradict each other.
    pub(crate) fn begin(
        self,
        host: &Host,
        per_thread: &mut [ThreadScratch],
        x: &[f32],
        n_in: usize,
        width_of: impl Fn(usize) -> usize,
    ) -> Adding<'a> {
        let Self {
            adapted,
            changes,
            scratch,
        } = self;
        let AdaptScratch {
            small,
            starts,
            rects,
            pieces,
            order,
        } = scratch;
        put_in_order(adapted, order);
        starts.clear();
        rects.clear();
        pieces.clear();
        // A piece reads its whole matrix, so it has as many rows as possible while all threads have work.
        let n_rows: usize = adapted.iter().map(|adapted| adapted.rows.len()).sum();
        let piece_rows = n_rows
            .div_ceil(PARTS_PER_THREAD * host.pool().n_threads())
            .clamp(1, TOKEN_BLOCK / 2);
        let mut n_small = 0;
        for (idx, adapted) in adapted.iter().enumerate() {
            let Change { a, b, .. } = changes.of(adapted);
            let rank = a.n_rows();
            assert_eq!(
                [a.n_cols(), b.n_cols(), b.n_rows()],
                [n_in, rank, width_of(adapted.target_idx)],
                "shapes of an adapter's matrices"
            );
            starts.push(n_small);
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
        host.pool()
            .for_each_part_with(per_thread, parts, |scratch, piece_idx, mut small| {
                let (idx, rows) = &pieces[piece_idx];
                let a = changes.of(&adapted[*idx]).a;
                let sums = grown(&mut scratch.sums, SUMS_LEN);
                let small = small.all();
                for_each_run(a, rows.len(), |run, cols| {
                    a.products(features, run, &inputs, (rows.start, rows.len()), sums);
                    let small = small.chunks_exact_mut(a.n_rows());
                    for (small, sums) in small.zip(sums.chunks_exact(sum_stride(run))) {
                        small[cols.clone()].copy_from_slice(&sums[..cols.len()]);
                    }
                });
            });
        Adding {
            adapted,
            changes,
            small,
            starts,
            order,
        }
    }
}

/// Sorts the adapted rows by product and row.
fn put_in_order(adapted: &[AdaptedRows], order: &mut Vec<usize>) {
    order.clear();
    order.extend((0..adapted.len()).filter(|&idx| !adapted[idx].rows.is_empty()));
    order.sort_unstable_by_key(|&idx| (adapted[idx].target_idx, adapted[idx].rows.start));
}

/// Returns the sorted adapted rows that intersect some rows of a product.
fn those_in<'a>(
    adapted: &'a [AdaptedRows],
    order: &'a [usize],
    target_idx: usize,
    rows: Range<usize>,
) -> impl Iterator<Item = usize> + 'a {
    let first = order
        .partition_point(|&idx| (adapted[idx].target_idx, adapted[idx].rows.end) <= (target_idx, rows.start));
    let is_in = move |&idx: &usize| {
        let of = &adapted[idx];
        of.target_idx == target_idx && of.rows.start < rows.end && !rows.is_empty()
    };
    order[first..].iter().copied().take_while(is_in)
}

/// The remaining work of [`Adapting`]: the changes to be added to the products of a group.
#[derive(Clone, Copy)]
pub(crate) struct Adding<'a> {
    adapted: &'a [AdaptedRows],
    changes: &'a dyn Changes,
    small: &'a [f32],
    starts: &'a [usize],
    order: &'a [usize],
}

impl Adding<'_> {
    /// Prefetches the weights that [`Self::add`] will read while the products are computed.
    pub(crate) fn prefetch(
        &self,
        host: &Host,
        target_idx: usize,
        tiles: (usize, usize),
        tokens: (usize, usize),
    ) {
        self.for_each(target_idx, tokens, |change, _, _| {
            change.b.prefetch(host.features(), tiles);
        });
    }

    /// Adds the changes of the adapters to the sums of one or two tiles of a product,
    /// `[n_tokens, PAIR_ROWS]`.
    pub(crate) fn add(
        &self,
        host: &Host,
        target_idx: usize,
        tiles: (usize, usize),
        tokens: (usize, usize),
        sums: &mut [f32],
    ) {
        self.for_each(target_idx, tokens, |Change { b, scale, .. }, small, offset| {
            let (small, sums) = (floats(small, b.n_cols()), &mut sums[offset * PAIR_ROWS..]);
            b.add_products(host.features(), tiles, &small, scale, sums);
        });
    }

    /// Calls `f(change, A x, offset)` for each run of the tokens that an adapter changes; the run begins
    /// `offset` tokens after the first token.
    fn for_each(
        &self,
        target_idx: usize,
        (first_token, n_tokens): (usize, usize),
        mut f: impl FnMut(Change<'_>, &[f32], usize),
    ) {
        let tokens = first_token..first_token + n_tokens;
        for idx in those_in(self.adapted, self.order, target_idx, tokens.clone()) {
            let (adapted, start) = (&self.adapted[idx], self.starts[idx]);
            let first = adapted.rows.start.max(tokens.start);
            let end = adapted.rows.end.min(tokens.end);
            let change = self.changes.of(adapted);
            let rank = change.b.n_cols();
            let small = &self.small[start + (first - adapted.rows.start) * rank..][..(end - first) * rank];
            f(change, small, first - first_token);
        }
    }
}

/// Returns rows of floats as activations.
fn floats(x: &[f32], n_cols: usize) -> Activations<'_> {
    Activations {
        x,
        sub_blocks: &[],
        span_blocks: &[],
        n_tokens: x.len() / n_cols,
        n_cols,
    }
}

/// Calls `f((first tile, tiles), rows of the matrix)` for runs of adjacent tiles, each as long as the
/// sums of `n_rows` rows have space for.
fn for_each_run(matrix: &Matrix, n_rows: usize, mut f: impl FnMut((usize, usize), Range<usize>)) {
    let most = (SUMS_LEN / (n_rows * TILE_ROWS)).max(2);
    for first_tile in (0..matrix.n_tiles()).step_by(most) {
        let n_tiles = (matrix.n_tiles() - first_tile).min(most);
        let end = matrix.n_rows().min((first_tile + n_tiles) * TILE_ROWS);
        f((first_tile, n_tiles), first_tile * TILE_ROWS..end);
    }
}

/// Returns the stride of the sums of `n_tiles` tiles as [`Matrix::products`] writes them.
fn sum_stride((_, n_tiles): (usize, usize)) -> usize {
    PAIR_ROWS.max(n_tiles * TILE_ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_product_are_those_of_a_search_through_all() {
        let mut state = 7u32;
        let mut random = move |n: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as usize % n as usize
        };
        for _ in 0..200 {
            // Runs of rows with gaps, each in some of three products, like the runs of a step.
            let (mut adapted, mut row) = (Vec::new(), 0);
            for adapter_idx in 0..random(12) {
                row += random(3);
                let rows = row..row + random(4);
                row = rows.end;
                for target_idx in (0..3).filter(|_| random(3) > 0) {
                    adapted.push(AdaptedRows {
                        target_idx,
                        adapter_idx,
                        rows: rows.clone(),
                    });
                }
            }
            let mut order = vec![9; 3];
            put_in_order(&adapted, &mut order);
            for target_idx in 0..3 {
                let start = random(20);
                let rows = start..start + random(12);
                let lies_in = |of: &AdaptedRows| {
                    let (first, end) = (of.rows.start.max(rows.start), of.rows.end.min(rows.end));
                    of.target_idx == target_idx && first < end
                };
                let expected: Vec<usize> = (0..adapted.len()).filter(|&idx| lies_in(&adapted[idx])).collect();
                let found: Vec<usize> = those_in(&adapted, &order, target_idx, rows.clone()).collect();
                assert_eq!(found, expected, "{rows:?} of {target_idx} in {adapted:?}");
            }
        }
    }
}
