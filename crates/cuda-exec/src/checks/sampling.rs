//! Checks the draw of tokens from rows of logits, with the log-probabilities, against the host's sampler.
//!
//! Separate from the likeliest token, which is another kernel. Invariant: the rows have the records that a step writes for their parameters.

use std::sync::Arc;

use tokenmill_backend::{
    ForwardBatch, RowMask, RowOutput, SampleRequest, SampleRow, SampledToken, Sampler, SamplingParams,
    TokenLogprob, TokenSource,
};

use super::{Finding, Wrong, check_about, expected::Numbers, tokens::SAMPLED};
use crate::{
    Device, Ops, SampleInputs, SampleOutputs, SampleRecord, SampleScratch, backend::sampling::write_records,
};

/// Logits of a row: two parts of the kernels, the second of which is not full.
const N_VOCAB: usize = 2100;
/// Largest magnitude of a logit.
const LARGEST: f32 = 8.0;
/// Likeliest tokens that rows report.
const N_TOP: u32 = 5;
/// Largest difference of log-probabilities.
const LIMIT: f32 = 1e-3;
/// Tokens before the drawn ones; some logits are penalized twice.
const HISTORY: [u32; 5] = [7, 2099, 7, 40, 1000];
/// The token that the step before drew; the rows' histories continue with it.
const PREVIOUS: u32 = 11;
/// Position of the drawn tokens.
const POSITION: u32 = 16;

/// Checks rows that keep few tokens, and rows that draw from many.
pub(super) fn check_all(device: &Device, ops: &Ops) -> Result<usize, Finding> {
    let kinds = [
        ("sampling from few tokens", few_tokens()),
        ("sampling from many tokens", many_tokens()),
    ];
    for (what, all) in &kinds {
        check_about(device, (*what).to_owned(), Some("sample"), || {
            sample(device, ops, all)
        })?;
    }
    Ok(kinds.len())
}

/// Returns parameters of rows that are greedy or keep few tokens.
fn few_tokens() -> Vec<SamplingParams> {
    let greedy = SamplingParams {
        repeat_penalty: 1.3,
        presence_penalty: 0.25,
        frequency_penalty: 0.5,
        penalty_last_n: 64,
        logit_bias: vec![(5, 2.5), (2098, -1.5), (5, 1.0)],
        n_logprobs: Some(N_TOP),
        ..SamplingParams::default()
    };
    let drawn = SamplingParams {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        ..greedy.clone()
    };
    vec![greedy, drawn]
}

/// Returns parameters of rows that draw from many tokens.
fn many_tokens() -> Vec<SamplingParams> {
    let plain = SamplingParams {
        temperature: 1.0,
        seed: 3,
        ..SamplingParams::default()
    };
    vec![
        SamplingParams {
            top_p: 0.9,
            ..plain.clone()
        },
        SamplingParams {
            top_k: 200,
            min_p: 0.02,
            ..plain.clone()
        },
        plain,
    ]
}

/// Samples a row with each of the parameters.
fn sample(device: &Device, ops: &Ops, all: &[SamplingParams]) -> Result<(), Wrong> {
    let n_rows = all.len();
    let mut logits = Numbers(700 + n_rows as u64).take(n_rows * N_VOCAB);
    for logit in &mut logits {
        *logit *= LARGEST;
    }
    // Every third token is forbidden.
    let mask: Vec<u32> = (0..N_VOCAB.div_ceil(32) as u32)
        .map(|word| {
            let allowed = (0..32).filter(|bit| (word * 32 + bit) % 3 != 0);
            allowed.fold(0, |bits, bit| bits | 1 << bit)
        })
        .collect();
    let mut batch = ForwardBatch {
        history: HISTORY.to_vec(),
        mask_words: mask.clone(),
        ..ForwardBatch::default()
    };
    for params in all {
        batch.push_sequence([TokenSource::SampledRow(0)], POSITION - 1, &[0]);
        batch.want_last(RowOutput::Sample(SampleRow {
            params: Arc::new(params.clone()),
            history: 0..HISTORY.len() as u32,
            n_prompt: 0,
            mask: RowMask::Words(0),
        }));
    }
    // After the tokens; records are aligned to 8 bytes.
    let first = n_rows.next_multiple_of(2);
    let records = first..first + n_rows * SampleRecord::WORDS;
    let mut words = vec![0; records.end + n_rows * (HISTORY.len() + mask.len() + 8)];
    words[..n_rows].fill(SAMPLED);
    let (_, has_many) = write_records(&batch, N_VOCAB, records.clone(), SAMPLED, &mut words, records.end);

    let words = device.upload("the check of kernels", &words)?;
    let previous = device.upload("the check of kernels", &[PREVIOUS])?;
    let on_device = device.upload("the check of kernels", &logits)?;
    let mut scratch = SampleScratch::new(device, n_rows, N_VOCAB)?;
    let zeros = |n: usize| device.upload("the check of kernels", &vec![0u32; n]);
    let (mut tokens, mut status, mut logprobs) = (zeros(n_rows)?, zeros(n_rows)?, zeros(n_rows)?);
    let n_top = n_rows * N_TOP as usize;
    let (mut top_ids, mut top_logprobs) = (zeros(n_top)?, zeros(n_top)?);
    let inputs = SampleInputs {
        records: words.view().range(records)?,
        words: words.view(),
        previous: previous.view(),
        has_many,
    };
    let outputs = SampleOutputs {
        scratch: &mut scratch,
        tokens: tokens.view_mut(),
        status: status.view_mut(),
        logprobs: logprobs.view_mut(),
        top_ids: top_ids.view_mut(),
        top_logprobs: top_logprobs.view_mut(),
    };
    ops.sample([n_rows, N_VOCAB], on_device.view(), &inputs, outputs)?;
    let [tokens, status, logprobs] =
        [&tokens, &status, &logprobs].map(|buffer| device.download(buffer.view()));
    let (tokens, status, logprobs) = (tokens?, status?, logprobs?);
    let (top_ids, top_logprobs) = (
        device.download(top_ids.view())?,
        device.download(top_logprobs.view())?,
    );

    let (mut sampler, mut n_before) = (Sampler::new(N_VOCAB), 0);
    for (row, (params, logits)) in all.iter().zip(logits.chunks(N_VOCAB)).enumerate() {
        let request = SampleRequest {
            params,
            history: &HISTORY,
            newest: &[PREVIOUS],
            n_prompt: 0,
            mask: Some(&mask),
            position: POSITION,
        };
        let mut top = Vec::new();
        let expected = (sampler.sample(logits, &request, &mut top))
            .map_err(|error| Wrong::Numbers(error.to_string()))?;
        let bits = |logprob: u32| f32::from_bits(logprob);
        let found = SampledToken {
            id: tokens[row],
            logprob: params.n_logprobs.map(|_| bits(logprobs[row])),
        };
        let reported = n_before..n_before + top.len();
        let found_top: Vec<TokenLogprob> = (top_ids[reported.clone()].iter().zip(&top_logprobs[reported]))
            .map(|(&id, &logprob)| TokenLogprob {
                id,
                logprob: bits(logprob),
            })
            .collect();
        n_before += top.len();
        if status[row] != 0 || !are_near(found, expected, &found_top, &top) {
            return Err(Wrong::Numbers(format!(
                "row {row} has token {} with status {} in place of {}, or log-probabilities that are not the CPU's",
                found.id, status[row], expected.id
            )));
        }
    }
    Ok(())
}

/// Returns whether tokens and reported tokens are equal, and log-probabilities nearly so.
fn are_near(
    found: SampledToken,
    expected: SampledToken,
    found_top: &[TokenLogprob],
    top: &[TokenLogprob],
) -> bool {
    let is_near = |a: f32, b: f32| (a - b).abs() <= LIMIT;
    let (a, b) = (found.logprob.unwrap_or(0.0), expected.logprob.unwrap_or(0.0));
    found.id == expected.id
        && is_near(a, b)
        && (found_top.iter().zip(top)).all(|(a, b)| a.id == b.id && is_near(a.logprob, b.logprob))
}
