//! [`Measure`]: computes the memory of a load without allocating.
//!
//! It asks a backend through [`Weigh`] how much each allocation takes, so that a network's dry load is
//! compiled once and not for each backend. Invariant: it counts exactly the load's requests.

use std::collections::BTreeMap;

use crate::{
    Allocation, BackendError, MatrixData, NetworkPart, Side, Weigh,
    program::{Slot, WeightStore},
};

/// Sums the memory of a load on a backend.
pub struct Measure<'a> {
    backend: &'a dyn Weigh,
    side: Side,
    part: NetworkPart,
    n_bytes: usize,
    by_part: BTreeMap<NetworkPart, usize>,
}

impl<'a> Measure<'a> {
    /// Creates an empty sum for one side of the backend.
    pub fn new(backend: &'a dyn Weigh, side: Side) -> Self {
        Self {
            backend,
            side,
            part: NetworkPart::Common,
            n_bytes: 0,
            by_part: BTreeMap::new(),
        }
    }

    /// Returns the bytes of each part.
    pub fn by_part(&self) -> &BTreeMap<NetworkPart, usize> {
        &self.by_part
    }

    /// Returns the bytes so far; `usize::MAX` on overflow.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Adds the memory that programs work in: the slots that the side uses.
    pub fn add_slots<'s>(&mut self, slots: impl IntoIterator<Item = &'s Slot>) {
        for slot in slots {
            self.add(match *slot {
                Slot::Floats { max_rows, width } => Allocation::Buffer { max_rows, width },
                Slot::Routes {
                    max_rows,
                    n_experts,
                    n_used,
                } => Allocation::Routes {
                    max_rows,
                    n_experts,
                    n_used,
                },
            });
        }
    }

    fn add(&mut self, allocation: Allocation<'_>) {
        let n_bytes = self.backend.bytes_at(self.side, self.part, &allocation);
        self.n_bytes = self.n_bytes.saturating_add(n_bytes);
        let of_part = self.by_part.entry(self.part).or_default();
        *of_part = of_part.saturating_add(n_bytes);
    }
}

impl WeightStore for Measure<'_> {
    fn enter(&mut self, part: NetworkPart) {
        self.part = part;
    }

    fn store_matrix(&mut self, data: &MatrixData<'_>) -> Result<(), BackendError> {
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

    /// Shared weights are counted with the network that loaded them.
    fn share_matrix(&mut self) {}

    fn store_vector(&mut self, values: &[f32]) -> Result<(), BackendError> {
        self.add(Allocation::Vector { len: values.len() });
        Ok(())
    }
}
