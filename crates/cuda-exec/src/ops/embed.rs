//! Embedding look-up. Kernels: `embed.cu`, `embed_float.cu`.

use super::Ops;
use crate::{Args, CudaExecError, LaunchShape, Matrix, View, ViewMut, error::Result};

/// The tokens of a step.
#[derive(Clone, Copy, Debug)]
pub struct TokenIds<'a> {
    /// Ids, `[T]`; with the upper bit set, the rest is a row of `sampled`.
    pub tokens: View<'a, u32>,
    /// Ids sampled in the step before.
    pub sampled: View<'a, u32>,
}

impl Ops {
    /// Looks up tokens: `output[t] = scale * table[tokens[t]]`, `[T, n_in]`.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`], or the driver's.
    pub fn embed(
        &self,
        table: &Matrix,
        ids: TokenIds<'_>,
        scale: f32,
        output: ViewMut<'_, f32>,
    ) -> Result<()> {
        let n_tokens = ids.tokens.len();
        let kernel = table.kernels.embed.ok_or(CudaExecError::Unsupported {
            feature: "look-up in a matrix that was not loaded as a table".to_owned(),
        })?;
        let args = Args::new()
            .read(table.view())
            .count(table.n_out())
            .count(table.n_in())
            .read(ids.tokens)
            .read(ids.sampled)
            .float(scale)
            .write(output.range(0..n_tokens * table.n_in())?);
        self.device
            .launch(kernel, LaunchShape::new([n_tokens, 1, 1], 128), &args)
    }
}
