//! Adapters on the host: the loaded ones, and the changes that they add to the products of a step.
//!
//! Most steps have no adapter, and then nothing here runs. Invariant: a product without an adapter in its
//! step takes the same path as a product of a model without adapters.

use std::sync::Arc;

use tokenmill_backend::{AdapterError, AdapterId, AdapterMatrices, AdapterOperations};

use super::CpuBackend;
use crate::{
    Host, Matrix, Workspace,
    adapt::{AdaptScratch, AdaptedRows, Adapting, Change, Changes},
};

/// The adapters, and the memory that they compute in.
#[derive(Debug, Default)]
pub(super) struct Adapters {
    loaded: Vec<Loaded>,
    scratch: AdaptScratch,
    adapted: Vec<AdaptedRows>,
}

#[derive(Debug)]
struct Loaded {
    id: AdapterId,
    matrices: Arc<AdapterMatrices<Matrix>>,
    strength: f32,
}

impl AdapterOperations for CpuBackend {
    fn add_adapter(
        &mut self,
        id: AdapterId,
        matrices: Arc<AdapterMatrices<Matrix>>,
        strength: f32,
    ) -> Result<(), AdapterError> {
        self.adapters.loaded.push(Loaded {
            id,
            matrices,
            strength,
        });
        Ok(())
    }

    fn remove_adapter(&mut self, id: AdapterId) {
        self.adapters.loaded.retain(|loaded| loaded.id != id);
    }

    fn takes_adapters(&self) -> bool {
        true
    }
}

impl CpuBackend {
    /// Calls `f` with the host, the workspace and the changes that the adapters of the step's rows make to
    /// the products at `places`. The changes are `None` if no adapter changes these products.
    pub(super) fn with_changes(
        &mut self,
        places: &[Option<u32>],
        n_rows: usize,
        f: impl FnOnce(&Host, &mut Workspace, Option<Adapting<'_>>),
    ) {
        let (host, workspace) = (&*self.host, &mut self.workspace);
        let Adapters {
            loaded,
            scratch,
            adapted,
        } = &mut self.adapters;
        adapted.clear();
        for run in self.step.adapter_runs().of(n_rows) {
            let Some(adapter_idx) = loaded.iter().position(|loaded| loaded.id == run.adapter) else {
                continue;
            };
            for (target_idx, &place) in places.iter().enumerate() {
                if loaded[adapter_idx].matrices.of(place).is_some() {
                    adapted.push(AdaptedRows {
                        target_idx,
                        adapter_idx,
                        rows: run.rows.clone(),
                    });
                }
            }
        }
        if adapted.is_empty() {
            return f(host, workspace, None);
        }
        let adapting = Adapting {
            adapted,
            changes: &StepChanges { loaded, places },
            scratch,
        };
        f(host, workspace, Some(adapting));
    }
}

/// The changes of a group of products.
struct StepChanges<'a> {
    loaded: &'a [Loaded],
    places: &'a [Option<u32>],
}

impl Changes for StepChanges<'_> {
    fn of(&self, rows: &AdaptedRows) -> Change<'_> {
        let Loaded {
            matrices, strength, ..
        } = &self.loaded[rows.adapter_idx];
        let change =
            (matrices.of(self.places[rows.target_idx])).expect("rows are named where there is a change");
        Change {
            a: &change.a,
            b: &change.b,
            scale: change.scale * strength,
        }
    }
}
