//! [`CpuExecError`]: the errors of building an executor from a caller's values.
//!
//! Operations in a step return no errors: their shapes were checked when the model was loaded, and a wrong
//! one is a broken invariant.

use tokenmill_gguf::TensorType;
use tokenmill_quant::QuantError;

use crate::PlacesError;

/// The reason why a pool, a matrix or a KV store was not built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CpuExecError {
    /// A pool cannot have this many threads.
    #[error("{found} threads were requested; choose 1 to {maximum}")]
    ThreadCount {
        /// The requested number of threads.
        found: usize,
        /// The maximum number of threads.
        maximum: usize,
    },
    /// The system did not start a thread.
    #[error("worker thread {worker_idx} could not be started: {source}")]
    ThreadStart {
        /// The index of the worker.
        worker_idx: usize,
        /// The system's error.
        source: std::io::Error,
    },
    /// The threads cannot be placed as requested.
    #[error(transparent)]
    Places(#[from] PlacesError),
    /// The tensor's type or row length is not supported.
    #[error(transparent)]
    Quant(#[from] QuantError),
    /// The weights could not be read.
    #[error("{0}")]
    ReadWeights(#[source] std::io::Error),
    /// The tensor's bytes do not have the length of its shape.
    #[error("a {n_rows} x {n_cols} matrix of {} takes {expected} bytes, found {found}", .ty.name())]
    MatrixBytes {
        /// The type of the weights.
        ty: TensorType,
        /// The number of rows: the outputs of the product.
        n_rows: usize,
        /// The number of columns: the inputs of the product.
        n_cols: usize,
        /// The number of bytes that the shape takes.
        expected: usize,
        /// The number of bytes given.
        found: usize,
    },
    /// The size of the shape overflows on this machine.
    #[error("a {n_rows} x {n_cols} matrix is too large for this machine")]
    MatrixTooLarge {
        /// The number of rows.
        n_rows: usize,
        /// The number of columns.
        n_cols: usize,
    },
    /// A KV head cannot be stored in this type.
    #[error("a KV head of {head_dim} values cannot be stored as {ty}, which takes blocks of 32; use f16")]
    KvHeadDim {
        /// The number of values per head.
        head_dim: usize,
        /// The name of the type.
        ty: &'static str,
    },
    /// The size of the KV store overflows on this machine.
    #[error("a KV store of {n_pages} pages is too large for this machine; lower the context")]
    KvTooLarge {
        /// The requested number of pages.
        n_pages: usize,
    },
    /// There is not enough memory.
    #[error("{n_bytes} bytes of memory could not be allocated for {what}")]
    OutOfMemory {
        /// The purpose of the memory.
        what: &'static str,
        /// The requested number of bytes.
        n_bytes: usize,
    },
}

impl From<tokenmill_cpu_kernels::OutOfMemory> for CpuExecError {
    fn from(error: tokenmill_cpu_kernels::OutOfMemory) -> Self {
        Self::OutOfMemory {
            what: "weights",
            n_bytes: error.n_bytes,
        }
    }
}
