//! Checks the choice of experts, products by the matrices of experts of each type, and the sum of their results.

use tokenmill_backend::{ExpertScore, Router};
use tokenmill_gguf::TensorType;

use super::{
    Finding, Wrong, check,
    expected::{Numbers, compare, dot},
    known::{Input, Known, WIDTH},
};
use crate::{
    CarriedRows, Device, DeviceRoutes, ExpertRows, MatrixUse, Ops, Product, RouteCounts, View, error::Result,
};

/// The use of matrices of experts.
const EXPERTS: MatrixUse = MatrixUse {
    is_table: false,
    is_factor: false,
    is_of_experts: true,
};
const N_EXPERTS: usize = 4;
/// Experts of a row.
const N_USED: usize = 2;
/// Rows of an expert's matrix.
const N_OUT: usize = 64;
/// Numbers of rows: runs of each length that kernels take.
const ROWS: [usize; 6] = [1, 2, 8, 16, 40, 96];

/// Checks all types.
pub(super) fn check_all(device: &Device, ops: &Ops, types: &[TensorType]) -> Result<usize, Finding> {
    for &ty in types {
        let mut numbers = Numbers(300 + ty as u64);
        let mut known = None;
        check(device, format!("experts of {} on the GPU", ty.name()), || {
            known = Some(Known::new(
                device,
                (ty, EXPERTS),
                [N_EXPERTS * N_OUT, WIDTH],
                &mut numbers,
            )?);
            Ok(())
        })?;
        let known = known.expect("the matrix was made");
        for n_rows in ROWS {
            let what = format!(
                "products of {N_EXPERTS} experts of {} with {n_rows} rows",
                ty.name()
            );
            check(device, what, || {
                multiply(device, ops, &known, n_rows, &mut numbers)
            })?;
        }
    }
    Ok(types.len() * ROWS.len())
}

/// Returns the experts of a row and their weights: the best ones, whose weights are those of a softmax over them.
fn choices(logits: &[f32]) -> Vec<(usize, f64)> {
    let mut order: Vec<usize> = (0..N_EXPERTS).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    order.truncate(N_USED);
    let sum: f64 = order.iter().map(|&expert| f64::from(logits[expert]).exp()).sum();
    (order.into_iter())
        .map(|expert| (expert, f64::from(logits[expert]).exp() / sum))
        .collect()
}

fn multiply(
    device: &Device,
    ops: &Ops,
    known: &Known,
    n_rows: usize,
    numbers: &mut Numbers,
) -> Result<(), Wrong> {
    let (x, logits) = (numbers.take(n_rows * WIDTH), numbers.take(n_rows * N_EXPERTS));
    let input = Input::new(device, ops, &x, WIDTH)?;
    let on_device = device.upload("the check of kernels", &logits)?;
    let router: Router<View<'_, f32>> = Router {
        n_experts: N_EXPERTS,
        n_used: N_USED,
        score: ExpertScore::Softmax,
        choice_bias: None,
        groups: None,
        is_normalized: true,
        scale: 1.0,
        expert_scales: None,
    };
    let mut routes = DeviceRoutes::new(device, n_rows, N_EXPERTS, N_USED)?;
    ops.route(&router, n_rows, on_device.view(), &mut routes)?;
    let counts = RouteCounts {
        n_rows,
        n_used: N_USED,
        n_experts: N_EXPERTS,
    };
    let rows = ExpertRows {
        is_by_choice: false,
        floats: input.floats(),
        quantized: input.view().quantized,
    };
    let mut of_choices = device.alloc::<f32>("the check of kernels", n_rows * N_USED * N_OUT)?;
    let product = Product {
        matrix: &known.matrix,
        bias: None,
        output: of_choices.view_mut(),
    };
    ops.experts(&routes, counts, rows, N_OUT, &mut [product])?;
    let mut y = device.alloc::<f32>("the check of kernels", n_rows * N_OUT)?;
    ops.combine(
        &routes,
        [n_rows, N_USED],
        N_OUT,
        of_choices.view(),
        CarriedRows::Nothing,
        y.view_mut(),
    )?;
    let mut expected = Vec::with_capacity(n_rows * N_OUT);
    for (row, logits) in x.chunks(WIDTH).zip(logits.chunks(N_EXPERTS)) {
        let (row, choices) = (known.as_read(row), choices(logits));
        expected.extend((0..N_OUT).map(|out| -> f64 {
            let of_expert =
                |&(expert, weight): &(usize, f64)| weight * dot(&row, &known.rows[expert * N_OUT + out]);
            choices.iter().map(of_expert).sum()
        }));
    }
    compare(&device.download(y.view())?, &expected)
}
