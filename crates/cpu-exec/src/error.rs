//! [`CpuExecError`]: what can be wrong with what a caller builds the executor from.
//!
//! Operations on a step's path return no errors: their shapes were checked when the model was loaded, and a wrong one is
//! a broken invariant.

use tokenmill_gguf::TensorType;
use tokenmill_quant::QuantError;

use crate::PlacesError;

/// Why a pool, a matrix or a KV store was not built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CpuExecError {
    /// No pool has that many threads.
    #[error("{found} threads were asked for; choose 1 to {maximum}")]
    ThreadCount {
        /// Threads asked for.
        found: usize,
        /// The most there may be.
        maximum: usize,
    },
    /// The system refused a thread.
    #[error("worker thread {worker_idx} could not be started: {source}")]
    ThreadStart {
        /// Index of the worker.
        worker_idx: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// Threads cannot be where they are to be.
    #[error(transparent)]
    Places(#[from] PlacesError),
    /// The tensor's type or row length is one that cannot be computed.
    #[error(transparent)]
    Quant(#[from] QuantError),
    /// The weights could not be read.
    #[error("{0}")]
    ReadWeights(#[source] std::io::Error),
    /// A tensor's bytes do not have the length that its shape says.
    #[error("a {n_rows} x {n_cols} matrix of {} takes {expected} bytes, found {found}", .ty.name())]
    MatrixBytes {
        /// The weights' type.
        ty: TensorType,
        /// Rows, the outputs of the product.
        n_rows: usize,
        /// Columns, the inputs of the product.
        n_cols: usize,
        /// Bytes that the shape takes.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The shape's size does not fit this machine.
    #[error("a {n_rows} x {n_cols} matrix is too large for this machine")]
    MatrixTooLarge {
        /// Rows.
        n_rows: usize,
        /// Columns.
        n_cols: usize,
    },
    /// A KV head cannot be stored in this type.
    #[error("a KV head of {head_dim} values cannot be stored as {ty}, which takes blocks of 32; use f16")]
    KvHeadDim {
        /// Values per head.
        head_dim: usize,
        /// The name of the type.
        ty: &'static str,
    },
    /// The KV store's size does not fit this machine.
    #[error("a KV store of {n_pages} pages is too large for this machine; lower the context")]
    KvTooLarge {
        /// Pages asked for.
        n_pages: usize,
    },
    /// There is not enough memory.
    #[error("{n_bytes} bytes of memory could not be allocated for {what}")]
    OutOfMemory {
        /// What it was for.
        what: &'static str,
        /// Bytes asked for.
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
