//! The launches of a model's steps, each compared with its repetition.
//!
//! A model launches kernels that no row of `kernel-bench` has, and in its own order. Steps are launched one after the other, without capture.
//! Invariant: the first two launches of one kernel and shape are tried.

use std::collections::HashMap;

use tokenmill_backend::{Executor as _, ForwardBatch, PAGE_TOKENS, RowOutput};
use tokenmill_cuda_exec::{CudaBackend, Device, LaunchShape, Launches};
use tokenmill_model::{Model, ModelExecutor};
use tokenmill_testkit::generate::{RunError, run as run_step};

use super::{Culprit, repeat::Repeater};
use crate::measure::subject::Sequences;

/// Tokens of the prompt.
pub(super) const N_PROMPT: usize = 8;
/// Launches of one kernel and shape that are tried.
const N_ALIKE: usize = 2;

const SEQUENCES: Sequences = Sequences {
    n_seqs: 1,
    n_ctx: 4 * PAGE_TOKENS,
};

/// Loads a model for short sequences.
///
/// # Errors
/// A model that does not fit, or a device that fails.
pub(super) fn load(model: &Model, device: Device) -> anyhow::Result<ModelExecutor> {
    let options = SEQUENCES.options(SEQUENCES.n_ctx);
    Ok(model.load_on(CudaBackend::new(device)?, &options, &mut |_| {})?)
}

/// Computes tokens after `n_stored` others and returns the logits of the last.
///
/// # Errors
/// The step's.
pub(super) fn step(
    executor: &mut ModelExecutor,
    tokens: &[u32],
    n_stored: usize,
) -> Result<Vec<f32>, RunError> {
    let mut batch = ForwardBatch::default();
    SEQUENCES.push(executor, &mut batch, 0, n_stored, tokens, RowOutput::Logits);
    Ok(run_step(executor, &batch)?.logits)
}

/// Returns the tokens of a prompt, spread over the vocabulary.
pub(super) fn prompt(executor: &ModelExecutor) -> Vec<u32> {
    let n_vocab = executor.limits().n_vocab;
    (1..=N_PROMPT).map(|idx| (idx * 7919 % n_vocab) as u32).collect()
}

/// Returns the first launch of a prompt and a decode step that failed or whose results differ from those of its repetition.
pub(super) fn search(executor: &mut ModelExecutor, repeater: &mut Repeater) -> Option<Culprit> {
    const STAGE: &str = "steps of the model";
    let device = executor.backend::<CudaBackend>().device().clone();
    executor.backend_mut::<CudaBackend>().set_graphs(false);
    device.set_launches(Launches::InOrder);
    let prompt = prompt(executor);
    let mut both = || -> Result<(), RunError> {
        step(executor, &prompt, 0)?;
        step(executor, &prompt[..1], N_PROMPT)?;
        Ok(())
    };
    let (_, launches) = device.launches_of(&mut both);
    let mut n_tried: HashMap<(String, LaunchShape), usize> = HashMap::new();
    for (index, launch) in launches.iter().enumerate() {
        let kernel = format!("{}/{}", launch.module, launch.name);
        let tried = n_tried.entry((kernel, launch.shape)).or_default();
        *tried += 1;
        if *tried > N_ALIKE {
            continue;
        }
        let (_, record) = device.record_launch(index, &mut both);
        let Some(record) = record else { break };
        let found = repeater.compare(&record);
        if !found.is_right() {
            return Some(Culprit::of_launch(
                STAGE,
                format!("launch {index}"),
                record,
                &found,
            ));
        }
    }
    None
}
