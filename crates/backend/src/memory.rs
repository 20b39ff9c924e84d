//! [`Memory`]: what a load asks of a device, and [`Measure`], which weighs a load without allocating.
//!
//! Separate from [`Backend`] because a load runs twice: first against [`Measure`], for the plan of the memory, then against
//! the device. Invariant: both take the same path, so the plan counts what the load allocates and nothing else.

use crate::{Backend, BackendError, ExecutorLimits, KvLayout, MatrixData, MatrixUsage, NetworkShape};
use tokenmill_gguf::TensorType;

/// Where a network's weights and buffers are: a device, or a scale.
pub trait Memory: Sized {
    /// A weight matrix in the form that the operations read.
    type Matrix;
    /// A weight vector, f32: norms, biases, rope frequencies, attention sinks.
    type Vector;
    /// An activation buffer `[max_rows, width]` f32.
    type Buffer;

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
    /// One page of the store that [`Backend::alloc_kv`] makes, all layers.
    KvPage(&'a KvLayout),
    /// By [`Backend::prepare`].
    Workspace(&'a NetworkShape, &'a ExecutorLimits),
}

/// Adds up what a load would take on a backend.
pub struct Measure<'a, B> {
    backend: &'a B,
    n_bytes: usize,
}

impl<'a, B: Backend> Measure<'a, B> {
    /// Begins with nothing.
    pub fn new(backend: &'a B) -> Self {
        Self { backend, n_bytes: 0 }
    }

    /// Bytes so far; `usize::MAX` where the sum is beyond it.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    fn add(&mut self, allocation: Allocation<'_>) {
        self.n_bytes = self.n_bytes.saturating_add(self.backend.bytes_of(&allocation));
    }
}

impl<B: Backend> Memory for Measure<'_, B> {
    type Matrix = ();
    type Vector = ();
    type Buffer = ();

    fn upload_matrix(&mut self, data: &MatrixData<'_>) -> Result<(), BackendError> {
        let MatrixData {
            ty,
            n_out,
            n_in,
            usage,
            ..
        } = *data;
        if !self.backend.supports(ty) {
            return Err(BackendError::UnsupportedType {
                tensor: data.name.to_owned(),
                ty: ty.name(),
                device: B::NAME,
            });
        }
        self.add(Allocation::Matrix {
            ty,
            n_out,
            n_in,
            usage,
        });
        Ok(())
    }

    fn upload_vector(&mut self, values: &[f32]) -> Result<(), BackendError> {
        self.add(Allocation::Vector { len: values.len() });
        Ok(())
    }

    fn alloc(&mut self, max_rows: usize, width: usize) -> Result<(), BackendError> {
        self.add(Allocation::Buffer { max_rows, width });
        Ok(())
    }
}
