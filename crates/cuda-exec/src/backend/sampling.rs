//! Selects the rows that the device samples, and writes the kernel's sampling records.
//!
//! The host samples a step with a row that has
//!
//! - DRY or locally typical sampling: both need an order of tokens (a match of runs, a sort by surprise) that costs a
//!   device more than the copy of one row of logits costs the host;
//! - XTC, top-n-sigma, a dynamic temperature, mirostat, another order of steps, or log-probabilities of the draw: rare, and each needs
//!   all remaining tokens;
//! - more than [`MAX_TOP`] likeliest tokens to report, since the kernel looks through the vocabulary once for each;
//! - several tokens after its history that only the device knows;
//! - or more history, masks and biases, with those of the other rows, than the room there is for them.
//!
//! Invariant: the decision depends only on the batch, and both sides pick the same token.

use std::ops::Range;

use tokenmill_backend::{
    ExecutorLimits, ForwardBatch, RowMask, RowOutput, SampleRow, SamplingMode, StepShape, TokenSource,
};

/// Number of likeliest tokens that the device can report for a row.
pub(super) const MAX_TOP: usize = 20;
/// Number of words for the history and biases of a row.
const ROW_WORDS: usize = 512;

/// Returns the number of words for the histories, biases and masks of a step.
pub(super) fn max_data_words(limits: &ExecutorLimits) -> usize {
    limits.max_logit_rows * (ROW_WORDS + limits.n_vocab.div_ceil(32))
}

/// Selects which part of a step's sampling runs on the device.
pub(super) fn device_mode(batch: &ForwardBatch, limits: &ExecutorLimits) -> SamplingMode {
    let mode = StepShape::of(batch).sampling;
    if mode != SamplingMode::Full {
        return mode;
    }
    let mut n_words = 0;
    let is_for_device = limits.n_vocab <= crate::MAX_SAMPLED_VOCAB
        && batch
            .outputs
            .iter()
            .enumerate()
            .all(|(row, output)| match output {
                RowOutput::Logits => true,
                RowOutput::Sample(sample) => {
                    n_words += data_words(batch, row, sample, limits.n_vocab);
                    is_row_for_device(sample) && unknown_tokens(batch, row).count() <= 1
                }
            })
        && n_words <= max_data_words(limits);
    if is_for_device {
        SamplingMode::Full
    } else {
        // Raw logits come back, and nothing is sampled on the device.
        SamplingMode::Raw
    }
}

fn is_row_for_device(sample: &SampleRow) -> bool {
    let params = &sample.params;
    let has_dry = params.dry.as_ref().is_some_and(|dry| dry.multiplier > 0.0);
    let is_typical = params.typical_p < 1.0 && !params.is_greedy();
    // The kernel has one history for all penalties, but they count the prompt differently.
    let counts_apart = sample.n_prompt > 0
        && params.repeat_penalty != 1.0
        && (params.presence_penalty != 0.0 || params.frequency_penalty != 0.0);
    !counts_apart
        && !has_dry
        && !is_typical
        && !params.goes_by_steps()
        && params.n_logprobs.is_none_or(|n| n as usize <= MAX_TOP)
}

/// Returns how many likeliest tokens a row reports.
pub(super) fn n_top(output: &RowOutput, n_vocab: usize) -> usize {
    match output {
        RowOutput::Sample(sample) => (sample.params.n_logprobs.unwrap_or(0) as usize).min(n_vocab),
        RowOutput::Logits => 0,
    }
}

/// Returns the token indices of the row's sequence, up to the row, whose ids the host did not know when it wrote the history.
fn unknown_tokens(batch: &ForwardBatch, row: usize) -> impl Iterator<Item = usize> {
    let token_idx = batch.logit_rows[row] as usize;
    let seq_idx = (batch.seq_starts).partition_point(|&start| start as usize <= token_idx) - 1;
    (batch.seq_starts[seq_idx] as usize..=token_idx)
        .filter(|&index| matches!(batch.tokens[index], TokenSource::SampledRow(_)))
}

/// Returns the tokens that a row's penalties count, except one that only the device knows.
fn kept_history<'a>(batch: &'a ForwardBatch, sample: &SampleRow, n_newest: usize) -> &'a [u32] {
    let params = &sample.params;
    if !params.penalizes_tokens() {
        return &[];
    }
    let mut history = &batch.history[sample.history.start as usize..sample.history.end as usize];
    if params.repeat_penalty == 1.0 {
        // The other penalties count only generated tokens.
        history = &history[sample.n_prompt as usize..];
    }
    let n_kept = (params.penalty_last_n as usize).saturating_sub(n_newest);
    &history[history.len().saturating_sub(n_kept)..]
}

fn data_words(batch: &ForwardBatch, row: usize, sample: &SampleRow, n_vocab: usize) -> usize {
    let mask_words = match sample.mask {
        RowMask::Any => 0,
        RowMask::Words(_) | RowMask::Late(_) => n_vocab.div_ceil(32),
    };
    // One more, since the host may know the newest token by then.
    kept_history(batch, sample, unknown_tokens(batch, row).count()).len()
        + 1
        + mask_words
        + 2 * sample.params.logit_bias.len()
}

/// Writes the sampling records of a step to the part `records` of its words, and the values that they point to from word `n_words` on.
/// Returns the end of the values, and whether one of the records [draws many](crate::SampleRecord::draws_many). The step's tokens are
/// its first words, with `sampled_flag` on those that only the device knows.
pub(crate) fn write_records(
    batch: &ForwardBatch,
    n_vocab: usize,
    records: Range<usize>,
    sampled_flag: u32,
    words: &mut [u32],
    mut n_words: usize,
) -> (usize, bool) {
    let mut has_many = false;
    let mut n_top_before = 0;
    let mut push = |words: &mut [u32], values: &mut dyn Iterator<Item = u32>| -> [u32; 2] {
        let start = n_words;
        for value in values {
            words[n_words] = value;
            n_words += 1;
        }
        [start as u32, n_words as u32]
    };
    for (row, place) in records.step_by(crate::SampleRecord::WORDS).enumerate() {
        let record = match batch.outputs.get(row) {
            Some(RowOutput::Sample(sample)) => {
                let params = &sample.params;
                let newest = unknown_tokens(batch, row).last();
                let newest_word = newest.map(|index| words[index]);
                let counts = params.penalizes_tokens() && params.penalty_last_n > 0;
                let on_device = newest_word.filter(|word| counts && word & sampled_flag != 0);
                let on_host = newest_word.filter(|word| counts && word & sampled_flag == 0);
                let kept = kept_history(batch, sample, usize::from(newest.is_some()));
                let history = push(words, &mut kept.iter().copied().chain(on_host));
                let n_mask_words = n_vocab.div_ceil(32);
                let mask = match &sample.mask {
                    RowMask::Any => None,
                    RowMask::Words(start) => {
                        let mask = &batch.mask_words[*start as usize..][..n_mask_words];
                        Some(push(words, &mut mask.iter().copied())[0])
                    }
                    // The device starts once its records are complete, so the host waits for the mask here.
                    RowMask::Late(mask) => {
                        let mut late = Vec::new();
                        if !mask.wait(&mut late) {
                            late = vec![0; n_mask_words];
                        }
                        Some(push(words, &mut late.iter().copied())[0])
                    }
                };
                let bias_ids = push(words, &mut params.logit_bias.iter().map(|(id, _)| *id));
                let biases = push(
                    words,
                    &mut params.logit_bias.iter().map(|(_, bias)| bias.to_bits()),
                );
                let adjusts = params.penalizes_tokens() || !params.logit_bias.is_empty() || mask.is_some();
                let n_top = n_top(&batch.outputs[row], n_vocab);
                let top_start = n_top_before;
                n_top_before += n_top;
                let flag = |flag: u32, is_set: bool| if is_set { flag } else { 0 };
                crate::SampleRecord {
                    seed: params.seed,
                    position: batch.positions[batch.logit_rows[row] as usize] + 1,
                    flags: flag(crate::SampleRecord::GREEDY, params.is_greedy())
                        | flag(crate::SampleRecord::ADJUSTS, adjusts)
                        | flag(crate::SampleRecord::LOGPROBS, params.n_logprobs.is_some()),
                    temperature: params.temperature,
                    top_k: params.top_k,
                    top_p: params.top_p,
                    ln_min_p: if params.min_p > 0.0 {
                        params.min_p.ln()
                    } else {
                        f32::NEG_INFINITY
                    },
                    repeat_penalty: params.repeat_penalty,
                    presence_penalty: params.presence_penalty,
                    frequency_penalty: params.frequency_penalty,
                    history_start: history[0],
                    history_end: history[1],
                    newest: on_device.map_or(crate::SampleRecord::NONE, |word| word & !sampled_flag),
                    mask_start: mask.unwrap_or(crate::SampleRecord::NONE),
                    bias_start: bias_ids[0],
                    bias_end: bias_ids[1],
                    biases_start: biases[0],
                    n_top: n_top as u32,
                    top_start: top_start as u32,
                }
            }
            // Rows that want raw logits, and padding.
            Some(RowOutput::Logits) | None => crate::SampleRecord::raw(),
        };
        has_many |= record.draws_many(n_vocab);
        words[place..place + crate::SampleRecord::WORDS].copy_from_slice(&record.to_words());
    }
    (n_words, has_many)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use tokenmill_backend::{Dry, SamplingParams};

    const LIMITS: ExecutorLimits = ExecutorLimits {
        n_vocab: 96,
        n_embd: 64,
        n_ctx: 4096,
        n_pages: 512,
        n_host_pages: 0,
        max_batch_tokens: 16,
        max_batch_seqs: 4,
        max_logit_rows: 4,
        kv_window: None,
        window_group: None,
        pooling: None,
        is_encoder: false,
        n_states: 0,
    };

    fn mode_of(params: SamplingParams, tokens: &[TokenSource], n_history: u32) -> SamplingMode {
        let mut batch = ForwardBatch::default();
        batch.push_sequence(tokens.iter().copied(), 0, &[0]);
        batch.history = vec![3; n_history as usize];
        batch.want_last(RowOutput::Sample(SampleRow {
            params: Arc::new(params),
            history: 0..n_history,
            n_prompt: 0,
            mask: RowMask::Any,
        }));
        device_mode(&batch, &LIMITS)
    }

    #[test]
    fn the_device_samples_all_but_what_the_docs_say() {
        let known = [TokenSource::Id(1)];
        let drawn = || SamplingParams {
            temperature: 1.0,
            ..Default::default()
        };
        let check = |params: SamplingParams, expected: SamplingMode| {
            assert_eq!(mode_of(params.clone(), &known, 0), expected, "{params:?}");
        };
        check(SamplingParams::default(), SamplingMode::Argmax);
        check(drawn(), SamplingMode::Full);
        check(
            SamplingParams {
                top_k: 40,
                top_p: 0.9,
                min_p: 0.05,
                repeat_penalty: 1.1,
                n_logprobs: Some(20),
                ..drawn()
            },
            SamplingMode::Full,
        );
        check(
            SamplingParams {
                typical_p: 0.9,
                ..drawn()
            },
            SamplingMode::Raw,
        );
        check(
            SamplingParams {
                top_n_sigma: 1.0,
                ..drawn()
            },
            SamplingMode::Raw,
        );
        check(
            SamplingParams {
                n_logprobs: Some(21),
                ..drawn()
            },
            SamplingMode::Raw,
        );
        let dry = Dry {
            multiplier: 0.8,
            base: 1.75,
            allowed_length: 2,
            last_n: 64,
            breakers: Vec::new(),
        };
        check(
            SamplingParams {
                dry: Some(dry),
                ..drawn()
            },
            SamplingMode::Raw,
        );
        let unknown = [TokenSource::SampledRow(0)];
        assert_eq!(mode_of(drawn(), &unknown, 0), SamplingMode::Full);
        assert_eq!(
            mode_of(drawn(), &[unknown, unknown].concat(), 0),
            SamplingMode::Raw
        );
        let penalized = SamplingParams {
            repeat_penalty: 1.1,
            penalty_last_n: 4096,
            ..drawn()
        };
        assert_eq!(mode_of(penalized.clone(), &known, 500), SamplingMode::Full);
        assert_eq!(mode_of(penalized, &known, 4000), SamplingMode::Raw);
    }
}
