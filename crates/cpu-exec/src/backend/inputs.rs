//! Reports the inputs of matrix products to an observer.
//!
//! Only measurements read them. Invariant: no input is reported, and no tensor's name is kept, unless an
//! observer was set before the weights were loaded.

use tokenmill_backend::ExpertInput;

use super::CpuBackend;
use crate::{Matrix, Routes};

/// The rows that a tensor's matrix is multiplied with in a step.
#[derive(Clone, Copy, Debug)]
pub struct ProductInput<'a> {
    /// The name of the tensor.
    pub tensor: &'a str,
    /// The number of matrices in the tensor: one for each expert, or one for each head if heads have matrices
    /// of their own.
    pub n_matrices: usize,
    /// The index of this matrix among them.
    pub matrix_idx: usize,
    /// Whether each row selects its matrices, as with experts; otherwise each row is multiplied with all of
    /// them.
    pub is_chosen: bool,
    /// The weight of the selected matrix for the rows; 1 without selection.
    pub weight: f32,
    /// The number of values in a row.
    pub width: usize,
    /// The rows, `[n_rows, width]`.
    pub rows: &'a [f32],
}

/// Observes the inputs of each product; see [`CpuBackend::observe_inputs`].
pub type InputObserver = Box<dyn FnMut(ProductInput<'_>) + Send>;

impl CpuBackend {
    /// Passes the inputs of all matrices to `observer`, step by step, to compute an importance matrix. Call
    /// it before a model is loaded, because the tensors' names are kept only then.
    pub fn observe_inputs(&mut self, observer: InputObserver) {
        self.input_observer = Some(observer);
    }

    /// Reports the rows that matrices are multiplied with.
    pub(super) fn show_rows<'a>(&mut self, matrices: impl Iterator<Item = &'a Matrix>, rows: &[f32]) {
        let Some(observe) = &mut self.input_observer else {
            return;
        };
        for matrix in matrices {
            if let Some(tensor) = matrix.name() {
                observe(ProductInput {
                    tensor,
                    n_matrices: 1,
                    matrix_idx: 0,
                    is_chosen: false,
                    weight: 1.0,
                    width: matrix.n_cols(),
                    rows,
                });
            }
        }
    }

    /// Reports the rows that each expert's matrix is multiplied with.
    pub(super) fn show_choices(&mut self, matrix: &Matrix, routes: &Routes, input: ExpertInput<'_, [f32]>) {
        let (Some(observe), Some(tensor)) = (&mut self.input_observer, matrix.name()) else {
            return;
        };
        let width = matrix.n_cols();
        let mut weights = vec![0.0; routes.n_choices()];
        for row_idx in 0..routes.n_rows() {
            for (place, weight) in routes.of_row(row_idx) {
                weights[place] = weight;
            }
        }
        for (expert, choices) in routes.in_use() {
            for choice in choices {
                let (rows, row_idx) = match input {
                    ExpertInput::Choices(rows) => (rows, choice),
                    ExpertInput::Rows(rows) => (rows, routes.rows()[choice] as usize),
                };
                observe(ProductInput {
                    tensor,
                    n_matrices: matrix.n_experts(),
                    matrix_idx: expert,
                    is_chosen: true,
                    weight: weights[choice],
                    width,
                    rows: &rows[row_idx * width..][..width],
                });
            }
        }
    }

    /// Reports the rows that each head's matrix is multiplied with; `rows` is `[n_rows, n_heads, width]`.
    pub(super) fn show_heads(&mut self, matrix: &Matrix, n_heads: usize, rows: &[f32]) {
        let (Some(observe), Some(tensor)) = (&mut self.input_observer, matrix.name()) else {
            return;
        };
        for (idx, row) in rows.chunks_exact(matrix.n_cols()).enumerate() {
            observe(ProductInput {
                tensor,
                n_matrices: n_heads,
                matrix_idx: idx % n_heads,
                is_chosen: false,
                weight: 1.0,
                width: matrix.n_cols(),
                rows: row,
            });
        }
    }
}
