//! Adapters as their formula: `y += strength * scale * B (A x)`.

use std::sync::Arc;

use tokenmill_backend::{AdapterError, AdapterId, AdapterMatrices, AdapterOperations, Linear};

use super::{NaiveBackend, NaiveMatrix, dot};

/// A loaded adapter.
pub(super) struct NaiveAdapter {
    id: AdapterId,
    matrices: Arc<AdapterMatrices<NaiveMatrix>>,
    strength: f32,
}

impl AdapterOperations for NaiveBackend {
    fn add_adapter(
        &mut self,
        id: AdapterId,
        matrices: Arc<AdapterMatrices<NaiveMatrix>>,
        strength: f32,
    ) -> Result<(), AdapterError> {
        self.adapters.push(NaiveAdapter {
            id,
            matrices,
            strength,
        });
        Ok(())
    }

    fn remove_adapter(&mut self, id: AdapterId) {
        self.adapters.retain(|adapter| adapter.id != id);
    }

    fn takes_adapters(&self) -> bool {
        true
    }
}

impl NaiveBackend {
    /// Adds the changes of the rows' adapters to a product of `input`, `[n_rows, n_in]`.
    pub(super) fn adapt(
        &self,
        linear: &Linear<NaiveMatrix, Vec<f32>>,
        input: &[f32],
        n_rows: usize,
        output: &mut [f32],
    ) {
        for run in self.step.adapter_runs().of(n_rows) {
            let Some(adapter) = self.adapters.iter().find(|adapter| adapter.id == run.adapter) else {
                continue;
            };
            let Some(change) = adapter.matrices.of(linear.adapter_place) else {
                continue;
            };
            for row in run.rows.clone() {
                let x = &input[row * linear.n_in..][..linear.n_in];
                let small: Vec<f32> = (0..change.rank).map(|i| dot(change.a.row(i), x)).collect();
                for (i, out) in output[row * linear.n_out..][..linear.n_out]
                    .iter_mut()
                    .enumerate()
                {
                    *out += adapter.strength * change.scale * dot(change.b.row(i), &small);
                }
            }
        }
    }
}
