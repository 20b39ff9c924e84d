//! [`Planned`]: the kinds of matrices that a plan has, so that their kernels are loaded before it is asked how much memory is free.
//!
//! Separate from loading because a plan is made before. Invariant: what is free is asked for when the driver has taken what modules take.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use tokenmill_backend::MatrixUsage;
use tokenmill_gguf::TensorType;

use crate::{Device, MatrixLayout, MatrixUse, error::Result, matrix::MatrixKernels, wide::Wide};

/// What kernels of a matrix follow from: its type, its use, and whether its rows fit matrix operations of warpgroups.
type Kind = (TensorType, [bool; 3], bool);

/// A matrix of each kind that was asked about.
#[derive(Debug, Default)]
pub(super) struct Planned(Mutex<HashMap<Kind, (MatrixLayout, MatrixUse)>>);

impl Planned {
    /// Notes a matrix.
    pub(super) fn note(&self, layout: MatrixLayout, usage: MatrixUsage) {
        let usage = use_of(usage);
        let uses = [usage.is_table, usage.is_factor, usage.is_of_experts];
        let kind = (layout.ty(), uses, Wide::takes_width(layout.n_in()));
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kinds.entry(kind).or_insert((layout, usage));
    }

    /// The types of those that are multiplied.
    pub(super) fn types(&self) -> Vec<TensorType> {
        let kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let factors = kinds.keys().filter(|(_, [_, is_factor, _], _)| *is_factor);
        let mut types: Vec<TensorType> = factors.map(|(ty, ..)| *ty).collect();
        types.sort_unstable_by_key(|ty| ty.name());
        types.dedup();
        types
    }

    /// Loads the kernels of all of them.
    pub(super) fn load(&self, device: &Device) -> Result<()> {
        let kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kinds
            .values()
            .try_for_each(|(layout, usage)| MatrixKernels::load(device, layout, *usage).map(|_| ()))
    }
}

/// What a matrix is used for, as kernels know it.
pub(super) fn use_of(usage: MatrixUsage) -> MatrixUse {
    MatrixUse {
        is_table: matches!(usage, MatrixUsage::Embedding | MatrixUsage::Tied),
        is_factor: matches!(usage, MatrixUsage::Linear | MatrixUsage::Tied),
        is_of_experts: matches!(usage, MatrixUsage::Experts(_)),
    }
}
