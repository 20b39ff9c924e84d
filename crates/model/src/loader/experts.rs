//! Loads the matrices of experts from a tensor with a matrix for each.
//!
//! Invariant: a tensor for another number of experts is refused by that number.

use tokenmill_backend::{Linear, MatrixData, MatrixUsage, program::LinearId};
use tokenmill_gguf::TensorBytes;

use crate::{LoadError, Presence, tensor_view::PartOfEach};

use super::{Loader, RowsOf, check_shape};

impl Loader<'_> {
    /// Loads some rows of each expert's matrix from a tensor `[n_in, n_total, n_experts]`, and the same part
    /// of their biases, `[n_total, n_experts]`.
    pub(crate) fn experts(
        &mut self,
        name: &str,
        n_experts: usize,
        part: RowsOf,
        n_in: usize,
        bias: Presence,
    ) -> Result<LinearId, LoadError> {
        let weight = format!("{name}.weight");
        let source = self.source;
        let tensor = source
            .tensor(&weight)
            .ok_or_else(|| LoadError::MissingTensor { name: weight.clone() })?;
        match tensor.dims[..] {
            [found_in, found_out, found]
                if [found_in, found_out] == [n_in, part.n_total] && found != n_experts =>
            {
                return Err(LoadError::ExpertCount {
                    name: weight,
                    expected: n_experts,
                    found,
                });
            }
            _ => check_shape(&weight, &tensor.dims, &[n_in, part.n_total, n_experts])?,
        }
        let row_bytes = tensor.bytes.len() / (n_experts * part.n_total);
        let view = PartOfEach {
            source: tensor.bytes,
            each_bytes: part.n_total * row_bytes,
            first: part.first * row_bytes,
            part_bytes: part.n_rows * row_bytes,
        };
        let bytes = if part.n_rows == part.n_total {
            tensor.bytes
        } else {
            TensorBytes::in_file(&view, 0, n_experts * view.part_bytes)
        };
        let matrix = self.add_matrix(&MatrixData {
            name: &weight,
            ty: tensor.ty,
            n_out: n_experts * part.n_rows,
            n_in,
            bytes,
            usage: MatrixUsage::Experts(n_experts),
        })?;
        self.mark_used(&weight, tensor.bytes.len());
        let bias = match self.numbers(&format!("{name}.bias"), &[part.n_total, n_experts], bias)? {
            None => None,
            Some(values) => {
                let parts = values.chunks_exact(part.n_total);
                let values: Vec<f32> = parts
                    .flat_map(|values| &values[part.first..][..part.n_rows])
                    .copied()
                    .collect();
                Some(self.add_vector(&format!("{name}.bias"), &values)?)
            }
        };
        Ok(Linear {
            matrix,
            bias,
            n_out: part.n_rows,
            n_in,
            adapter_place: None,
        })
    }
}
