//! [`Known`]: a matrix on the GPU with known values, and [`Input`], the rows that it is multiplied by.
//!
//! The checks of products share it and differ in their kernels. Invariant: the expected products come from
//! the values of the encoded rows, and from activations rounded as kernels for quantized weights read them.

use tokenmill_gguf::TensorType;

use super::{
    Wrong,
    expected::{Numbers, dot, encoded, quantized},
};
use crate::{
    Buffer, Device, LinearInput, Matrix, MatrixUse, Ops, QuantizedRows, Uploader, View, error::Result,
};

/// Columns of most matrices: whole blocks of every type, and a multiple of the wgmma kernels' width.
pub(super) const WIDTH: usize = 512;
/// The use of a matrix that is multiplied.
pub(super) const FACTOR: MatrixUse = MatrixUse {
    is_table: false,
    is_factor: true,
    is_of_experts: false,
};

/// Holds an encoded matrix, and the values of its rows.
pub(super) struct Known {
    pub(super) ty: TensorType,
    pub(super) matrix: Matrix,
    pub(super) rows: Vec<Vec<f32>>,
}

impl Known {
    /// Uploads a matrix, `[n_out, n_in]`.
    pub(super) fn new(
        device: &Device,
        (ty, usage): (TensorType, MatrixUse),
        [n_out, n_in]: [usize; 2],
        numbers: &mut Numbers,
    ) -> Result<Self, Wrong> {
        // Some types are slow to encode, so rows repeat. The period differs from every tile and band size, so a misplaced row is noticed.
        const N_DISTINCT: usize = 61;
        let distinct = (0..N_DISTINCT).map(|_| encoded(ty, &numbers.take(n_in)));
        let distinct = distinct.collect::<Result<Vec<_>, Wrong>>()?;
        let (mut bytes, mut rows) = (Vec::new(), Vec::new());
        for (row_bytes, row) in distinct.iter().cycle().take(n_out) {
            bytes.extend(row_bytes);
            rows.push(row.clone());
        }
        let mut uploader = Uploader::new(device);
        let matrix = uploader.upload(ty, [n_out, n_in], &bytes[..], usage)?;
        uploader.finish()?;
        Ok(Self { ty, matrix, rows })
    }

    /// Returns a row as kernels for this matrix read it.
    pub(super) fn as_read(&self, row: &[f32]) -> Vec<f32> {
        let is_float = matches!(self.ty, TensorType::F32 | TensorType::F16 | TensorType::BF16);
        if is_float { row.to_vec() } else { quantized(row) }
    }

    /// Allocates the products with rows of `x`.
    pub(super) fn output(&self, device: &Device, x: &[f32]) -> Result<Buffer<f32>> {
        let n_rows = x.len() / self.matrix.n_in();
        device.alloc::<f32>("the check of kernels", n_rows * self.rows.len())
    }

    /// Computes the products with rows of `x`, `[rows, n_out]`.
    pub(super) fn times(&self, x: &[f32]) -> Vec<f64> {
        let of_row = |row: &[f32]| {
            let row = self.as_read(row);
            self.rows
                .iter()
                .map(|weights| dot(&row, weights))
                .collect::<Vec<_>>()
        };
        x.chunks(self.matrix.n_in()).flat_map(of_row).collect()
    }
}

/// Holds the input rows in both forms.
pub(super) struct Input {
    floats: Buffer<f32>,
    quantized: QuantizedRows,
    n_rows: usize,
}

impl Input {
    /// Uploads rows of `width` values and quantizes them.
    pub(super) fn new(device: &Device, ops: &Ops, x: &[f32], width: usize) -> Result<Self> {
        let n_rows = x.len() / width;
        let floats = device.upload("the check of kernels", x)?;
        let mut quantized = QuantizedRows::new(device, n_rows, width)?;
        ops.quantize(n_rows, width, floats.view(), quantized.view_mut())?;
        Ok(Self {
            floats,
            quantized,
            n_rows,
        })
    }

    /// Returns the rows as they are.
    pub(super) fn floats(&self) -> View<'_, f32> {
        self.floats.view()
    }

    /// Returns the rows in both forms.
    pub(super) fn view(&self) -> LinearInput<'_> {
        LinearInput {
            n_rows: self.n_rows,
            floats: self.floats.view(),
            quantized: Some(self.quantized.view()),
        }
    }
}
