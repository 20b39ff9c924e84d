//! Launches that choose a token.

use std::rc::Rc;

use anyhow::ensure;
use tokenmill_cuda_exec::{ArgmaxScratch, SampleInputs, SampleOutputs, SampleRecord, SampleScratch};
use tokenmill_testkit::Random;

use super::{
    twin::{self, Checked},
    work::{N_VOCAB, Work, Workshop, shared},
};

/// The check of a correctly chosen token.
const RIGHT: Checked = Checked {
    n_compared: 1,
    deviation: 0.0,
};

impl Workshop {
    /// Makes logits whose best tokens stand out, as a model's do. A device that estimates has them too, since the time of sampling depends on them.
    fn logits(n_vocab: usize) -> Vec<f32> {
        let values = Random::new(21).values(n_vocab);
        values.into_iter().map(|value| 14.0 * value.powi(3)).collect()
    }

    pub(super) fn argmax(&self) -> anyhow::Result<Work<'_>> {
        let n_vocab = self.n_out(N_VOCAB);
        let device = &self.device;
        let host = Self::logits(n_vocab);
        let logits = device.upload("logits", &host)?;
        let token = shared(device.upload("tokens", &[u32::MAX])?);
        let mut scratch = ArgmaxScratch::new(device, 1, n_vocab)?;
        let ops = &self.ops;
        let written = Rc::clone(&token);
        Ok(Work {
            shape: format!("1 x {n_vocab}"),
            n_bytes: 4 * n_vocab,
            n_flops: n_vocab,
            launch: Box::new(move |_| {
                let mut written = written.borrow_mut();
                ops.argmax([1, n_vocab], logits.view(), written.view_mut(), &mut scratch)
            }),
            check: Some(Box::new(move || {
                let found = device.download(token.borrow().view())?;
                let best = twin::nucleus(&host, 1.0, 1, 1.0);
                ensure!(
                    found[0] as usize == best[0],
                    "token {} was chosen, {} is the likeliest",
                    found[0],
                    best[0]
                );
                Ok(RIGHT)
            })),
        })
    }

    /// Launches a draw by top-p, from the best `top_k` if that is not 0.
    pub(super) fn sample(&self, flags: u32, top_k: u32, top_p: f32) -> anyhow::Result<Work<'_>> {
        let record = SampleRecord {
            flags,
            top_k,
            top_p,
            ..drawn()
        };
        self.sample_rows(Self::logits(self.n_out(N_VOCAB)), vec![record], true)
    }

    /// Launches the sampling of rows of logits, each by its record. Rows that may draw many tokens have the launches for it only if `spreads`.
    pub(crate) fn sample_rows(
        &self,
        host: Vec<f32>,
        rows: Vec<SampleRecord>,
        spreads: bool,
    ) -> anyhow::Result<Work<'_>> {
        let (n_rows, n_vocab) = (rows.len(), host.len() / rows.len());
        let device = &self.device;
        let logits = device.upload("logits", &host)?;
        let words: Vec<u32> = rows.iter().flat_map(SampleRecord::to_words).collect();
        let records = device.upload("records", &words)?;
        let words = device.upload("words", &[0u32])?;
        let mut scratch = SampleScratch::new(device, n_rows, n_vocab)?;
        let has_many = spreads && rows.iter().any(|row| row.draws_many(n_vocab));
        let n_tops = rows.iter().map(|row| row.n_top as usize).sum::<usize>().max(1);
        let results = |n: usize| device.upload("results", &vec![u32::MAX; n]);
        let outputs = [
            results(n_rows)?,
            results(n_rows)?,
            results(n_rows)?,
            results(n_tops)?,
            results(n_tops)?,
        ];
        let outputs = shared(outputs);
        let ops = &self.ops;
        let written = Rc::clone(&outputs);
        Ok(Work {
            shape: format!(
                "{n_rows} x {n_vocab}, top-k {}, top-p {}",
                rows[0].top_k, rows[0].top_p
            ),
            n_bytes: 4 * host.len(),
            n_flops: host.len(),
            launch: Box::new(move |_| {
                let mut written = written.borrow_mut();
                let [tokens, status, logprobs, top_ids, top_logprobs] = &mut *written;
                ops.sample(
                    [n_rows, n_vocab],
                    logits.view(),
                    &SampleInputs {
                        records: records.view(),
                        words: words.view(),
                        previous: words.view(),
                        has_many,
                    },
                    SampleOutputs {
                        scratch: &mut scratch,
                        tokens: tokens.view_mut(),
                        status: status.view_mut(),
                        logprobs: logprobs.view_mut(),
                        top_ids: top_ids.view_mut(),
                        top_logprobs: top_logprobs.view_mut(),
                    },
                )
            }),
            check: Some(Box::new(move || {
                let outputs = outputs.borrow();
                let [tokens, status] =
                    [&outputs[0], &outputs[1]].map(|output| device.download(output.view()));
                let rows = rows.iter().zip(host.chunks(n_vocab));
                for ((record, logits), (token, status)) in rows.zip(tokens?.into_iter().zip(status?)) {
                    let top_k = record.top_k as usize;
                    let allowed = twin::nucleus(logits, record.temperature, top_k, record.top_p.into());
                    ensure!(status == 0, "the row has status {status}");
                    ensure!(
                        allowed.contains(&(token as usize)),
                        "token {token} was drawn, which is none of the {} that may be",
                        allowed.len()
                    );
                }
                Ok(RIGHT)
            })),
        })
    }
}

/// Returns the record of a row that is drawn with the usual temperature and without filters.
pub(crate) fn drawn() -> SampleRecord {
    SampleRecord {
        flags: 0,
        temperature: 0.8,
        top_p: 1.0,
        ln_min_p: f32::NEG_INFINITY,
        repeat_penalty: 1.0,
        newest: SampleRecord::NONE,
        mask_start: SampleRecord::NONE,
        ..SampleRecord::raw()
    }
}
