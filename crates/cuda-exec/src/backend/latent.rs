//! The operations on latent rows.
//!
//! This file only chooses launches, as its parent does.

use tokenmill_backend::{BackendError, JoinedRows, LatentOperations, Linear};

use super::{CudaBackend, CudaBuffer, prepared};

impl LatentOperations for CudaBackend {
    fn heads_linear(
        &mut self,
        heads: &Linear<crate::Matrix, crate::Buffer<f32>>,
        n_heads: usize,
        n_rows: usize,
        input: &CudaBuffer,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let form = if heads.matrix.takes_quantized_input() {
            Some(input.read_quantized(&self.ops, [n_rows * n_heads, heads.n_in])?)
        } else {
            None
        };
        let product = crate::Product {
            matrix: &heads.matrix,
            bias: None,
            output: output.write(),
        };
        Ok(self.ops.heads_linear(
            [n_rows, n_heads],
            input.read(),
            form.as_ref().map(|form| form.view()),
            product,
        )?)
    }

    fn join(
        &mut self,
        n_rows: usize,
        left: JoinedRows<'_, CudaBuffer>,
        right: JoinedRows<'_, CudaBuffer>,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let rows = [left.rows.read(), right.rows.read()];
        Ok(self
            .ops
            .join(n_rows, rows, [left.width, right.width], output.write())?)
    }

    fn store_latent(
        &mut self,
        layer_idx: usize,
        n_tokens: usize,
        rows: &CudaBuffer,
    ) -> Result<(), BackendError> {
        let kv = self.kv.as_mut().expect("the KV store was allocated at load");
        let (group, layer_idx) = kv.place(layer_idx);
        let places = prepared(&mut self.workspace).inputs.places(n_tokens, group)?;
        let layer = kv.group_mut(group).layer_mut(layer_idx);
        Ok(self.ops.store_keys(places, rows.read(), layer)?)
    }
}
