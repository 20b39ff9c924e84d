//! The matrices of heads, of a tensor that joins rows of several kinds for each head.
//!
//! Separate because only latent attention has such tensors.

use tokenmill_backend::{Linear, MatrixData, MatrixUsage, Memory};
use tokenmill_gguf::{ReadAt, TensorBytes, TensorType};
use tokenmill_quant::Format;

use crate::{
    LoadError,
    tensor_view::{Dequantized, Transposed},
};

use super::{Loader, RowsOf, check_shape};

impl<M: Memory> Loader<'_, M> {
    /// The rows of each head, of a tensor that has some of every head: as [`Self::experts`], one run for each.
    pub(crate) fn heads(
        &mut self,
        name: &str,
        part: RowsOf,
        n_in: usize,
    ) -> Result<Linear<M::Matrix, M::Vector>, LoadError> {
        let usage = MatrixUsage::Experts(part.n_runs);
        Ok(Linear {
            matrix: self.matrix_parts(&format!("{name}.weight"), &[part], n_in, usage)?,
            bias: None,
            n_out: part.n_rows,
            n_in,
            adapter_place: None,
        })
    }

    /// As [`Self::heads`], where the matrix of a head is the transpose of its rows. Of quantized rows it becomes F32.
    pub(crate) fn heads_transposed(
        &mut self,
        name: &str,
        part: RowsOf,
        n_cols: usize,
    ) -> Result<Linear<M::Matrix, M::Vector>, LoadError> {
        let weight = format!("{name}.weight");
        let tensor = self.tensor(&weight)?;
        check_shape(&weight, &tensor.dims, &[n_cols, part.n_total])?;
        // Quantized rows have no columns: their blocks lie along them. So the transpose is of their numbers.
        let row_bytes = tensor.bytes.len() / part.n_total;
        let view = Box::new(part.view(tensor.bytes, row_bytes));
        let (source, ty, element_bytes): (Box<dyn ReadAt>, _, _) = match tensor.ty {
            TensorType::F32 => (view, tensor.ty, 4),
            TensorType::F16 | TensorType::BF16 => (view, tensor.ty, 2),
            other => {
                let format = Format::of(other).map_err(|_| LoadError::UnsupportedFeature {
                    arch: self.descriptor.arch.clone(),
                    feature: format!("`{weight}` in {}, which joins keys and values", other.name()),
                })?;
                let dequantized = Dequantized {
                    source: view,
                    format,
                    n_cols,
                    row_bytes,
                };
                (Box::new(dequantized), TensorType::F32, 4)
            }
        };
        let transposed = Transposed {
            source,
            n_rows: n_cols,
            n_cols: part.n_rows,
            element_bytes,
        };
        let n_bytes = part.n_out() * n_cols * element_bytes;
        let matrix = self.memory.upload_matrix(&MatrixData {
            name: &weight,
            ty,
            n_out: part.n_runs * n_cols,
            n_in: part.n_rows,
            bytes: TensorBytes::in_file(&transposed, 0, n_bytes),
            usage: MatrixUsage::Experts(part.n_runs),
        })?;
        self.mark_used(&weight, tensor.bytes.len());
        Ok(Linear {
            matrix,
            bias: None,
            n_out: n_cols,
            n_in: part.n_rows,
            adapter_place: None,
        })
    }
}
