//! [`StepShape`]: the counts of a step, all that a program may depend on.
//!
//! It is the key of captured steps. Invariant: it holds no value of a step, only counts and kinds.

use crate::{ForwardBatch, RowMask, RowOutput};

/// The counts of a step, and its phase. A key for captured steps: equal shapes run the same operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StepShape {
    /// Number of input tokens, `T`.
    pub n_tokens: usize,
    /// Number of sequences, `S`.
    pub n_seqs: usize,
    /// Number of tokens that are a logit row, a hidden row or both, `O`.
    pub n_outputs: usize,
    /// Number of logit rows, `L`.
    pub n_logits: usize,
    /// Number of hidden rows, `H`.
    pub n_hidden: usize,
    /// Length of the longest page table.
    pub max_pages: usize,
    /// Number of tokens of the sequence with the most.
    pub longest: usize,
    /// The kind of its tokens.
    pub phase: Phase,
    /// The requests of its logit rows.
    pub sampling: SamplingMode,
}

/// The kind of tokens in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// One token per sequence.
    Decode,
    /// At least one sequence has several, up to [`StepShape::MAX_VERIFIED`], and a token is sampled after
    /// each: the newest token and its draft tokens.
    Verify,
    /// Anything else, such as parts of prompts.
    Mixed,
}

/// The most general request of a step's logit rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SamplingMode {
    /// Raw logits only, or nothing.
    Raw,
    /// Every sampled row takes the likeliest token of unchanged logits and reports no log-probability.
    Argmax,
    /// Anything else.
    Full,
}

impl StepShape {
    /// Maximum tokens per sequence in a step of [`Phase::Verify`].
    pub const MAX_VERIFIED: usize = 40;

    /// Counts a batch, without padding.
    pub fn of(batch: &ForwardBatch) -> Self {
        let n_logits = batch.logit_rows.len();
        let n_hidden = batch.hidden_rows.len();
        let n_shared = (batch.hidden_rows.iter())
            .filter(|row| batch.logit_rows.binary_search(row).is_ok())
            .count();
        let sampling = batch.outputs.iter().map(sampling_mode).max();
        let longest = (0..batch.n_seqs()).map(|seq_idx| batch.tokens_of(seq_idx).len());
        let longest = longest.max().unwrap_or(0);
        Self {
            n_tokens: batch.n_tokens(),
            n_seqs: batch.n_seqs(),
            n_outputs: n_logits + n_hidden - n_shared,
            n_logits,
            n_hidden,
            max_pages: (0..batch.n_seqs())
                .map(|seq_idx| batch.pages_of(seq_idx).len())
                .max()
                .unwrap_or(0),
            longest,
            phase: if batch.n_tokens() == batch.n_seqs() {
                Phase::Decode
            } else if longest <= Self::MAX_VERIFIED && samples_all(batch) {
                Phase::Verify
            } else {
                Phase::Mixed
            },
            sampling: sampling.unwrap_or(SamplingMode::Raw),
        }
    }
}

/// Returns whether a token is sampled after each token of a step, and none sees later ones.
fn samples_all(batch: &ForwardBatch) -> bool {
    batch.logit_rows.len() == batch.n_tokens()
        && (batch.outputs.iter()).all(|output| matches!(output, RowOutput::Sample(_)))
        && batch.last_seen.is_empty()
        && batch.window_seen.is_empty()
}

fn sampling_mode(output: &RowOutput) -> SamplingMode {
    match output {
        RowOutput::Logits => SamplingMode::Raw,
        RowOutput::Sample(sample)
            if sample.params.is_plain_argmax() && matches!(sample.mask, RowMask::Any) =>
        {
            SamplingMode::Argmax
        }
        RowOutput::Sample(_) => SamplingMode::Full,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{SampleRow, SamplingParams, TokenSource};

    fn sample(params: SamplingParams) -> RowOutput {
        RowOutput::Sample(SampleRow {
            params: Arc::new(params),
            history: 0..0,
            n_prompt: 0,
            mask: RowMask::Any,
        })
    }

    #[test]
    fn a_row_asked_for_twice_is_one_output() {
        let mut batch = ForwardBatch::default();
        batch.push_sequence((0..20).map(TokenSource::Id), 0, &[0, 1]);
        batch.want_last(RowOutput::Logits);
        batch.push_sequence([TokenSource::Id(3)], 0, &[2]);
        batch.hidden_rows = vec![4, 19];
        let expected = StepShape {
            n_tokens: 21,
            n_seqs: 2,
            n_outputs: 2,
            n_logits: 1,
            n_hidden: 2,
            max_pages: 2,
            longest: 20,
            phase: Phase::Mixed,
            sampling: SamplingMode::Raw,
        };
        assert_eq!(StepShape::of(&batch), expected);
    }

    #[test]
    fn sampling_is_as_general_as_the_most_demanding_row() {
        let mut batch = ForwardBatch::default();
        let mut mode_with = |output| {
            let page = batch.n_seqs() as u32;
            batch.push_sequence([TokenSource::Id(3)], 0, &[page]);
            batch.want_last(output);
            let shape = StepShape::of(&batch);
            assert_eq!(shape.phase, Phase::Decode);
            shape.sampling
        };
        assert_eq!(mode_with(RowOutput::Logits), SamplingMode::Raw);
        assert_eq!(mode_with(sample(SamplingParams::default())), SamplingMode::Argmax);
        let drawn = SamplingParams {
            temperature: 1.0,
            ..Default::default()
        };
        assert_eq!(mode_with(sample(drawn)), SamplingMode::Full);
        assert_eq!(mode_with(sample(SamplingParams::default())), SamplingMode::Full);
    }

    #[test]
    fn a_step_that_samples_after_every_token_verifies() {
        let of = |n_tokens: u32, is_whole: bool, output: &RowOutput| {
            let mut batch = ForwardBatch::default();
            batch.push_sequence((0..n_tokens).map(TokenSource::Id), 0, &[0, 1, 2]);
            batch.logit_rows = (u32::from(!is_whole)..n_tokens).collect();
            batch.push_sequence([TokenSource::Id(3)], 7, &[3]);
            batch.logit_rows.push(n_tokens);
            batch.outputs = vec![output.clone(); batch.logit_rows.len()];
            let shape = StepShape::of(&batch);
            assert_eq!((shape.n_seqs, shape.longest), (2, n_tokens as usize));
            shape.phase
        };
        let sampled = sample(SamplingParams::default());
        assert_eq!(of(3, true, &sampled), Phase::Verify);
        assert_eq!(of(1, true, &sampled), Phase::Decode);
        assert_eq!(of(40, true, &sampled), Phase::Verify);
        // A prompt, regardless of the rows read.
        assert_eq!(of(41, true, &sampled), Phase::Mixed);
        assert_eq!(of(3, false, &sampled), Phase::Mixed);
        assert_eq!(of(3, true, &RowOutput::Logits), Phase::Mixed);
    }
}
