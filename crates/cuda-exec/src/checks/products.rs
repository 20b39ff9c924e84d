//! Checks products of matrices of each type with one row, few rows and many rows, and of matrices of two types.

use tokenmill_backend::Activation;
use tokenmill_gguf::TensorType;

use super::{
    Finding, Wrong, check,
    expected::{Numbers, compare},
    known::{FACTOR, Input, Known, WIDTH},
};
use crate::{Buffer, Device, GatedProduct, LinearInput, Ops, Product, error::Result, modules::PAIRS};

/// Rows of a matrix.
pub(super) const N_OUT: usize = 256;
/// Numbers of input rows: each kernel for few rows, bands, and tiles.
const ROWS: [usize; 8] = [1, 2, 4, 8, 16, 24, 40, MOST_ROWS];
/// Largest number of input rows.
pub(super) const MOST_ROWS: usize = 96;
/// Numbers of input rows for matrices of two types, which only kernels for few rows take together.
const ROWS_OF_PAIRS: [usize; 5] = [1, 2, 4, 8, 16];

/// Uploads two matrices of a type.
pub(super) fn two(device: &Device, ty: TensorType, numbers: &mut Numbers) -> Result<[Known; 2], Finding> {
    let mut known = Vec::new();
    check(device, format!("a matrix of {} on the GPU", ty.name()), || {
        for _ in 0..2 {
            known.push(Known::new(device, (ty, FACTOR), [N_OUT, WIDTH], numbers)?);
        }
        Ok(())
    })?;
    Ok(known
        .try_into()
        .unwrap_or_else(|_| unreachable!("two matrices were made")))
}

/// Checks all types.
pub(super) fn check_all(device: &Device, ops: &Ops, types: &[TensorType]) -> Result<usize, Finding> {
    let mut n_checks = 0;
    for &ty in types {
        let mut numbers = Numbers(ty as u64);
        let [gate, up] = &two(device, ty, &mut numbers)?;
        for n_rows in ROWS {
            let x = numbers.take(n_rows * WIDTH);
            check(
                device,
                format!("products of {} with {n_rows} rows", ty.name()),
                || multiply(device, ops, &[gate], &x),
            )?;
            n_checks += 1;
            if ops.can_gate(&gate.matrix, &up.matrix, n_rows) {
                check(
                    device,
                    format!("gated products of {} with {n_rows} rows", ty.name()),
                    || multiply_gated(device, ops, [gate, up], &x),
                )?;
                n_checks += 1;
            }
        }
    }
    Ok(n_checks)
}

/// Returns the pairs of types among these that one launch multiplies by.
pub(super) fn pairs_of(types: &[TensorType]) -> impl Iterator<Item = [TensorType; 2]> {
    (PAIRS.into_iter()).filter(|pair| pair.iter().all(|ty| types.contains(ty)))
}

/// Checks products by matrices of two types at once.
pub(super) fn check_pairs(device: &Device, ops: &Ops, types: &[TensorType]) -> Result<usize, Finding> {
    let mut n_checks = 0;
    for pair in pairs_of(types) {
        let mut numbers = Numbers(17);
        let [first, second] = two(device, pair[0], &mut numbers)?;
        let [third, _] = two(device, pair[1], &mut numbers)?;
        for n_rows in ROWS_OF_PAIRS {
            let x = numbers.take(n_rows * WIDTH);
            let [a, b] = pair.map(TensorType::name);
            check(
                device,
                format!("products of {a} and {b} with {n_rows} rows"),
                || multiply(device, ops, &[&first, &second, &third], &x),
            )?;
            n_checks += 1;
        }
    }
    Ok(n_checks)
}

/// Multiplies rows by matrices, which launches take together where they can.
fn multiply(device: &Device, ops: &Ops, known: &[&Known], x: &[f32]) -> Result<(), Wrong> {
    let launch = |input: &LinearInput<'_>, products: &mut [Product<'_>]| ops.linear(input, products);
    multiply_by(device, ops, known, x, launch)
}

/// Multiplies rows by matrices of one width with this launch, and compares the products.
pub(super) fn multiply_by(
    device: &Device,
    ops: &Ops,
    known: &[&Known],
    x: &[f32],
    launch: impl FnOnce(&LinearInput<'_>, &mut [Product<'_>]) -> Result<()>,
) -> Result<(), Wrong> {
    let input = Input::new(device, ops, x, known[0].matrix.n_in())?;
    let alloc = |known: &&Known| known.output(device, x);
    let mut outputs = known.iter().map(alloc).collect::<Result<Vec<_>>>()?;
    launch(&input.view(), &mut products(known, &mut outputs))?;
    for (known, y) in known.iter().zip(&outputs) {
        compare(&device.download(y.view())?, &known.times(x))?;
    }
    Ok(())
}

/// Returns the products by these matrices, into these outputs.
pub(super) fn products<'a>(known: &[&'a Known], outputs: &'a mut [Buffer<f32>]) -> Vec<Product<'a>> {
    (known.iter().zip(outputs))
        .map(|(known, y)| Product {
            matrix: &known.matrix,
            bias: None,
            output: y.view_mut(),
        })
        .collect()
}

/// Computes a gated pair of products, with SiLU, from the products.
pub(super) fn gated(gate: Vec<f64>, up: Vec<f64>) -> Vec<f64> {
    let silu = |x: f64| x / (1.0 + (-x).exp());
    (gate.into_iter().zip(up))
        .map(|(gate, up)| silu(gate) * up)
        .collect()
}

/// Returns the gated product by these matrices, with SiLU, into this output.
pub(super) fn gated_product<'a>([gate, up]: [&'a Known; 2], y: &'a mut Buffer<f32>) -> GatedProduct<'a> {
    GatedProduct {
        matrices: [&gate.matrix, &up.matrix],
        biases: [None; 2],
        activation: Activation::Silu,
        output: y.view_mut(),
        quantized: None,
    }
}

fn multiply_gated(device: &Device, ops: &Ops, pair: [&Known; 2], x: &[f32]) -> Result<(), Wrong> {
    let launch = |input: &LinearInput<'_>, product: GatedProduct<'_>| ops.matvec_gated(input, product);
    multiply_gated_by(device, ops, pair, x, launch)
}

/// Multiplies rows by a gated pair of matrices with this launch, and compares the product.
pub(super) fn multiply_gated_by(
    device: &Device,
    ops: &Ops,
    [gate, up]: [&Known; 2],
    x: &[f32],
    launch: impl FnOnce(&LinearInput<'_>, GatedProduct<'_>) -> Result<()>,
) -> Result<(), Wrong> {
    let input = Input::new(device, ops, x, gate.matrix.n_in())?;
    let mut y = gate.output(device, x)?;
    launch(&input.view(), gated_product([gate, up], &mut y))?;
    compare(&device.download(y.view())?, &gated(gate.times(x), up.times(x)))
}
