//! Allocates buffers on the host and packs weights for the operations.
//!
//! No step allocates. Invariant: a matrix is packed once, here.

use tokenmill_gguf::{FileBytes, TensorType};

use tokenmill_backend::{
    Backend, BackendError, ExecutorLimits, MatrixData, MatrixUsage, Memory, NetworkShape,
};

use super::{CpuBackend, CpuVector, failed};

impl Memory for CpuBackend {
    type Matrix = crate::Matrix;
    type Vector = CpuVector;
    type Buffer = Vec<f32>;
    type Routes = crate::Routes;

    fn upload_matrix(&mut self, data: &MatrixData<'_>) -> Result<crate::Matrix, BackendError> {
        if self.leaves_in_file(data.usage, data.ty, data.n_out, data.n_in)
            && let Some(bytes) = data.bytes.keep()
        {
            return self.table_in_file(data, bytes);
        }
        let (host, n_experts) = (&self.host, n_experts(data.usage));
        let n_rows = data.n_out / n_experts;
        let packed = crate::Matrix::pack_experts(host, data.ty, n_experts, n_rows, data.n_in, data.bytes);
        // A tensor that is computed in parts is reported with its first part, because all parts read the same
        // rows.
        let is_shown = self.input_observer.is_some() && self.shown_tensors.insert(data.name.to_owned());
        let packed = packed.map(|mut matrix| {
            if is_shown {
                matrix.set_name(data.name);
            }
            matrix
        });
        packed.map_err(|error| of_matrix(data, error))
    }

    fn share_matrix(matrix: &crate::Matrix) -> Option<crate::Matrix> {
        Some(matrix.clone())
    }

    fn upload_vector(&mut self, values: &[f32]) -> Result<CpuVector, BackendError> {
        self.n_vectors += 1;
        Ok(CpuVector {
            id: self.n_vectors,
            values: values.to_vec(),
        })
    }

    fn alloc(&mut self, max_rows: usize, width: usize) -> Result<Vec<f32>, BackendError> {
        crate::zeroed(max_rows.saturating_mul(width), "activations")
            .map_err(|error| failed("preparing a step", error))
    }

    fn alloc_routes(
        &mut self,
        max_rows: usize,
        n_experts: usize,
        n_used: usize,
    ) -> Result<crate::Routes, BackendError> {
        crate::Routes::new(max_rows, n_experts, n_used).map_err(|error| failed("preparing a step", error))
    }
}

impl CpuBackend {
    /// Returns whether a matrix of this use and size stays in its file, if its bytes are in one.
    pub(super) fn leaves_in_file(
        &self,
        usage: MatrixUsage,
        ty: TensorType,
        n_rows: usize,
        n_cols: usize,
    ) -> bool {
        let n_bytes = ty
            .row_bytes(n_cols)
            .and_then(|row_bytes| row_bytes.checked_mul(n_rows));
        usage == MatrixUsage::Embedding
            && self
                .table_bytes_in_file
                .is_some_and(|least| n_bytes.is_some_and(|n_bytes| n_bytes >= least))
    }

    /// Creates a table of embeddings whose rows stay in their file.
    fn table_in_file(
        &mut self,
        data: &MatrixData<'_>,
        bytes: FileBytes,
    ) -> Result<crate::Matrix, BackendError> {
        let table = crate::Matrix::in_file(&self.host, data.ty, data.n_out, data.n_in, bytes);
        let mut table = table.map_err(|error| of_matrix(data, error))?;
        table.set_name(data.name);
        Ok(table)
    }
}

/// Adds the matrix's name to an error.
fn of_matrix(data: &MatrixData<'_>, error: crate::CpuExecError) -> BackendError {
    match error {
        crate::CpuExecError::Quant(_) => BackendError::UnsupportedType {
            tensor: data.name.to_owned(),
            ty: data.ty.name(),
            device: CpuBackend::NAME,
        },
        crate::CpuExecError::ReadWeights(source) => BackendError::ReadTensor {
            tensor: data.name.to_owned(),
            source: source.into(),
        },
        other => failed("loading weights", other),
    }
}

/// Returns the number of experts whose matrices are in one tensor.
pub(super) fn n_experts(usage: MatrixUsage) -> usize {
    match usage {
        MatrixUsage::Experts(n_experts) => n_experts.max(1),
        MatrixUsage::Linear | MatrixUsage::Embedding | MatrixUsage::Tied | MatrixUsage::Adapter => 1,
    }
}

/// Returns the workspace sizes of the largest step's operations.
pub(super) fn workspace_sizes(network: &NetworkShape, limits: &ExecutorLimits) -> crate::WorkspaceSizes {
    let step = crate::StepSizes {
        max_tokens: limits.max_batch_tokens,
        max_seqs: limits.max_batch_seqs,
        n_ctx: limits.n_ctx,
    };
    network.layers.iter().fold(
        crate::WorkspaceSizes::of_matrices(&step, network.n_embd),
        |sizes, layer| {
            let sizes = sizes.max(crate::WorkspaceSizes::of_matrices(&step, layer.widest_input));
            let sizes = match &layer.heads {
                Some(heads) => sizes.max(crate::WorkspaceSizes::of_heads(step.max_tokens, heads)),
                None => sizes,
            };
            let sizes = match &layer.experts {
                Some(experts) => sizes.max(crate::WorkspaceSizes::of_experts(&step, network.n_embd, experts)),
                None => sizes,
            };
            match &layer.attention {
                Some(attention) => sizes.max(crate::WorkspaceSizes::of_attention(&step, attention)),
                None => sizes,
            }
        },
    )
}
