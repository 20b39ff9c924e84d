//! The operations on latent rows, each as its formula.

use tokenmill_backend::{BackendError, JoinedRows, LatentOperations, Linear};

use super::{NaiveBackend, NaiveMatrix, dot};

impl LatentOperations for NaiveBackend {
    fn heads_linear(
        &mut self,
        heads: &Linear<NaiveMatrix, Vec<f32>>,
        n_heads: usize,
        n_rows: usize,
        input: &Vec<f32>,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let (n_in, n_out) = (heads.n_in, heads.n_out);
        for run_idx in 0..n_rows * n_heads {
            let head = run_idx % n_heads;
            let x = &input[run_idx * n_in..][..n_in];
            for (i, out) in output[run_idx * n_out..][..n_out].iter_mut().enumerate() {
                *out = dot(heads.matrix.row(head * n_out + i), x);
            }
        }
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
        for row_idx in 0..n_rows {
            let out = &mut output[row_idx * width..][..width];
            out[..left.width].copy_from_slice(&left.rows[row_idx * left.width..][..left.width]);
            out[left.width..].copy_from_slice(&right.rows[row_idx * right.width..][..right.width]);
        }
        Ok(())
    }

    fn store_latent(
        &mut self,
        layer_idx: usize,
        n_tokens: usize,
        rows: &Vec<f32>,
    ) -> Result<(), BackendError> {
        self.kv.store_latent(layer_idx, self.step.batch(), n_tokens, rows);
        Ok(())
    }
}
