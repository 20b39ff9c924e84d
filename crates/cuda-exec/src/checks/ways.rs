//! Checks every kernel that multiplies many rows by matrices of a type, also those that only large products
//! get.
//!
//! The size chooses the kernels of other products. Invariant: each way that the type has is launched,
//! whichever is fastest.

use tokenmill_gguf::TensorType;

use super::{
    Finding, check,
    expected::Numbers,
    known::{FACTOR, Known},
    products::{MOST_ROWS, multiply_by, multiply_gated_by},
};
use crate::{BandHeight, Bands, Device, HalfBands, ManyRows, Ops, Wide, WideCut};

/// Columns of a matrix: two superblocks for each of two thread blocks that share a band.
pub(super) const WIDTH: usize = 1024;
/// Rows of a matrix: more than a band.
const N_OUT: usize = 160;

/// Returns the ways of a type, with the number of rows for each.
fn ways(ops: &Ops, known: &Known) -> Vec<(ManyRows, usize)> {
    let mut ways = Vec::new();
    let kernels = &known.matrix.kernels;
    if let (Some(of_type), Some(_)) = (Bands::of(known.ty), kernels.bands) {
        for height in BandHeight::ALL {
            let rows = height.columns().iter().map(|columns| columns - 3);
            ways.extend(rows.map(|n_rows| (ManyRows::Bands(height), n_rows)));
        }
        if of_type.has_gated() {
            ways.push((ManyRows::Splits(2), 40));
        }
    }
    let room = ops.room_for(MOST_ROWS, WIDTH);
    if room.has_halves && kernels.halves.is_some() {
        ways.extend([1, 2].map(|n_splits| (ManyRows::Halves(n_splits), HalfBands::MIN_ROWS)));
    }
    for &columns in wide_columns(ops, known) {
        let cuts = [1, 2].map(|n_splits| WideCut { columns, n_splits });
        ways.extend(cuts.map(|cut| (ManyRows::Wide(cut), rows_of(columns))));
    }
    ways
}

/// Returns the numbers of rows of x that the kernels for warpgroups take, if the matrix has them.
fn wide_columns(ops: &Ops, known: &Known) -> &'static [usize] {
    let has_tiles = ops.room_for(MOST_ROWS, WIDTH).has_tiles && known.matrix.is_wide();
    let wide = Wide::of(known.ty).filter(|_| has_tiles);
    wide.map_or(&[], Wide::columns)
}

/// Returns a number of rows that a thread block of `columns` rows of x takes at once.
fn rows_of(columns: usize) -> usize {
    (columns - 3).min(MOST_ROWS)
}

/// Checks all types.
pub(super) fn check_all(device: &Device, ops: &Ops, types: &[TensorType]) -> Result<usize, Finding> {
    let mut n_checks = 0;
    for &ty in types {
        let mut numbers = Numbers(400 + ty as u64);
        let mut known = Vec::new();
        check(
            device,
            format!("a wide matrix of {} on the GPU", ty.name()),
            || {
                for _ in 0..2 {
                    known.push(Known::new(device, (ty, FACTOR), [N_OUT, WIDTH], &mut numbers)?);
                }
                Ok(())
            },
        )?;
        let [gate, up] = &known[..] else {
            unreachable!("two matrices were made");
        };
        for (way, n_rows) in ways(ops, gate) {
            let x = numbers.take(n_rows * WIDTH);
            let what = format!("products of {} with {n_rows} rows, {way:?}", ty.name());
            check(device, what, || {
                multiply_by(device, ops, &[gate], &x, |input, products| {
                    ops.linear_by(way, input, products)
                })
            })?;
            n_checks += 1;
        }
        for &columns in wide_columns(ops, gate) {
            let x = numbers.take(rows_of(columns) * WIDTH);
            let what = format!("gated products of {} with {columns} columns", ty.name());
            check(device, what, || {
                multiply_gated_by(device, ops, [gate, up], &x, |input, product| {
                    ops.gated_by(Some(columns), input, product)
                })
            })?;
            n_checks += 1;
        }
    }
    Ok(n_checks)
}
