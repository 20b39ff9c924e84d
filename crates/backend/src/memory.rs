//! [`Memory`]: what a load asks of a device.
//!
//! Separate from [`Backend`](crate::Backend) because a load runs twice: first against [`Measure`](crate::Measure), for the
//! plan of the memory, then against the device. Invariant: both take the same path, so the plan counts what the load allocates and nothing else.

use tokenmill_gguf::{TensorBytes, TensorType};

use crate::{BackendError, ExecutorLimits, KvLayout, NetworkPart, NetworkShape, StateLayout};

/// Where a network's weights and buffers are: a device, or a scale.
pub trait Memory: Sized {
    /// A weight matrix in the form that the operations read.
    type Matrix;
    /// A weight vector, f32: norms, biases, rope frequencies, attention sinks.
    type Vector;
    /// An activation buffer `[max_rows, width]` f32.
    type Buffer;
    /// Which experts each row of a step goes to, with what weight, and what the operations on experts need to know of it.
    type Routes;

    /// Says which part of the network the next allocations, or the next operations, belong to.
    fn enter(&mut self, part: NetworkPart) {
        let _ = part;
    }

    /// Takes a weight matrix `[n_out, n_in]`, rows contiguous, in the file's type.
    ///
    /// # Errors
    /// [`BackendError::UnsupportedType`] where the type cannot be computed, or a device error.
    fn upload_matrix(&mut self, data: &MatrixData<'_>) -> Result<Self::Matrix, BackendError>;

    /// Takes a weight vector.
    ///
    /// # Errors
    /// A device error.
    fn upload_vector(&mut self, values: &[f32]) -> Result<Self::Vector, BackendError>;

    /// Allocates an activation buffer `[max_rows, width]` f32.
    ///
    /// # Errors
    /// A device error.
    fn alloc(&mut self, max_rows: usize, width: usize) -> Result<Self::Buffer, BackendError>;

    /// Allocates room for the routes of `max_rows` rows to `n_used` of `n_experts` experts each.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] where there are more experts than the device can route to, or a device error.
    fn alloc_routes(
        &mut self,
        max_rows: usize,
        n_experts: usize,
        n_used: usize,
    ) -> Result<Self::Routes, BackendError>;
}

/// A weight matrix as it comes from a file.
#[derive(Clone, Copy, Debug)]
pub struct MatrixData<'a> {
    /// The tensor's name, for errors.
    pub name: &'a str,
    /// Its type.
    pub ty: TensorType,
    /// Rows, the width of the output.
    pub n_out: usize,
    /// Columns, the width of the input: contiguous in memory.
    pub n_in: usize,
    /// `n_out` rows of `ty.row_bytes(n_in)` bytes.
    pub bytes: TensorBytes<'a>,
    /// Which operations will read it.
    pub usage: MatrixUsage,
}

/// Which operations read a matrix, so that a backend can choose how to hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixUsage {
    /// [`Backend::linear`](crate::Backend::linear) alone.
    Linear,
    /// [`Backend::embed`](crate::Backend::embed) alone: few rows of a step, so a backend may leave them in the file.
    Embedding,
    /// Both: the token embedding of a model whose output head is tied to it.
    Tied,
    /// [`ExpertOperations::experts_linear`](crate::ExpertOperations::experts_linear) or
    /// [`LatentOperations::heads_linear`](crate::LatentOperations::heads_linear) alone: the matrices of so many experts or
    /// heads, each of as many rows, one after the other.
    Experts(usize),
    /// One of the two matrices of an adapter's change ([`LowRank`](crate::LowRank)).
    Adapter,
}

/// Something that a load allocates on a device.
#[derive(Clone, Copy, Debug)]
pub enum Allocation<'a> {
    /// By [`Memory::upload_matrix`].
    Matrix {
        /// The file's type, one that the device supports.
        ty: TensorType,
        /// Rows.
        n_out: usize,
        /// Columns.
        n_in: usize,
        /// Which operations will read it.
        usage: MatrixUsage,
        /// Whether its rows can be read from an open file later, as [`TensorBytes::keep`] gives them.
        is_in_file: bool,
    },
    /// By [`Memory::upload_vector`].
    Vector {
        /// Numbers.
        len: usize,
    },
    /// By [`Memory::alloc`].
    Buffer {
        /// Rows.
        max_rows: usize,
        /// Numbers of a row.
        width: usize,
    },
    /// By [`Memory::alloc_routes`].
    Routes {
        /// Rows.
        max_rows: usize,
        /// Experts there are.
        n_experts: usize,
        /// Experts that a row goes to.
        n_used: usize,
    },
    /// One page of the store that [`Backend::alloc_kv`](crate::Backend::alloc_kv) makes for a group, all layers of it.
    KvPage(&'a KvLayout),
    /// One slot of the store that [`Backend::alloc_states`](crate::Backend::alloc_states) makes, all layers.
    State(&'a StateLayout),
    /// By [`Backend::prepare`](crate::Backend::prepare).
    Workspace(&'a NetworkShape, &'a ExecutorLimits),
}
