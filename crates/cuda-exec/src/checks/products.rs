//! Checks products of matrices of each type with one row, few rows and many rows.

use tokenmill_backend::Activation;
use tokenmill_gguf::TensorType;

use super::{
    Finding, Wrong, check,
    expected::{Numbers, compare, dot, encoded, quantized},
};
use crate::{
    Device, GatedProduct, LinearInput, Matrix, MatrixUse, Ops, Product, QuantizedRows, Uploader,
    error::Result,
};

/// Columns of a matrix: whole blocks of every type, and a multiple of the wgmma kernels' width.
pub(super) const WIDTH: usize = 512;
/// Rows of a matrix.
const N_OUT: usize = 256;
/// Numbers of input rows: each kernel for few rows, bands, and tiles.
const ROWS: [usize; 6] = [1, 2, 8, 16, 40, MOST_ROWS];
/// Largest number of input rows.
pub(super) const MOST_ROWS: usize = 96;

/// Holds an encoded matrix, and the values of its rows.
struct Known {
    ty: TensorType,
    matrix: Matrix,
    rows: Vec<Vec<f32>>,
}

impl Known {
    fn new(device: &Device, ty: TensorType, numbers: &mut Numbers) -> Result<Self, Wrong> {
        // Some types are slow to encode, so rows repeat. The period differs from every tile and band size, so a misplaced row is noticed.
        const N_DISTINCT: usize = 61;
        let distinct = (0..N_DISTINCT).map(|_| encoded(ty, &numbers.take(WIDTH)));
        let distinct = distinct.collect::<Result<Vec<_>, Wrong>>()?;
        let (mut bytes, mut rows) = (Vec::new(), Vec::new());
        for (row_bytes, row) in distinct.iter().cycle().take(N_OUT) {
            bytes.extend(row_bytes);
            rows.push(row.clone());
        }
        let mut uploader = Uploader::new(device);
        let usage = MatrixUse {
            is_table: false,
            is_factor: true,
            is_of_experts: false,
        };
        let matrix = uploader.upload(ty, [N_OUT, WIDTH], &bytes[..], usage)?;
        uploader.finish()?;
        Ok(Self { ty, matrix, rows })
    }

    /// Computes the products with rows of `x`, `[rows, N_OUT]`.
    fn times(&self, x: &[f32]) -> Vec<f64> {
        let is_float = matches!(self.ty, TensorType::F32 | TensorType::F16 | TensorType::BF16);
        let of_row = |row: &[f32]| {
            let row = if is_float { row.to_vec() } else { quantized(row) };
            self.rows
                .iter()
                .map(|weights| dot(&row, weights))
                .collect::<Vec<_>>()
        };
        x.chunks(WIDTH).flat_map(of_row).collect()
    }
}

/// Checks all types.
pub(super) fn check_all(device: &Device, ops: &Ops, types: &[TensorType]) -> Result<usize, Finding> {
    let mut n_checks = 0;
    for &ty in types {
        let mut numbers = Numbers(ty as u64);
        let mut known = Vec::new();
        check(device, format!("a matrix of {} on the GPU", ty.name()), || {
            for _ in 0..2 {
                known.push(Known::new(device, ty, &mut numbers)?);
            }
            Ok(())
        })?;
        let [gate, up] = &known[..] else {
            unreachable!("two matrices were made");
        };
        for n_rows in ROWS {
            let x = numbers.take(n_rows * WIDTH);
            check(
                device,
                format!("products of {} with {n_rows} rows", ty.name()),
                || multiply(device, ops, gate, &x),
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

/// Holds the input rows in both forms.
struct Input {
    floats: crate::Buffer<f32>,
    quantized: QuantizedRows,
    n_rows: usize,
}

impl Input {
    fn new(device: &Device, ops: &Ops, x: &[f32]) -> Result<Self> {
        let n_rows = x.len() / WIDTH;
        let floats = device.upload("the check of kernels", x)?;
        let mut quantized = QuantizedRows::new(device, n_rows, WIDTH)?;
        ops.quantize(n_rows, WIDTH, floats.view(), quantized.view_mut())?;
        Ok(Self {
            floats,
            quantized,
            n_rows,
        })
    }

    fn view(&self) -> LinearInput<'_> {
        LinearInput {
            n_rows: self.n_rows,
            floats: self.floats.view(),
            quantized: Some(self.quantized.view()),
        }
    }
}

fn multiply(device: &Device, ops: &Ops, known: &Known, x: &[f32]) -> Result<(), Wrong> {
    let input = Input::new(device, ops, x)?;
    let mut y = device.alloc::<f32>("the check of kernels", input.n_rows * N_OUT)?;
    let product = Product {
        matrix: &known.matrix,
        bias: None,
        output: y.view_mut(),
    };
    ops.linear(&input.view(), &mut [product])?;
    compare(&device.download(y.view())?, &known.times(x))
}

fn multiply_gated(device: &Device, ops: &Ops, [gate, up]: [&Known; 2], x: &[f32]) -> Result<(), Wrong> {
    let input = Input::new(device, ops, x)?;
    let mut y = device.alloc::<f32>("the check of kernels", input.n_rows * N_OUT)?;
    let product = GatedProduct {
        matrices: [&gate.matrix, &up.matrix],
        biases: [None; 2],
        activation: Activation::Silu,
        output: y.view_mut(),
        quantized: None,
    };
    ops.matvec_gated(&input.view(), product)?;
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let expected: Vec<f64> = (gate.times(x).into_iter().zip(up.times(x)))
        .map(|(gate, up)| silu(gate) * up)
        .collect();
    compare(&device.download(y.view())?, &expected)
}
