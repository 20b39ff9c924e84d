//! [`Tables`]: a device's weights by index, and the memory of a program's values.

use std::collections::VecDeque;

use crate::{Backend, BackendError, Linear, MatrixData, NetworkPart};

use super::{LinearId, MatrixId, NormId, OverVectors, Slot, VectorId, WeightStore, run::LinearOf};

/// Largest number of vectors among the arguments of an operation.
const MAX_VECTORS: usize = 3;

/// A device's side of programs: weights by index, and the memory of values. Each is absent only while an operation
/// has it.
pub struct Tables<B: Backend> {
    pub(super) matrices: Vec<Option<B::Matrix>>,
    pub(super) vectors: Vec<Option<B::Vector>>,
    pub(super) buffers: Vec<Option<B::Buffer>>,
    pub(super) routes: Vec<Option<B::Routes>>,
}

/// The vectors that an operation has.
#[derive(Clone, Copy, Default)]
pub(super) struct Taken {
    ids: [usize; MAX_VECTORS],
    n: usize,
}

impl<B: Backend> Default for Tables<B> {
    fn default() -> Self {
        Self {
            matrices: Vec::new(),
            vectors: Vec::new(),
            buffers: Vec::new(),
            routes: Vec::new(),
        }
    }
}

impl<B: Backend> Tables<B> {
    /// Returns a matrix; `None` for an index of another network.
    pub fn matrix(&self, id: MatrixId) -> Option<&B::Matrix> {
        self.matrices.get(id.0 as usize)?.as_ref()
    }

    /// Multiplies outside of a step, as [`Op::Linear`](super::Op::Linear) does.
    ///
    /// # Errors
    /// A device error.
    pub fn linear(
        &mut self,
        backend: &mut B,
        linear: LinearId,
        x: &B::Buffer,
        n_rows: usize,
        y: &mut B::Buffer,
    ) -> Result<(), BackendError> {
        let bound = self.take_linear(linear);
        let done = backend.linear(&bound, x, n_rows, y);
        self.return_linear(linear, bound);
        done
    }

    /// Norms outside of a step, as [`Op::Norm`](super::Op::Norm) does.
    ///
    /// # Errors
    /// A device error.
    pub fn norm(
        &mut self,
        backend: &mut B,
        norm: NormId,
        x: &B::Buffer,
        n_rows: usize,
        y: &mut B::Buffer,
    ) -> Result<(), BackendError> {
        let (bound, ids) = self.take_vectors(norm);
        let done = backend.norm(&bound, x, n_rows, y);
        self.return_vectors::<NormId>(bound, ids);
        done
    }

    /// Takes the vectors of an operation's arguments until [`Self::return_vectors`].
    pub(super) fn take_vectors<A: OverVectors<VectorId>>(
        &mut self,
        arguments: A,
    ) -> (A::Of<B::Vector>, Taken) {
        let mut taken = Taken::default();
        let bound = arguments.map_vectors(&mut |id: VectorId| {
            taken.ids[taken.n] = id.0 as usize;
            taken.n += 1;
            self.vectors[id.0 as usize]
                .take()
                .expect("an operation names a vector once")
        });
        (bound, taken)
    }

    pub(super) fn return_vectors<A: OverVectors<VectorId>>(&mut self, bound: A::Of<B::Vector>, taken: Taken)
    where
        A::Of<B::Vector>: OverVectors<B::Vector>,
    {
        let mut ids = taken.ids.into_iter();
        bound.map_vectors(&mut |vector| {
            let id = ids.next().expect("as many as were taken");
            self.vectors[id] = Some(vector);
        });
    }

    /// Takes a matrix and its bias until [`Self::return_linear`].
    pub(super) fn take_linear(&mut self, linear: LinearId) -> LinearOf<B> {
        let matrix = self.matrices[linear.matrix.0 as usize].take();
        Linear {
            matrix: matrix.expect("an operation names a matrix once"),
            bias: linear.bias.map(|bias| {
                let bias = self.vectors[bias.0 as usize].take();
                bias.expect("an operation names a vector once")
            }),
            n_out: linear.n_out,
            n_in: linear.n_in,
            adapter_place: linear.adapter_place,
        }
    }

    pub(super) fn return_linear(&mut self, linear: LinearId, bound: LinearOf<B>) {
        self.matrices[linear.matrix.0 as usize] = Some(bound.matrix);
        if let Some(id) = linear.bias {
            self.vectors[id.0 as usize] = bound.bias;
        }
    }

    /// Allocates the memory of programs.
    ///
    /// # Errors
    /// A device error.
    pub fn alloc(&mut self, slots: &[Slot], backend: &mut B) -> Result<(), BackendError> {
        for slot in slots {
            let (mut buffer, mut routes) = (None, None);
            match *slot {
                Slot::Floats {
                    max_rows,
                    width,
                    part,
                } => {
                    backend.enter(part);
                    buffer = Some(backend.alloc(max_rows, width)?);
                }
                Slot::Routes {
                    max_rows,
                    n_experts,
                    n_used,
                } => {
                    backend.enter(NetworkPart::Common);
                    routes = Some(backend.alloc_routes(max_rows, n_experts, n_used)?);
                }
            }
            self.buffers.push(buffer);
            self.routes.push(routes);
        }
        Ok(())
    }
}

/// Uploads the weights of a network to a device.
pub struct Uploads<'a, B: Backend> {
    /// The device.
    pub backend: &'a mut B,
    /// Where its form of the weights is kept.
    pub tables: &'a mut Tables<B>,
    /// The matrices that another network has loaded, in the order of [`WeightStore::share_matrix`].
    pub shared: VecDeque<B::Matrix>,
}

impl<B: Backend> WeightStore for Uploads<'_, B> {
    fn enter(&mut self, part: NetworkPart) {
        self.backend.enter(part);
    }

    fn store_matrix(&mut self, data: &MatrixData<'_>) -> Result<(), BackendError> {
        let matrix = self.backend.upload_matrix(data)?;
        self.tables.matrices.push(Some(matrix));
        Ok(())
    }

    fn share_matrix(&mut self) {
        let matrix = self.shared.pop_front().expect("as many as the network shares");
        self.tables.matrices.push(Some(matrix));
    }

    fn store_vector(&mut self, values: &[f32]) -> Result<(), BackendError> {
        let vector = self.backend.upload_vector(values)?;
        self.tables.vectors.push(Some(vector));
        Ok(())
    }
}
