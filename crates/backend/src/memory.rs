//! [`Memory`]: the allocations of a load on a device.
//!
//! A load runs twice: first against [`Measure`](crate::Measure), for the memory plan, then against the
//! device. Invariant: both see the same weights and slots in the same order, so the plan counts exactly the
//! load's allocations.

use tokenmill_gguf::{TensorBytes, TensorType};

use crate::{BackendError, ExecutorLimits, KvLayout, NetworkShape, StateLayout};

/// The memory of a network's weights and buffers on a device.
pub trait Memory: Sized + Send + 'static {
    /// A weight matrix in the form that operations read.
    type Matrix: Send + Sync + 'static;
    /// A weight vector, f32: norms, biases, rope frequencies, attention sinks.
    type Vector: Send + 'static;
    /// An activation buffer `[max_rows, width]` f32.
    type Buffer: Send + 'static;
    /// The experts and weights of each row of a step, with the data that the operations on experts need.
    type Routes: Send + 'static;

    /// Uploads a weight matrix `[n_out, n_in]`, rows contiguous, in the file's type.
    ///
    /// # Errors
    /// [`BackendError::UnsupportedType`] if the type cannot be computed, or a device error.
    fn upload_matrix(&mut self, data: &MatrixData<'_>) -> Result<Self::Matrix, BackendError>;

    /// Returns a second handle of a matrix, for another network on the same hardware; `None` if the backend cannot share
    /// matrices.
    fn share_matrix(matrix: &Self::Matrix) -> Option<Self::Matrix> {
        let _ = matrix;
        None
    }

    /// Uploads a weight vector.
    ///
    /// # Errors
    /// A device error.
    fn upload_vector(&mut self, values: &[f32]) -> Result<Self::Vector, BackendError>;

    /// Allocates an activation buffer `[max_rows, width]` f32.
    ///
    /// # Errors
    /// A device error.
    fn alloc(&mut self, max_rows: usize, width: usize) -> Result<Self::Buffer, BackendError>;

    /// Allocates the routes of `max_rows` rows, each to `n_used` of `n_experts` experts.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] if there are more experts than the device can route to, or a device
    /// error.
    fn alloc_routes(
        &mut self,
        max_rows: usize,
        n_experts: usize,
        n_used: usize,
    ) -> Result<Self::Routes, BackendError>;
}

/// A weight matrix as read from a file.
#[derive(Clone, Copy, Debug)]
pub struct MatrixData<'a> {
    /// The tensor's name, for errors.
    pub name: &'a str,
    /// Its type.
    pub ty: TensorType,
    /// Number of rows, the width of the output.
    pub n_out: usize,
    /// Number of columns, the width of the input; contiguous in memory.
    pub n_in: usize,
    /// `n_out` rows of `ty.row_bytes(n_in)` bytes.
    pub bytes: TensorBytes<'a>,
    /// The operations that will read it.
    pub usage: MatrixUsage,
}

/// The operations that read a matrix, so that a backend can choose its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixUsage {
    /// [`Backend::linear`](crate::Backend::linear) alone.
    Linear,
    /// [`Backend::embed`](crate::Backend::embed) alone: few rows of a step, so a backend may leave them in the file.
    Embedding,
    /// Both: the token embedding of a model whose output head is tied to it.
    Tied,
    /// [`ExpertOperations::experts_linear`](crate::ExpertOperations::experts_linear) or
    /// [`LatentOperations::heads_linear`](crate::LatentOperations::heads_linear) alone: the matrices of this
    /// number of experts or heads, each with the same number of rows, concatenated.
    Experts(usize),
    /// One of the two matrices of an adapter's change ([`LowRank`](crate::LowRank)).
    Adapter,
}

/// An allocation of a load on a device.
#[derive(Clone, Copy, Debug)]
pub enum Allocation<'a> {
    /// By [`Memory::upload_matrix`].
    Matrix {
        /// The file's type, one that the device supports.
        ty: TensorType,
        /// Number of rows.
        n_out: usize,
        /// Number of columns.
        n_in: usize,
        /// The operations that will read it.
        usage: MatrixUsage,
        /// Whether its rows can be read from an open file later, through [`TensorBytes::keep`].
        is_in_file: bool,
    },
    /// By [`Memory::upload_vector`].
    Vector {
        /// Number of values.
        len: usize,
    },
    /// By [`Memory::alloc`].
    Buffer {
        /// Number of rows.
        max_rows: usize,
        /// Number of values per row.
        width: usize,
    },
    /// By [`Memory::alloc_routes`].
    Routes {
        /// Number of rows.
        max_rows: usize,
        /// Number of experts.
        n_experts: usize,
        /// Number of experts per row.
        n_used: usize,
    },
    /// One page of a group, all its layers, in the store that [`Backend::alloc_kv`](crate::Backend::alloc_kv)
    /// creates.
    KvPage(&'a KvLayout),
    /// One slot, all layers, of the store that [`Backend::alloc_states`](crate::Backend::alloc_states)
    /// creates.
    State(&'a StateLayout),
    /// By [`Backend::prepare`](crate::Backend::prepare).
    Workspace(&'a NetworkShape, &'a ExecutorLimits),
}
