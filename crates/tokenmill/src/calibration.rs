//! How many tokens a step must have for the GPU to be worth its border: measured, on the model that was loaded.
//!
//! Separate from the load because it runs steps. Both sides have the feed-forward networks; one sequence's prompts of 2, 4, 8 and more
//! tokens are run by either route, and the device gets steps from the number on at and above which it was always faster. A step of so many
//! sequences with a token each may cost otherwise, since its launches are replayed; that is not measured. Invariant: what the measurement
//! stores lies in pages and states that no sequence has yet.

use std::time::{Duration, Instant};

use tokenmill_backend::{
    Executor as _, ForwardBatch, PAGE_TOKENS, SeqState, SplitOperations, StepError, StepOutput, TokenSource,
};
use tokenmill_model::ModelExecutor;
use tokenmill_placed::Placed;

/// Runs of each route at each number of tokens, after one that warms up; the fastest counts.
const N_RUNS: usize = 3;
/// Steps of more tokens are not measured: the device, which is made for long ones, computes them.
const MAX_TOKENS: usize = 256;
/// Steps between the ids of neighbouring tokens: spread over the vocabulary, so that they choose different experts.
const ID_STRIDE: usize = 7919;

/// Measures the threshold of a split network and sets it; gives it. `None` means that the device was not faster at the most tokens that
/// a step can have.
///
/// # Errors
/// A step that failed.
pub(crate) fn calibrate<H: SplitOperations, D: SplitOperations>(
    executor: &mut ModelExecutor<Placed<H, D>>,
) -> Result<Option<usize>, StepError> {
    let limits = executor.limits();
    let longest = (limits.max_batch_tokens.min(limits.n_ctx)).min(limits.n_pages * PAGE_TOKENS);
    let most = longest.min(MAX_TOKENS);
    let mut measured = Vec::new();
    let mut n_tokens = most.min(2);
    while (1..=most).contains(&n_tokens) {
        let [on_host, on_device] = [usize::MAX, 1].map(|threshold| {
            executor.backend_mut().set_min_device_tokens(threshold);
            fastest(executor, n_tokens)
        });
        measured.push((n_tokens, on_device? <= on_host?));
        n_tokens *= 2;
    }
    let threshold = first_worth(&measured, longest);
    (executor.backend_mut()).set_min_device_tokens(threshold.unwrap_or(usize::MAX));
    Ok(threshold)
}

/// The number of tokens from which on the device computes, of the numbers measured and whether it was faster there. One slow run in
/// between does not count: what is measured above it decides. `longest`: tokens that a step has at most.
fn first_worth(measured: &[(usize, bool)], longest: usize) -> Option<usize> {
    let is_slower = |&(_, is_faster): &(usize, bool)| !is_faster;
    let Some(last_slower) = measured.iter().rposition(is_slower) else {
        // One token is no prompt, and costs what two cost: the weights are read once.
        return (!measured.is_empty()).then_some(1);
    };
    let beyond = 2 * measured[last_slower].0;
    (beyond <= longest).then_some(beyond)
}

/// The shortest time of a step of a prompt of so many tokens.
fn fastest<H: SplitOperations, D: SplitOperations>(
    executor: &mut ModelExecutor<Placed<H, D>>,
    n_tokens: usize,
) -> Result<Duration, StepError> {
    let limits = executor.limits();
    let pages: Vec<u32> = (0..n_tokens.div_ceil(PAGE_TOKENS) as u32).collect();
    let mut batch = ForwardBatch::default();
    batch.push_sequence(
        (0..n_tokens).map(|idx| TokenSource::Id((idx * ID_STRIDE % limits.n_vocab) as u32)),
        0,
        &pages,
    );
    if limits.window_group.is_some() {
        batch.push_window_pages(&pages);
    }
    if limits.n_states > 0 {
        batch.states.push(SeqState::own(0));
    }
    // A row is wanted, so that the last layer is computed whole.
    batch.hidden_rows.push(n_tokens as u32 - 1);
    let mut output = StepOutput::default();
    let mut shortest = Duration::MAX;
    for run in 0..=N_RUNS {
        let start = Instant::now();
        let ticket = executor.submit(&batch)?;
        executor.wait(ticket, &mut output)?;
        if run > 0 {
            shortest = shortest.min(start.elapsed());
        }
    }
    Ok(shortest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_gets_what_lies_above_the_last_size_at_which_it_was_slower() {
        let check = |is_faster: &[bool], longest: usize, expected: Option<usize>| {
            let measured: Vec<_> = (is_faster.iter().enumerate())
                .map(|(index, &is_faster)| (2 << index, is_faster))
                .collect();
            assert_eq!(
                first_worth(&measured, longest),
                expected,
                "{is_faster:?} of {longest}"
            );
        };
        check(&[true, true, true], 8, Some(1));
        check(&[false, false, true], 8, Some(8));
        // A hiccup below, and one above.
        check(&[true, false, true], 8, Some(8));
        check(&[false, true, false], 8, None);
        // Longer steps than those measured.
        check(&[false, false, false], 512, Some(16));
        check(&[], 0, None);
    }
}
