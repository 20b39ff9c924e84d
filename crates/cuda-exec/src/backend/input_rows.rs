//! [`InputRows`]: the upload of rows in place of tokens, such as those of an image.
//!
//! The rows overwrite the embeddings that were looked up for their tokens. Invariants: a step with rows is not captured; memory for rows
//! is allocated when the first ones come, and kept.

use tokenmill_backend::{BackendError, ForwardBatch, TokenSource};

use super::{CudaBackend, CudaBuffer, prepared};

/// Holds consecutive tokens whose rows are consecutive too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    token_idx: usize,
    row: usize,
    len: usize,
}

/// Holds the rows of the current step.
#[derive(Default)]
pub(super) struct InputRows {
    /// Used in turn, so that the host can write the next step's rows while the device reads the last ones. The parts are stored one after
    /// the other, each with its rows together.
    staging: [Option<crate::Pinned<f32>>; 2],
    n_steps: usize,
    runs: Vec<Run>,
    n_rows: usize,
    /// A part on the device, to be added after a layer.
    part: Option<crate::Buffer<f32>>,
}

fn runs_of(tokens: &[TokenSource]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (token_idx, token) in tokens.iter().enumerate() {
        let TokenSource::Row(row) = *token else { continue };
        let row = row as usize;
        match runs.last_mut() {
            Some(run) if run.token_idx + run.len == token_idx && run.row + run.len == row => run.len += 1,
            _ => runs.push(Run {
                token_idx,
                row,
                len: 1,
            }),
        }
    }
    runs
}

impl InputRows {
    /// Takes the rows of a step. `width` is that of a hidden state.
    pub(super) fn begin(
        &mut self,
        device: &crate::Device,
        batch: &ForwardBatch,
        width: usize,
    ) -> Result<(), BackendError> {
        self.runs = runs_of(&batch.tokens);
        if self.runs.is_empty() {
            return Ok(());
        }
        self.n_rows = batch.input_rows.len() / batch.input_width;
        self.n_steps += 1;
        let staging = &mut self.staging[self.n_steps % 2];
        let len = batch.input_rows.len();
        if staging.as_ref().is_none_or(|staging| staging.len() < len) {
            *staging = Some(device.alloc_pinned(len)?);
        }
        let host = staging.as_mut().expect("it was made").host()?;
        let parts = host.chunks_exact_mut(self.n_rows * width);
        for (part, of_part) in parts.take(batch.input_width / width).enumerate() {
            let rows = batch.input_rows.chunks_exact(batch.input_width);
            for (to, row) in of_part.chunks_exact_mut(width).zip(rows) {
                to.copy_from_slice(&row[part * width..(part + 1) * width]);
            }
        }
        Ok(())
    }

    /// Queues the copies of a part's rows to the rows of their tokens, `to: [T, width]`.
    fn copy(
        runs: &[Run],
        staging: &mut crate::Pinned<f32>,
        first_row: usize,
        width: usize,
        mut to: crate::ViewMut<'_, f32>,
    ) -> Result<(), BackendError> {
        for run in runs {
            let from = (first_row + run.row) * width..(first_row + run.row + run.len) * width;
            let rows = run.token_idx * width..(run.token_idx + run.len) * width;
            staging.upload(crate::Stream::Compute, from, &to.reborrow().range(rows)?)?;
        }
        Ok(())
    }
}

impl CudaBackend {
    /// Copies the rows of a step over the embeddings in their place, `output: [T, width]`.
    pub(super) fn take_input_rows(&mut self, output: &mut CudaBuffer) -> Result<(), BackendError> {
        let width = self.width();
        let rows = &mut prepared(&mut self.workspace).input_rows;
        if rows.runs.is_empty() {
            return Ok(());
        }
        let staging = rows.staging[rows.n_steps % 2].as_mut();
        let staging = staging.expect("the step began with rows");
        InputRows::copy(&rows.runs, staging, 0, width, output.write())
    }

    /// Adds a part of a step's rows to the rows of their tokens, `output: [T, width]`.
    pub(super) fn add_part(&mut self, part: usize, output: &mut CudaBuffer) -> Result<(), BackendError> {
        let width = self.width();
        let workspace = prepared(&mut self.workspace);
        let n_tokens = workspace.inputs.limits().max_batch_tokens;
        let rows = &mut workspace.input_rows;
        if rows.runs.is_empty() {
            return Ok(());
        }
        if rows.part.is_none() {
            rows.part = Some(self.device.alloc("rows of images", n_tokens * width)?);
        }
        let on_device = rows.part.as_mut().expect("it was made");
        let staging = rows.staging[rows.n_steps % 2].as_mut();
        let staging = staging.expect("the step began with rows");
        InputRows::copy(
            &rows.runs,
            staging,
            part * rows.n_rows,
            width,
            on_device.view_mut(),
        )?;
        for run in &rows.runs {
            let place = run.token_idx * width..(run.token_idx + run.len) * width;
            let to = output.write().range(place.clone())?;
            (self.ops).add(1.0, [run.len, width], to, on_device.view().range(place)?)?;
        }
        Ok(())
    }

    /// Returns the width of a hidden state.
    fn width(&mut self) -> usize {
        prepared(&mut self.workspace).inputs.limits().n_embd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_follow_each_other_are_copied_at_once() {
        use TokenSource::{Id, Row};
        let tokens = [Id(3), Row(4), Row(5), Row(1), Id(1), Row(2), Row(3)];
        let run = |token_idx, row, len| Run { token_idx, row, len };
        assert_eq!(runs_of(&tokens), [run(1, 4, 2), run(3, 1, 1), run(5, 2, 2)]);
        assert_eq!(runs_of(&[Id(1)]), []);
    }
}
