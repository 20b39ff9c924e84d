//! [`RowsOf`]: the rows of a tensor that make a matrix, and [`AdaptableWeight`], which remembers them.
//!
//! This is index arithmetic only. Invariant: runs are inside the tensor.

use tokenmill_gguf::TensorBytes;

use crate::tensor_view::PartOfEach;

/// The rows of a tensor that make a matrix: all of them, or some if the tensor joins several matrices.
#[derive(Clone, Copy)]
pub(crate) struct RowsOf {
    pub(crate) first: usize,
    /// Rows per run.
    pub(crate) n_rows: usize,
    /// Rows of the tensor.
    pub(crate) n_total: usize,
    /// Number of runs of adjacent rows.
    pub(crate) n_runs: usize,
    /// Rows from the start of one run to the start of the next.
    pub(crate) stride: usize,
}

impl RowsOf {
    pub(crate) fn all(n_rows: usize) -> Self {
        Self::run(0, n_rows, n_rows)
    }

    /// Returns `n_rows` adjacent rows.
    pub(crate) fn run(first: usize, n_rows: usize, n_total: usize) -> Self {
        Self {
            first,
            n_rows,
            n_total,
            n_runs: 1,
            stride: n_rows,
        }
    }

    pub(super) fn n_out(&self) -> usize {
        self.n_rows * self.n_runs
    }

    /// Returns the rows of a tensor, read on access.
    pub(super) fn view<'a>(&self, source: TensorBytes<'a>, row_bytes: usize) -> PartOfEach<'a> {
        PartOfEach {
            source,
            each_bytes: self.stride * row_bytes,
            first: self.first * row_bytes,
            part_bytes: self.n_rows * row_bytes,
        }
    }

    /// Returns the first row of each run.
    fn starts(&self) -> impl Iterator<Item = usize> {
        let Self { first, stride, .. } = *self;
        (0..self.n_runs).map(move |run| first + run * stride)
    }
}

/// Returns the first row and the length of each run of some parts.
pub(super) fn runs_of(parts: &[RowsOf]) -> impl Iterator<Item = (usize, usize)> {
    (parts.iter()).flat_map(|part| part.starts().map(|start| (start, part.n_rows)))
}

/// A weight that adapters can change.
pub(crate) struct AdaptableWeight {
    /// The tensor's name.
    pub(crate) name: String,
    /// Width of the input.
    pub(crate) n_in: usize,
    parts: Vec<RowsOf>,
}

impl AdaptableWeight {
    pub(super) fn new(name: String, parts: &[RowsOf], n_in: usize) -> Self {
        Self {
            name,
            n_in,
            parts: parts.to_vec(),
        }
    }

    /// Returns the number of rows of the tensor.
    pub(crate) fn n_total(&self) -> usize {
        self.parts[0].n_total
    }

    /// Returns the first row and the length of each run of the weight's rows; `None` if it is the whole
    /// tensor.
    pub(crate) fn rows(&self) -> Option<impl Iterator<Item = (usize, usize)>> {
        let is_whole = matches!(self.parts[..], [part] if part.n_rows == part.n_total && part.n_runs == 1);
        (!is_whole).then(|| runs_of(&self.parts))
    }
}
