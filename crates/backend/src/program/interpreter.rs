//! [`Interpreter`]: a backend with the weights and the memory that programs name. It runs operations one at a time.
//!
//! A [`Bridge`](super::Bridge) has one; a device that is made of several backends has one for each, and decides which of them
//! runs an operation. Invariant: weights and slots keep the indices by which a program names them, also those that only another
//! backend has.

use crate::{Backend, BackendError, MatrixData, StepShape};

use super::{Op, Prepared, Slot, run::Run, tables::Tables};

/// A backend with a network's weights and the memory of its programs.
pub struct Interpreter<B: Backend> {
    /// The backend.
    pub backend: B,
    pub(super) tables: Tables<B>,
}

impl<B: Backend> Interpreter<B> {
    /// Takes a backend, without weights.
    pub fn new(backend: B) -> Self {
        Self {
            backend,
            tables: Tables::default(),
        }
    }

    /// Uploads the next matrix; `None` stands for one that is elsewhere.
    ///
    /// # Errors
    /// As [`Memory::upload_matrix`](crate::Memory::upload_matrix).
    pub fn store_matrix(&mut self, data: Option<&MatrixData<'_>>) -> Result<(), BackendError> {
        let matrix = data.map(|data| self.backend.upload_matrix(data)).transpose()?;
        self.tables.matrices.push(matrix);
        Ok(())
    }

    /// Uploads the next vector; `None` stands for one that is elsewhere.
    ///
    /// # Errors
    /// A device error.
    pub fn store_vector(&mut self, values: Option<&[f32]>) -> Result<(), BackendError> {
        let vector = values
            .map(|values| self.backend.upload_vector(values))
            .transpose()?;
        self.tables.vectors.push(vector);
        Ok(())
    }

    /// Allocates the slots of programs; `None` stands for one that this backend does not use.
    ///
    /// # Errors
    /// A device error.
    pub fn alloc<'a>(
        &mut self,
        slots: impl IntoIterator<Item = Option<&'a Slot>>,
    ) -> Result<(), BackendError> {
        slots
            .into_iter()
            .try_for_each(|slot| self.tables.alloc(slot, &mut self.backend))
    }

    /// Runs an operation on the values of the variant that a begun step selects.
    ///
    /// # Errors
    /// A device error.
    ///
    /// # Panics
    /// If a weight or a value is elsewhere.
    pub fn run(&mut self, prepared: &Prepared, shape: &StepShape, op: &Op) -> Result<(), BackendError> {
        Run {
            backend: &mut self.backend,
            tables: &mut self.tables,
            program: prepared.variant(shape),
            shape,
            prepared,
        }
        .op(op)
    }

    /// Returns the backend and the memory of a slot of numbers, `None` if it is elsewhere.
    pub fn buffer(&mut self, slot: usize) -> (&mut B, Option<&mut B::Buffer>) {
        (&mut self.backend, self.tables.buffers[slot].as_mut())
    }
}
