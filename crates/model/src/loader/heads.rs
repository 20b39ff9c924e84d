//! Loads per-head matrices from a tensor that joins rows of several kinds for each head. Only latent
//! attention has such tensors.

use tokenmill_backend::{Linear, MatrixData, MatrixUsage, program::LinearId};
use tokenmill_gguf::{ReadAt, TensorBytes, TensorType};
use tokenmill_quant::Format;

use crate::{
    LoadError,
    tensor_view::{Dequantized, Transposed},
};

use super::{Loader, RowsOf, check_shape};

impl Loader<'_> {
    /// Loads some rows of each head, from a tensor with rows of every head: as [`Self::experts`], one run per
    /// head.
    pub(crate) fn heads(&mut self, name: &str, part: RowsOf, n_in: usize) -> Result<LinearId, LoadError> {
        let usage = MatrixUsage::Experts(part.n_runs);
        Ok(Linear {
            matrix: self.matrix_parts(&format!("{name}.weight"), &[part], n_in, usage)?,
            bias: None,
            n_out: part.n_rows,
            n_in,
            adapter_place: None,
        })
    }

    /// Does the same as [`Self::heads`], with the rows of each head transposed. If they are quantized, the result is F32.
    pub(crate) fn heads_transposed(
        &mut self,
        name: &str,
        part: RowsOf,
        n_cols: usize,
    ) -> Result<LinearId, LoadError> {
        let weight = format!("{name}.weight");
        let tensor = self.tensor(&weight)?;
        check_shape(&weight, &tensor.dims, &[n_cols, part.n_total])?;
        // Blocks of quantized rows lie along the rows, so only decoded numbers can be transposed.
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
        let matrix = self.add_matrix(&MatrixData {
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
