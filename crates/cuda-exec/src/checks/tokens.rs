//! Checks the two ends of a step: the look-up of tokens in tables of each type, and the likeliest token of a row of logits.

use tokenmill_gguf::TensorType;

use super::{
    Finding, Wrong, check,
    expected::{Numbers, compare},
    known::{Known, WIDTH},
};
use crate::{ArgmaxScratch, Device, MatrixUse, Ops, TokenIds, error::Result};

/// The use of a table.
const TABLE: MatrixUse = MatrixUse {
    is_table: true,
    is_factor: false,
    is_of_experts: false,
};
/// Rows of a table.
const N_ROWS: usize = 70;
/// Factor of the rows.
const SCALE: f32 = 1.5;
/// Marks a token by its row in the sampled tokens of the step before.
pub(super) const SAMPLED: u32 = 1 << 31;
/// Logits of a row: several parts of the kernel, the last of which is not full.
const N_VOCAB: usize = 5000;
/// Places of the likeliest tokens, one a row.
const LIKELIEST: [usize; 4] = [0, 4999, 2048, 2047];

/// Checks tables of these types, and the likeliest token.
pub(super) fn check_all(device: &Device, ops: &Ops, types: &[TensorType]) -> Result<usize, Finding> {
    for &ty in types {
        let what = format!("the look-up of tokens in a table of {}", ty.name());
        check(device, what, || look_up(device, ops, ty))?;
    }
    check(device, "the likeliest token".to_owned(), || {
        likeliest(device, ops)
    })?;
    Ok(types.len() + 1)
}

fn look_up(device: &Device, ops: &Ops, ty: TensorType) -> Result<(), Wrong> {
    let table = Known::new(
        device,
        (ty, TABLE),
        [N_ROWS, WIDTH],
        &mut Numbers(200 + ty as u64),
    )?;
    let tokens = device.upload("the check of kernels", &[69, 0, SAMPLED | 1, 33])?;
    let sampled = device.upload("the check of kernels", &[7, 61])?;
    let ids = TokenIds {
        tokens: tokens.view(),
        sampled: sampled.view(),
    };
    let mut y = device.alloc::<f32>("the check of kernels", 4 * WIDTH)?;
    ops.embed(&table.matrix, ids, SCALE, y.view_mut())?;
    let expected: Vec<f64> = ([69, 0, 61, 33].iter())
        .flat_map(|&token: &usize| &table.rows[token])
        .map(|&x| f64::from(SCALE) * f64::from(x))
        .collect();
    compare(&device.download(y.view())?, &expected)
}

fn likeliest(device: &Device, ops: &Ops) -> Result<(), Wrong> {
    let n_rows = LIKELIEST.len();
    let mut logits = Numbers(23).take(n_rows * N_VOCAB);
    for (row, place) in logits.chunks_mut(N_VOCAB).zip(LIKELIEST) {
        row[place] = 1.5;
    }
    let logits = device.upload("the check of kernels", &logits)?;
    let mut tokens = device.alloc::<u32>("the check of kernels", n_rows)?;
    let mut scratch = ArgmaxScratch::new(device, n_rows, N_VOCAB)?;
    ops.argmax([n_rows, N_VOCAB], logits.view(), tokens.view_mut(), &mut scratch)?;
    let found = device.download(tokens.view())?;
    if found.iter().map(|&token| token as usize).eq(LIKELIEST) {
        return Ok(());
    }
    Err(Wrong::Numbers(format!(
        "the tokens are {found:?} in place of {LIKELIEST:?}"
    )))
}
