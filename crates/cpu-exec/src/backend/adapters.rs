//! Adapters on the host: those that are there, and what they add to the products of a step.
//!
//! Separate from the products because most steps have no adapter, and then nothing here runs. Invariant: a product without an
//! adapter in its step takes the path that it takes where there are none.

use std::sync::Arc;

use tokenmill_backend::{AdapterError, AdapterId, AdapterMatrices, AdapterOperations, LinearJob};

use super::CpuBackend;
use crate::{
    Matrix,
    adapt::{AdaptScratch, AdaptTarget, AdaptedRows, Change, MAX_TARGETS, adapt},
};

/// The adapters, and memory for what they compute.
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
    /// Whether an adapter of this step changes one of these products of `n_rows` rows.
    pub(super) fn adapts(&self, places: &[Option<u32>], n_rows: usize) -> bool {
        let runs = self.step.adapter_runs();
        !runs.is_empty()
            && runs.of(n_rows).iter().any(|run| {
                let loaded = self
                    .adapters
                    .loaded
                    .iter()
                    .find(|loaded| loaded.id == run.adapter);
                loaded.is_some_and(|loaded| places.iter().any(|&place| loaded.matrices.of(place).is_some()))
            })
    }

    /// Adds to products of `input`, `[n_rows, n_in]`, what the adapters of the step's rows say.
    pub(super) fn adapt(&mut self, input: &[f32], n_rows: usize, jobs: &mut [LinearJob<'_, Self>]) {
        if self.step.adapter_runs().is_empty() {
            return;
        }
        for jobs in jobs.chunks_mut(MAX_TARGETS) {
            self.adapt_few(input, n_rows, jobs);
        }
    }

    fn adapt_few(&mut self, input: &[f32], n_rows: usize, jobs: &mut [LinearJob<'_, Self>]) {
        let Adapters {
            loaded,
            scratch,
            adapted,
        } = &mut self.adapters;
        let mut places = [None; MAX_TARGETS];
        for (place, job) in places.iter_mut().zip(&*jobs) {
            *place = job.linear.adapter_place;
        }
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
        let change_of = |rows: &AdaptedRows| {
            let Loaded {
                matrices, strength, ..
            } = &loaded[rows.adapter_idx];
            let change =
                (matrices.of(places[rows.target_idx])).expect("rows are named where there is a change");
            Change {
                a: &change.a,
                b: &change.b,
                scale: change.scale * strength,
            }
        };
        let mut jobs = jobs.iter_mut();
        let targets = std::array::from_fn(|_| {
            jobs.next().map(|job| AdaptTarget {
                n_out: job.linear.n_out,
                out: &mut job.output[..n_rows * job.linear.n_out],
            })
        });
        adapt(
            &self.host,
            &mut self.workspace,
            scratch,
            input,
            adapted,
            change_of,
            targets,
        );
    }
}
