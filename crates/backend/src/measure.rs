//! [`Measure`]: weighs a load without allocating.
//!
//! Separate from the memory that it stands for because it asks a backend what things take. It asks through [`Weigh`], so that a
//! network's dry load is compiled once and not for each backend. Invariant: it counts what the load asks for and nothing else.

use std::collections::BTreeMap;

use tokenmill_gguf::TensorType;

use crate::{Allocation, Backend, BackendError, MatrixData, Memory, NetworkPart, Side};

/// Says what a load would take. Object-safe; every [`Backend`] does.
pub trait Weigh {
    /// The device's name, for errors.
    fn device(&self) -> &'static str;

    /// Whether matrices of this type can be computed.
    fn supports(&self, ty: TensorType) -> bool;

    /// Whether the backend is made of two, of which each has some parts of the network.
    fn is_split(&self) -> bool;

    /// Memory that an allocation of a part takes on a side.
    fn bytes_at(&self, side: Side, part: NetworkPart, allocation: &Allocation<'_>) -> usize;
}

impl<B: Backend> Weigh for B {
    fn device(&self) -> &'static str {
        B::NAME
    }

    fn supports(&self, ty: TensorType) -> bool {
        Backend::supports(self, ty)
    }

    fn is_split(&self) -> bool {
        Backend::is_split(self)
    }

    fn bytes_at(&self, side: Side, part: NetworkPart, allocation: &Allocation<'_>) -> usize {
        Backend::bytes_at(self, side, part, allocation)
    }
}

/// Adds up what a load would take on a backend.
pub struct Measure<'a> {
    backend: &'a dyn Weigh,
    side: Side,
    part: NetworkPart,
    n_bytes: usize,
    by_part: BTreeMap<NetworkPart, usize>,
}

impl<'a> Measure<'a> {
    /// Begins with nothing, to weigh what a side of the backend gets.
    pub fn new(backend: &'a dyn Weigh, side: Side) -> Self {
        Self {
            backend,
            side,
            part: NetworkPart::Common,
            n_bytes: 0,
            by_part: BTreeMap::new(),
        }
    }

    /// Bytes of each part that there is.
    pub fn by_part(&self) -> &BTreeMap<NetworkPart, usize> {
        &self.by_part
    }

    /// Bytes so far; `usize::MAX` where the sum is beyond it.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    fn add(&mut self, allocation: Allocation<'_>) {
        let n_bytes = self.backend.bytes_at(self.side, self.part, &allocation);
        self.n_bytes = self.n_bytes.saturating_add(n_bytes);
        let of_part = self.by_part.entry(self.part).or_default();
        *of_part = of_part.saturating_add(n_bytes);
    }
}

impl Memory for Measure<'_> {
    type Matrix = ();
    type Vector = ();
    type Buffer = ();
    type Routes = ();

    fn enter(&mut self, part: NetworkPart) {
        self.part = part;
    }

    fn upload_matrix(&mut self, data: &MatrixData<'_>) -> Result<(), BackendError> {
        let MatrixData {
            ty,
            n_out,
            n_in,
            usage,
            bytes,
            ..
        } = *data;
        if !self.backend.supports(ty) {
            return Err(BackendError::UnsupportedType {
                tensor: data.name.to_owned(),
                ty: ty.name(),
                device: self.backend.device(),
            });
        }
        self.add(Allocation::Matrix {
            ty,
            n_out,
            n_in,
            usage,
            is_in_file: bytes.keep().is_some(),
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

    fn alloc_routes(&mut self, max_rows: usize, n_experts: usize, n_used: usize) -> Result<(), BackendError> {
        self.add(Allocation::Routes {
            max_rows,
            n_experts,
            n_used,
        });
        Ok(())
    }
}
