//! [`Weights`]: the matrices and vectors that a program names, without their contents.
//!
//! A loader declares them in the order in which it reads them; a device keeps its own form of each at the same index.

use std::fmt;

use crate::{BackendError, MatrixData, MatrixUsage, NetworkPart};

/// A matrix's index in [`Weights`], and in the table of the device that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MatrixId(pub u32);

/// A vector's index in [`Weights`], and in the table of the device that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VectorId(pub u32);

/// A declared matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixInfo {
    /// The tensor's name.
    pub name: String,
    /// Number of rows: of experts, those of all of them.
    pub n_out: usize,
    /// Number of columns.
    pub n_in: usize,
    /// The part of the network to which it belongs.
    pub part: NetworkPart,
    /// The operations that read it.
    pub usage: MatrixUsage,
}

/// A declared vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VectorInfo {
    /// The tensor's name, or a description of computed values.
    pub name: String,
    /// Number of values.
    pub len: usize,
    /// The part of the network to which it belongs.
    pub part: NetworkPart,
}

/// The weights of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    matrices: Vec<MatrixInfo>,
    vectors: Vec<VectorInfo>,
}

impl Weights {
    /// Declares a matrix.
    pub fn add_matrix(&mut self, info: MatrixInfo) -> MatrixId {
        self.matrices.push(info);
        MatrixId(self.matrices.len() as u32 - 1)
    }

    /// Declares a vector.
    pub fn add_vector(&mut self, info: VectorInfo) -> VectorId {
        self.vectors.push(info);
        VectorId(self.vectors.len() as u32 - 1)
    }

    /// Returns a matrix; `None` for an index of another program.
    pub fn matrix(&self, id: MatrixId) -> Option<&MatrixInfo> {
        self.matrices.get(id.0 as usize)
    }

    /// Returns a vector; `None` for an index of another program.
    pub fn vector(&self, id: VectorId) -> Option<&VectorInfo> {
        self.vectors.get(id.0 as usize)
    }
}

/// Receives the weights of a network in the order in which they are declared: a device, or a measurement.
pub trait WeightStore {
    /// Sets the part of the network to which the next weights belong.
    fn enter(&mut self, part: NetworkPart);

    /// Takes the next matrix.
    ///
    /// # Errors
    /// [`BackendError::UnsupportedType`] if its type cannot be computed, or a device error.
    fn store_matrix(&mut self, data: &MatrixData<'_>) -> Result<(), BackendError>;

    /// Takes the next matrix from the network with which it is shared.
    fn share_matrix(&mut self);

    /// Takes the next vector.
    ///
    /// # Errors
    /// A device error.
    fn store_vector(&mut self, values: &[f32]) -> Result<(), BackendError>;
}

impl fmt::Display for MatrixInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.strip_suffix(".weight").unwrap_or(&self.name))
    }
}

impl fmt::Display for VectorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name.strip_suffix(".weight").unwrap_or(&self.name))
    }
}
