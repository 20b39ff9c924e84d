//! [`Planned`] records the kinds of matrices in a plan, so that their kernels are loaded before the free memory is measured.
//!
//! The plan is made before the load. Invariant: free memory is read after the driver has allocated memory for modules.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use tokenmill_backend::MatrixUsage;
use tokenmill_gguf::TensorType;

use crate::{Device, MatrixLayout, MatrixUse, error::Result, matrix::MatrixKernels, wide::Wide};

/// Determines the kernels of a matrix: its type, its uses, and whether its width fits the wgmma kernels.
type Kind = (TensorType, [bool; 3], bool);

/// Holds one matrix of each recorded kind.
#[derive(Debug, Default)]
pub(super) struct Planned(Mutex<HashMap<Kind, (MatrixLayout, MatrixUse)>>);

impl Planned {
    /// Records a matrix.
    pub(super) fn note(&self, layout: MatrixLayout, usage: MatrixUsage) {
        let usage = use_of(usage);
        let uses = [usage.is_table, usage.is_factor, usage.is_of_experts];
        let kind = (layout.ty(), uses, Wide::takes_width(layout.n_in()));
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kinds.entry(kind).or_insert((layout, usage));
    }

    /// Lists the types of the matrices with a use, by name.
    pub(super) fn types(&self, has_use: impl Fn(MatrixUse) -> bool) -> Vec<TensorType> {
        let kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let used = kinds.iter().filter(|(_, (_, usage))| has_use(*usage));
        let mut types: Vec<TensorType> = used.map(|((ty, ..), _)| *ty).collect();
        types.sort_unstable_by_key(|ty| ty.name());
        types.dedup();
        types
    }

    /// Loads the kernels of all recorded matrices.
    pub(super) fn load(&self, device: &Device) -> Result<()> {
        let kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kinds
            .values()
            .try_for_each(|(layout, usage)| MatrixKernels::load(device, layout, *usage).map(|_| ()))
    }
}

/// Converts the use of a matrix to the kernels' type.
pub(super) fn use_of(usage: MatrixUsage) -> MatrixUse {
    MatrixUse {
        is_table: matches!(usage, MatrixUsage::Embedding | MatrixUsage::Tied),
        is_factor: matches!(usage, MatrixUsage::Linear | MatrixUsage::Tied),
        is_of_experts: matches!(usage, MatrixUsage::Experts(_)),
    }
}
