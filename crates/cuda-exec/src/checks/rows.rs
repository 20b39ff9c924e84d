//! Checks the norms of rows and of heads, and rope.

use tokenmill_backend::{Norm, NormKind, Rope, RopeAxes, RopeStyle};

use super::{
    Finding, Wrong, check,
    expected::{Numbers, compare},
};
use crate::{Buffer, Device, Ops, error::Result};

/// Number of rows.
const N_ROWS: usize = 3;
const WIDTH: usize = 512;
/// Widths of rows that are normed: each kernel that holds a row, and the one for wider rows.
const WIDTHS: [usize; 3] = [WIDTH, 4608, 8704];
/// Width of a head that is rotated.
const HEAD_DIM: usize = 64;
/// Widths of heads that are normed: by a warp, and by a thread block.
const HEAD_DIMS: [usize; 2] = [HEAD_DIM, WIDTH];
pub(super) const EPS: f32 = 1e-5;

/// Checks all row kernels.
pub(super) fn check_all(device: &Device, ops: &Ops) -> Result<usize, Finding> {
    for width in WIDTHS {
        let what = format!("the norm of rows of {width}");
        check(device, what, || norm(device, ops, width))?;
    }
    for dim in HEAD_DIMS {
        let what = format!("the norm of heads of {dim}");
        check(device, what, || norm_heads(device, ops, dim))?;
    }
    check(device, "the rotation of heads".to_owned(), || {
        rotation(device, ops)
    })?;
    let what = "the rotation of heads by time, row and column";
    check(device, what.to_owned(), || rotation_by_axes(device, ops))?;
    Ok(WIDTHS.len() + HEAD_DIMS.len() + 2)
}

fn rms(device: &Device, weight: &[f32]) -> Result<Norm<Buffer<f32>>> {
    Ok(Norm {
        kind: NormKind::Rms,
        width: weight.len(),
        weight: Some(device.upload("the check of kernels", weight)?),
        bias: None,
        eps: EPS,
    })
}

/// Normalizes each run of `weight.len()` values.
pub(super) fn normed(rows: &[f64], weight: &[f32]) -> Vec<f64> {
    let of_run = |run: &[f64]| {
        let squares: f64 = run.iter().map(|x| x * x).sum();
        let root = (squares / run.len() as f64 + f64::from(EPS)).sqrt();
        (run.iter().zip(weight))
            .map(|(x, &weight)| x / root * f64::from(weight))
            .collect::<Vec<_>>()
    };
    rows.chunks(weight.len()).flat_map(of_run).collect()
}

fn norm(device: &Device, ops: &Ops, width: usize) -> Result<(), Wrong> {
    let mut numbers = Numbers(1);
    let [hidden, delta] = [(); 2].map(|()| numbers.take(N_ROWS * width));
    let weight = numbers.take(width);
    let norm = rms(device, &weight)?;
    let mut on_device = device.upload("the check of kernels", &hidden)?;
    let added = device.upload("the check of kernels", &delta)?;
    let mut output = device.alloc::<f32>("the check of kernels", N_ROWS * width)?;
    ops.add_norm(
        &norm,
        N_ROWS,
        (0.5, added.view()),
        on_device.view_mut(),
        output.view_mut(),
        None,
    )?;
    let sums: Vec<f64> = (hidden.iter().zip(&delta))
        .map(|(&x, &delta)| f64::from(x) + 0.5 * f64::from(delta))
        .collect();
    compare(&device.download(on_device.view())?, &sums)?;
    compare(&device.download(output.view())?, &normed(&sums, &weight))
}

fn norm_heads(device: &Device, ops: &Ops, dim: usize) -> Result<(), Wrong> {
    let mut numbers = Numbers(2);
    let (rows, weight) = (numbers.take(N_ROWS * WIDTH), numbers.take(dim));
    let norm = rms(device, &weight)?;
    let mut on_device = device.upload("the check of kernels", &rows)?;
    ops.norm_in_place(&norm, N_ROWS, WIDTH, on_device.view_mut())?;
    let rows: Vec<f64> = rows.iter().map(|&x| f64::from(x)).collect();
    compare(&device.download(on_device.view())?, &normed(&rows, &weight))
}

/// Makes a rope, and its frequencies on the host.
fn rope(device: &Device, axes: RopeAxes) -> Result<(Rope<Buffer<f32>>, Vec<f32>)> {
    let inv_freqs: Vec<f32> = (0..HEAD_DIM / 2)
        .map(|i| 10_000f32.powf(-2.0 * i as f32 / HEAD_DIM as f32))
        .collect();
    let rope = Rope {
        style: RopeStyle::Neox,
        head_dim: HEAD_DIM,
        n_dims: HEAD_DIM,
        inv_freqs: device.upload("the check of kernels", &inv_freqs)?,
        magnitude: 1.0,
        axes,
    };
    Ok((rope, inv_freqs))
}

/// Rotates each pair of the heads of a row; `position` is that of a pair.
fn rotated(row: &[f32], inv_freqs: &[f32], position: impl Fn(usize) -> u32) -> Vec<f64> {
    let mut row: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
    let half = inv_freqs.len();
    for head in row.chunks_mut(HEAD_DIM) {
        for (i, &inv_freq) in inv_freqs.iter().enumerate() {
            let (sin, cos) = f64::from(position(i) as f32 * inv_freq).sin_cos();
            let (a, b) = (head[i], head[i + half]);
            (head[i], head[i + half]) = (a * cos - b * sin, a * sin + b * cos);
        }
    }
    row
}

fn rotation(device: &Device, ops: &Ops) -> Result<(), Wrong> {
    let rows = Numbers(3).take(N_ROWS * WIDTH);
    let (rope, inv_freqs) = rope(device, RopeAxes::One)?;
    let positions: [u32; N_ROWS] = [0, 7, 1000];
    let on_positions = device.upload("the check of kernels", &positions)?;
    let mut on_device = device.upload("the check of kernels", &rows)?;
    ops.rope(&rope, on_positions.view(), WIDTH, on_device.view_mut())?;
    let expected: Vec<f64> = (rows.chunks(WIDTH).zip(positions))
        .flat_map(|(row, position)| rotated(row, &inv_freqs, |_| position))
        .collect();
    compare(&device.download(on_device.view())?, &expected)
}

fn rotation_by_axes(device: &Device, ops: &Ops) -> Result<(), Wrong> {
    let rows = Numbers(4).take(N_ROWS * WIDTH);
    let positions: [[u32; 3]; N_ROWS] = [[0, 3, 9], [7, 0, 40], [1000, 12, 5]];
    for axes in [
        RopeAxes::Sections([12, 10, 10]),
        RopeAxes::Interleaved([12, 10, 10]),
    ] {
        let (rope, inv_freqs) = rope(device, axes)?;
        let on_positions = device.upload("the check of kernels", positions.as_flattened())?;
        let mut on_device = device.upload("the check of kernels", &rows)?;
        ops.rope_axes(&rope, on_positions.view(), WIDTH, on_device.view_mut())?;
        let position = |of_token: [u32; 3], pair| of_token[axes.of_pair(pair).unwrap_or(0)];
        let expected: Vec<f64> = (rows.chunks(WIDTH).zip(positions))
            .flat_map(|(row, of_token)| rotated(row, &inv_freqs, |pair| position(of_token, pair)))
            .collect();
        compare(&device.download(on_device.view())?, &expected)?;
    }
    Ok(())
}
