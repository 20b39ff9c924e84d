//! Short ways to run an [`Executor`] in tests: logits of a prompt, greedy continuations.
//!
//! They do not use the engine's scheduler, so that tests of a model do not depend on it.

use std::sync::Arc;

use tokenmill_backend::{
    Executor, ForwardBatch, PAGE_TOKENS, RowError, RowOutput, SampleRow, SamplingParams, SeqState, StepError,
    StepOutput, TokenSource,
};

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// A step failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A row yielded no token.
    #[error(transparent)]
    Row(#[from] RowError),
}

/// Returns the logits at every position of `tokens`, `[n_tokens, n_vocab]`, in one step over the first KV pages.
///
/// # Errors
/// [`RunError`].
pub fn all_logits(executor: &mut dyn Executor, tokens: &[u32]) -> Result<Vec<f32>, RunError> {
    let mut batch = ForwardBatch::default();
    batch.push_sequence(ids(tokens), 0, &first_pages(tokens.len()));
    push_state(executor, &mut batch);
    for row in 0..tokens.len() as u32 {
        batch.logit_rows.push(row);
        batch.outputs.push(RowOutput::Logits);
    }
    Ok(run(executor, &batch)?.logits)
}

/// Returns the row that the network computes for `tokens` as a whole, in one step over the first KV pages.
///
/// # Errors
/// [`RunError`].
pub fn pooled_row(executor: &mut dyn Executor, tokens: &[u32]) -> Result<Vec<f32>, RunError> {
    let mut batch = ForwardBatch::default();
    batch.push_sequence(ids(tokens), 0, &first_pages(tokens.len()));
    let last = (tokens.len() as u32).saturating_sub(1);
    batch.hidden_rows.push(executor.limits().pooled_row(0, last));
    Ok(run(executor, &batch)?.hidden)
}

/// Returns the greedy continuation of `prompt`, over the first KV pages. The prompt is one step, each further token
/// another.
///
/// # Errors
/// [`RunError`].
pub fn greedy(executor: &mut dyn Executor, prompt: &[u32], n_new: usize) -> Result<Vec<u32>, RunError> {
    greedy_without(executor, prompt, n_new, &[])
}

/// As [`greedy`], without tokens that are `banned`.
///
/// # Errors
/// [`RunError`].
pub fn greedy_without(
    executor: &mut dyn Executor,
    prompt: &[u32],
    n_new: usize,
    banned: &[u32],
) -> Result<Vec<u32>, RunError> {
    let params = Arc::new(SamplingParams {
        logit_bias: (banned.iter()).map(|&token| (token, f32::NEG_INFINITY)).collect(),
        ..SamplingParams::default()
    });
    let pages = first_pages(prompt.len() + n_new);
    let mut tokens = prompt.to_vec();
    let mut n_stored = 0;
    while tokens.len() < prompt.len() + n_new {
        let mut batch = ForwardBatch::default();
        batch.push_sequence(ids(&tokens[n_stored..]), n_stored as u32, &pages);
        push_state(executor, &mut batch);
        batch.want_last(RowOutput::Sample(SampleRow {
            params: Arc::clone(&params),
            history: 0..0,
            n_prompt: 0,
            mask: tokenmill_backend::RowMask::Any,
        }));
        n_stored = tokens.len();
        let sampled = run(executor, &batch)?.sampled[0].expect("the row asked for a token")?;
        tokens.push(sampled.id);
    }
    Ok(tokens.split_off(prompt.len()))
}

/// Gives the only sequence of a batch the first slot, if the model has recurrent states.
fn push_state(executor: &dyn Executor, batch: &mut ForwardBatch) {
    if executor.limits().n_states > 0 {
        batch.states.push(SeqState::own(0));
    }
}

/// Runs one step.
///
/// # Errors
/// [`StepError`].
pub fn run(executor: &mut dyn Executor, batch: &ForwardBatch) -> Result<StepOutput, StepError> {
    let ticket = executor.submit(batch)?;
    let mut output = StepOutput::default();
    executor.wait(ticket, &mut output)?;
    Ok(output)
}

/// Known tokens.
pub fn ids(tokens: &[u32]) -> impl Iterator<Item = TokenSource> {
    tokens.iter().map(|&id| TokenSource::Id(id))
}

fn first_pages(n_tokens: usize) -> Vec<u32> {
    (0..n_tokens.div_ceil(PAGE_TOKENS) as u32).collect()
}
