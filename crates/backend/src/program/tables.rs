//! [`Tables`]: a device's weights by index, and the memory of a program's values.

use crate::{Backend, BackendError, Linear};

use super::{LinearId, MatrixId, OverVectors, Slot, VectorId, run::LinearOf};

/// Largest number of vectors among the arguments of an operation.
const MAX_VECTORS: usize = 3;

/// A device's side of programs: weights by index, and the memory of values. Each is absent only while an operation
/// has it, or if another backend has it.
pub(super) struct Tables<B: Backend> {
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
    pub(super) fn matrix(&self, id: MatrixId) -> Option<&B::Matrix> {
        self.matrices.get(id.0 as usize)?.as_ref()
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

    /// Allocates the next slot, unless it is elsewhere.
    pub(super) fn alloc(&mut self, slot: Option<&Slot>, backend: &mut B) -> Result<(), BackendError> {
        let (mut buffer, mut routes) = (None, None);
        match slot {
            None => {}
            Some(&Slot::Floats { max_rows, width }) => buffer = Some(backend.alloc(max_rows, width)?),
            Some(&Slot::Routes {
                max_rows,
                n_experts,
                n_used,
            }) => routes = Some(backend.alloc_routes(max_rows, n_experts, n_used)?),
        }
        self.buffers.push(buffer);
        self.routes.push(routes);
        Ok(())
    }
}
