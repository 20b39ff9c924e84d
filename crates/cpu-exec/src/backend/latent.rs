//! The operations on latent rows on the host.
//!
//! Only latent attention has them. Invariant: as in the parent module, this file only slices buffers.

use tokenmill_backend::{BackendError, JoinedRows, LatentOperations, Linear};

use super::{CpuBackend, CpuVector, KV_ALLOCATED};

impl LatentOperations for CpuBackend {
    fn heads_linear(
        &mut self,
        heads: &Linear<crate::Matrix, CpuVector>,
        n_heads: usize,
        n_rows: usize,
        input: &Vec<f32>,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let input = &input[..n_rows * n_heads * heads.n_in];
        self.show_heads(&heads.matrix, n_heads, input);
        crate::heads_linear(
            &self.host,
            &mut self.workspace,
            input,
            &heads.matrix,
            &mut output[..n_rows * n_heads * heads.n_out],
        );
        Ok(())
    }

    fn join(
        &mut self,
        n_rows: usize,
        left: JoinedRows<'_, Vec<f32>>,
        right: JoinedRows<'_, Vec<f32>>,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let width = left.width + right.width;
        crate::join_rows(
            &self.host,
            [left.rows, right.rows],
            [left.width, right.width],
            &mut output[..n_rows * width],
        );
        Ok(())
    }

    fn store_latent(
        &mut self,
        layer_idx: usize,
        n_tokens: usize,
        rows: &Vec<f32>,
    ) -> Result<(), BackendError> {
        let stores = self.kv.as_mut().expect(KV_ALLOCATED);
        let (group, layer_idx) = stores.place(layer_idx);
        let kv = &mut stores.group_mut(group).pool;
        let width = kv.shape(layer_idx).head_dim_k;
        let slots = &self.step.batch().slots_in(group)[..n_tokens];
        kv.store_keys(&self.host, layer_idx, slots, &rows[..n_tokens * width]);
        Ok(())
    }
}
