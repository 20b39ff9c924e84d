//! [`Sampling`]: samples the rows of a step on all threads.
//!
//! A thread samples from a vocabulary in some tenths of a millisecond; eight sequences would wait for one
//! another without this. Invariant: a row is sampled by itself, so its token depends on no other row.

use tokenmill_backend::{HostStep, RowError, RowSampler, SampledToken, TokenLogprob};

use crate::{Host, pool::Columns};

/// The samplers of the threads, and the sampled tokens.
#[derive(Debug, Default)]
pub(super) struct Sampling {
    /// One sampler for each run of rows.
    samplers: Vec<RowSampler>,
    picks: Vec<Pick>,
}

/// The token of a row.
#[derive(Debug, Default)]
struct Pick {
    /// The token; `None` if the row does not sample.
    token: Option<Result<SampledToken, RowError>>,
    /// The likeliest tokens, if the row reports them.
    top: Vec<TokenLogprob>,
}

impl Sampling {
    /// Samples all rows and leaves the results with `step`, as [`HostStep::sample`] does.
    pub(super) fn run(
        &mut self,
        host: &Host,
        step: &mut HostStep,
        logits: &[f32],
        n_vocab: usize,
        outputs: &[f32],
        n_embd: usize,
    ) {
        let n_rows = logits.len() / n_vocab.max(1);
        // The rows of a draft are sampled in order if a draw depends on those before it.
        let is_in_order = step.samples_in_order();
        if n_rows < 2 || host.pool().n_threads() < 2 || is_in_order {
            return step.sample(logits, n_vocab, outputs, n_embd);
        }
        // A run of rows always has the same sampler, so that later steps of its kind do not allocate.
        let run_len = n_rows.div_ceil(host.pool().n_threads());
        let n_runs = n_rows.div_ceil(run_len);
        let Self { samplers, picks } = self;
        if samplers.len() < n_runs {
            samplers.resize_with(n_runs, RowSampler::default);
        }
        if picks.len() < n_rows {
            picks.resize_with(n_rows, Pick::default);
        }
        let parts = (
            Columns::new(&mut picks[..n_rows], n_rows, run_len),
            Columns::new(&mut samplers[..n_runs], n_runs, 1),
        );
        let rows = &*step;
        host.pool()
            .for_each_part(parts, |run_idx, (mut picks, mut samplers)| {
                let sampler = &mut samplers.row(0)[0];
                for (i, Pick { token, top }) in picks.row(0).iter_mut().enumerate() {
                    let row = run_idx * run_len + i;
                    let logits = &logits[row * n_vocab..][..n_vocab];
                    top.clear();
                    *token = (rows.samples(row)).then(|| sampler.sample(rows, row, logits, top));
                }
            });
        let mut picked = |row: usize, top: &mut Vec<TokenLogprob>| {
            let pick = &picks[row];
            top.extend_from_slice(&pick.top);
            pick.token.expect("a row that samples was picked")
        };
        step.finish(logits, n_vocab, outputs, n_embd, Some(&mut picked));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokenmill_backend::{
        ForwardBatch, RowMask, RowOutput, SampleRow, SamplingParams, StepOutput, TokenSource,
    };
    use tokenmill_quant::CpuFeatures;

    use super::*;

    const N_VOCAB: usize = 100;

    /// Returns a batch of sequences of one token; one sequence returns its logits, and one may sample only an
    /// even token.
    fn batch(n_seqs: u32) -> ForwardBatch {
        let params = |temperature, n_logprobs| {
            Arc::new(SamplingParams {
                temperature,
                n_logprobs,
                seed: 3,
                ..SamplingParams::default()
            })
        };
        let mut batch = ForwardBatch {
            mask_words: vec![0x5555_5555; N_VOCAB.div_ceil(32)],
            ..ForwardBatch::default()
        };
        for seq in 0..n_seqs {
            batch.push_sequence([TokenSource::Id(seq)], seq, &[seq]);
            batch.want_last(if seq == 2 {
                RowOutput::Logits
            } else {
                RowOutput::Sample(SampleRow {
                    params: params((seq % 3) as f32, (seq % 2 == 0).then_some(seq)),
                    history: 0..0,
                    n_prompt: 0,
                    mask: if seq == 1 { RowMask::Words(0) } else { RowMask::Any },
                })
            });
        }
        batch
    }

    #[test]
    fn threads_sample_what_one_would() {
        for (n_threads, n_seqs) in [(1, 7), (2, 1), (2, 2), (3, 7), (4, 6)] {
            let host = Host::new(n_threads, CpuFeatures::detect()).unwrap();
            let batch = batch(n_seqs);
            let logits: Vec<f32> = (0..n_seqs as usize * N_VOCAB)
                .map(|i| (i * 37 % 101) as f32 * 0.02)
                .collect();
            let read = |run: &dyn Fn(&mut HostStep)| {
                let (mut step, mut output) = (HostStep::default(), StepOutput::default());
                step.begin(&batch);
                run(&mut step);
                step.read(&mut output);
                output
            };
            let expected = read(&|step| step.sample(&logits, N_VOCAB, &[], 0));
            let found = read(&|step| {
                let mut sampling = Sampling::default();
                sampling.run(&host, step, &logits, N_VOCAB, &[], 0);
            });
            assert_eq!(found.sampled, expected.sampled, "{n_threads} threads");
            assert_eq!(found.top, expected.top, "{n_threads} threads");
            assert_eq!(found.top_starts, expected.top_starts, "{n_threads} threads");
            assert_eq!(found.logits, expected.logits, "{n_threads} threads");
            if n_seqs > 1 {
                assert!(found.sampled[1].unwrap().unwrap().id.is_multiple_of(2));
            }
        }
    }
}
