//! Checks the changes that adapters add to products, for each type of an adapter's matrices.
//!
//! They run for every model, because a server can load adapters at any time.

use tokenmill_gguf::TensorType;

use super::{
    Finding, Wrong, check,
    expected::{Numbers, compare},
    known::Known,
};
use crate::{AdaptedProduct, AdapterTable, AdapterTiles, Change, ChangedRows, Device, MatrixUse, Ops};

/// Types of an adapter's matrices.
const TYPES: [TensorType; 3] = [TensorType::F32, TensorType::F16, TensorType::BF16];
/// The use of an adapter's matrices.
const CHANGE: MatrixUse = MatrixUse {
    is_table: false,
    is_factor: false,
    is_of_experts: false,
};
/// Columns: more than a thread block multiplies.
const N_IN: usize = 520;
/// Outputs: more than a thread block has.
const N_OUT: usize = 130;
/// Rank of the change: more than a thread block computes.
const RANK: usize = 18;
/// Rows, most of which have the adapter: more than a tile.
const N_ROWS: usize = 22;
const SCALE: f32 = 0.5;

/// Checks all types.
pub(super) fn check_all(device: &Device, ops: &Ops) -> Result<usize, Finding> {
    for ty in TYPES {
        let what = format!("the changes of an adapter of {}", ty.name());
        check(device, what, || adapt(device, ops, ty))?;
    }
    Ok(TYPES.len())
}

/// Adds the change of an adapter to one of two products, for some of the rows.
fn adapt(device: &Device, ops: &Ops, ty: TensorType) -> Result<(), Wrong> {
    let mut numbers = Numbers(500 + ty as u64);
    let a = Known::new(device, (ty, CHANGE), [RANK, N_IN], &mut numbers)?;
    let b = Known::new(device, (ty, CHANGE), [N_OUT, RANK], &mut numbers)?;
    let change = Change {
        a: &a.matrix,
        b: &b.matrix,
        scale: SCALE,
    };
    let table = AdapterTable::new(device, [Some(change), None].into_iter())?;
    let has_adapter = |row: &usize| row % 5 != 3;
    let mut tiles = AdapterTiles::default();
    tiles.add(&table, (0..N_ROWS).filter(has_adapter));
    // A captured step has empty tiles after them.
    tiles.pad(N_ROWS, 3);
    let x = numbers.take(N_ROWS * N_IN);
    let before = [(); 2].map(|()| numbers.take(N_ROWS * N_OUT));
    let floats = |values: &[f32]| device.upload("the check of kernels", values);
    let words = |values: &[u32]| device.upload("the check of kernels", values);
    let (input, on_tiles, on_rows) = (floats(&x)?, words(tiles.tiles())?, words(tiles.rows())?);
    let mut outputs = [floats(&before[0])?, floats(&before[1])?];
    let scratch_len = Ops::adapter_scratch_len(N_ROWS, N_IN, RANK);
    let mut scratch = device.alloc::<f32>("the check of kernels", scratch_len)?;
    let rows = ChangedRows {
        n_rows: N_ROWS,
        input: input.view(),
        tiles: on_tiles.view(),
        rows: on_rows.view(),
        max_rank: RANK,
    };
    let mut products: Vec<AdaptedProduct<'_>> = ((0..).zip(&mut outputs))
        .map(|(place, output)| AdaptedProduct {
            place,
            n_out: N_OUT,
            output: output.view_mut(),
        })
        .collect();
    ops.adapt(&rows, N_IN, &mut products, &mut scratch)?;
    let small: Vec<f32> = a.times(&x).into_iter().map(|value| value as f32).collect();
    let changes = b.times(&small);
    let changed = |place: usize| -> Vec<f64> {
        (before[place].iter().zip(&changes).enumerate())
            .map(|(index, (&y, change))| {
                let is_changed = place == 0 && has_adapter(&(index / N_OUT));
                let scale = if is_changed { SCALE } else { 0.0 };
                f64::from(y) + f64::from(scale) * change
            })
            .collect()
    };
    for (place, output) in outputs.iter().enumerate() {
        compare(&device.download(output.view())?, &changed(place))?;
    }
    Ok(())
}
