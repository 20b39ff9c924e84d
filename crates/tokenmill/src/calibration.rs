//! Measures, on the loaded model, the minimum step size in tokens at which the GPU is faster than the CPU.
//!
//! Both sides have the feed-forward networks. Steps of 2, 4, 8 and more tokens run on both routes, and the
//! GPU gets all steps from the size on at which it was always faster. Decode steps, with one token per
//! sequence, are measured apart from prompts of one sequence, since the device records and replays its part
//! of them. Invariant: the measurement writes only to pages and states that no sequence has yet.

use std::time::{Duration, Instant};

use tokenmill_backend::{
    Executor as _, ExecutorLimits, ForwardBatch, PAGE_TOKENS, SeqState, StepError, StepOutput, TokenSource,
};
use tokenmill_model::ModelExecutor;
use tokenmill_placed::StepThresholds;

use crate::gpu_steps::GpuSteps;

/// Runs of each route at each number of tokens, after one that warms up and records; the fastest counts.
const N_RUNS: usize = 3;
/// Steps of more tokens are not measured: the device, which is made for long ones, computes them.
const MAX_TOKENS: usize = 256;
/// Steps between the ids of neighbouring tokens: spread over the vocabulary, so that they choose different experts.
const ID_STRIDE: usize = 7919;

/// The composition of a measured step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One token for each of several sequences.
    Decode,
    /// Several tokens of one sequence.
    Prompt,
}

impl Kind {
    /// Tokens that such a step has at most.
    fn longest(self, limits: &ExecutorLimits) -> usize {
        let n_pages = limits
            .window_group
            .map_or(limits.n_pages, |group| group.n_pages.min(limits.n_pages));
        match self {
            Self::Prompt => (limits.max_batch_tokens.min(limits.n_ctx)).min(n_pages * PAGE_TOKENS),
            Self::Decode => {
                let n_states = if limits.n_states == 0 {
                    usize::MAX
                } else {
                    limits.n_states
                };
                [limits.max_batch_tokens, limits.max_batch_seqs, n_pages, n_states]
                    .into_iter()
                    .min()
                    .unwrap_or(0)
            }
        }
    }

    /// Returns a step of `n_tokens` tokens.
    fn batch(self, n_tokens: usize, limits: &ExecutorLimits) -> ForwardBatch {
        let mut batch = ForwardBatch::default();
        let token = |idx: usize| TokenSource::Id((idx * ID_STRIDE % limits.n_vocab) as u32);
        let mut push = |tokens: std::ops::Range<usize>, pages: &[u32]| {
            batch.push_sequence(tokens.map(token), 0, pages);
            if limits.window_group.is_some() {
                batch.push_window_pages(pages);
            }
            if limits.n_states > 0 {
                let slot = batch.states.len() as u32;
                batch.states.push(SeqState::own(slot));
            }
        };
        match self {
            Self::Prompt => {
                let pages: Vec<u32> = (0..n_tokens.div_ceil(PAGE_TOKENS) as u32).collect();
                push(0..n_tokens, &pages);
            }
            Self::Decode => (0..n_tokens).for_each(|idx| push(idx..idx + 1, &[idx as u32])),
        }
        // A row is wanted, so that the last layer is computed whole.
        match self {
            Self::Prompt => batch.hidden_rows.push(n_tokens as u32 - 1),
            Self::Decode => batch.hidden_rows.extend(0..n_tokens as u32),
        }
        batch
    }
}

/// Sets from where on the device of a split network computes.
pub(crate) type SetThresholds = fn(&mut ModelExecutor, StepThresholds);

/// Measures from where on the device of a split network is faster.
///
/// # Errors
/// A step that failed.
pub(crate) fn calibrate(
    executor: &mut ModelExecutor,
    set_thresholds: SetThresholds,
) -> Result<GpuSteps, StepError> {
    Ok(GpuSteps {
        decode: threshold(executor, set_thresholds, Kind::Decode)?,
        prompts: threshold(executor, set_thresholds, Kind::Prompt)?,
    })
}

/// The threshold of a kind of steps; `None` where the device was not faster at the most tokens that such a step can have.
fn threshold(
    executor: &mut ModelExecutor,
    set_thresholds: SetThresholds,
    kind: Kind,
) -> Result<Option<usize>, StepError> {
    let longest = kind.longest(executor.limits());
    let most = longest.min(MAX_TOKENS);
    let mut measured = Vec::new();
    // A prompt of one token would be a decode step, and costs as much as two tokens: the weights are read once.
    let mut n_tokens = match kind {
        Kind::Decode => 1,
        Kind::Prompt => most.min(2),
    };
    while (1..=most).contains(&n_tokens) {
        let [on_host, on_device] = [usize::MAX, 1].map(|threshold| {
            let thresholds = StepThresholds::of_all(threshold);
            set_thresholds(executor, thresholds);
            fastest(executor, kind, n_tokens)
        });
        measured.push((n_tokens, on_device? <= on_host?));
        n_tokens *= 2;
    }
    Ok(first_worth(&measured, longest))
}

/// The number of tokens from which on the device computes, of the numbers measured and whether it was faster there. One slow run in
/// between does not count: measurements above it decide. `longest`: tokens that a step has at most.
fn first_worth(measured: &[(usize, bool)], longest: usize) -> Option<usize> {
    let is_slower = |&(_, is_faster): &(usize, bool)| !is_faster;
    let Some(last_slower) = measured.iter().rposition(is_slower) else {
        return (!measured.is_empty()).then_some(1);
    };
    let beyond = 2 * measured[last_slower].0;
    (beyond <= longest).then_some(beyond)
}

/// Returns the shortest time of a step of `n_tokens` tokens.
fn fastest(executor: &mut ModelExecutor, kind: Kind, n_tokens: usize) -> Result<Duration, StepError> {
    let batch = kind.batch(n_tokens, executor.limits());
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
