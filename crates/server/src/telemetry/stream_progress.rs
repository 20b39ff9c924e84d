//! [`StreamProgress`] writes the progress of a streamed answer: of its prompt, and the timings of each chunk.
//!
//! llama.cpp's and OpenAI's chunks have both in the same form. Invariant: all chunks have the times of the
//! engine's clock, whenever they are sent.

use std::time::Duration;

use serde_json::{Value, json};
use tokenmill::{Delta, stream::Prefill};

use crate::telemetry::outcome::Measured;

/// Fields of a request that ask for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProgressFields {
    pub(crate) return_progress: bool,
    pub(crate) timings_per_token: bool,
}

impl ProgressFields {
    /// Returns whether a stream needs the engine's reports of the prompt.
    pub(crate) fn needs_prefill(self) -> bool {
        self.return_progress || self.timings_per_token
    }
}

/// Holds the state of the samples of an answer.
#[derive(Debug)]
pub(crate) struct StreamProgress {
    fields: ProgressFields,
    /// The newest report of each prompt.
    prefills: Vec<Option<Prefill>>,
    samples: Vec<SampleProgress>,
}

#[derive(Clone, Copy, Debug, Default)]
struct SampleProgress {
    /// Times of the first token and of the newest that was sent, since submission.
    tokens: Option<(Duration, Duration)>,
    n_tokens: usize,
}

impl StreamProgress {
    /// Creates the state of an answer to `n_prompts` prompts with `n_samples` samples each.
    pub(crate) fn new(fields: ProgressFields, n_prompts: usize, n_samples: usize) -> Self {
        Self {
            fields,
            prefills: vec![None; n_prompts],
            samples: vec![SampleProgress::default(); n_prompts * n_samples],
        }
    }

    fn prompt_of(&self, sample: u32) -> usize {
        sample as usize * self.prefills.len() / self.samples.len().max(1)
    }

    /// Takes notice of a report. Returns the value of `prompt_progress`, if the request asks for it.
    pub(crate) fn take_prefill(&mut self, report: &Prefill) -> Option<Value> {
        let prompt = self.prompt_of(report.sample);
        *self.prefills.get_mut(prompt)? = Some(report.clone());
        self.fields.return_progress.then(|| {
            json!({
                "total": report.prompt_tokens,
                "cache": report.cached_tokens,
                "processed": report.done_tokens,
                "time_ms": report.elapsed.as_secs_f64() * 1e3,
            })
        })
    }

    /// Takes notice of more tokens of a sample.
    pub(crate) fn take_delta(&mut self, delta: &Delta) {
        let ends = delta.tokens.first().zip(delta.tokens.last());
        if let (Some(sample), Some((oldest, newest))) = (self.samples.get_mut(delta.sample as usize), ends) {
            let (first, _) = sample.tokens.unwrap_or((oldest.time, newest.time));
            sample.tokens = Some((first, newest.time));
            sample.n_tokens += delta.tokens.len();
        }
    }

    /// Adds the timings until now to a chunk, if the request asks for them.
    pub(crate) fn add_timings(&self, sample: u32, chunk: &mut Value) {
        let state = self.samples.get(sample as usize);
        let prompt = self.prompt_of(sample);
        let prefill = self.prefills.get(prompt).and_then(Option::as_ref);
        if let (true, Some(state), Some(prefill)) = (self.fields.timings_per_token, state, prefill) {
            let measured = Measured {
                queued: prefill.queued,
                prefill: prefill.elapsed,
                decode: (state.tokens).map_or(Duration::ZERO, |(first, newest)| newest.saturating_sub(first)),
                n_cached: prefill.cached_tokens,
                n_computed: prefill.prompt_tokens - prefill.cached_tokens,
                n_predicted: state.n_tokens,
            };
            chunk["timings"] = measured.to_json();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use tokenmill::stream::ScoredToken;

    use super::*;

    #[test]
    fn the_time_of_an_answer_is_that_of_its_tokens_and_not_of_its_chunks() {
        let ms = Duration::from_millis;
        let fields = ProgressFields {
            timings_per_token: true,
            ..ProgressFields::default()
        };
        let mut progress = StreamProgress::new(fields, 1, 1);
        progress.take_prefill(&Prefill {
            sample: 0,
            prompt_tokens: 4,
            cached_tokens: 0,
            done_tokens: 4,
            queued: Duration::ZERO,
            elapsed: ms(1),
        });
        // The first text was held back, and the client is slow.
        for (times, n_predicted, predicted_ms) in [(&[1, 5][..], 2, 4.0), (&[], 2, 4.0), (&[11], 3, 10.0)] {
            let token = |time: &u64| ScoredToken {
                id: 0,
                logprob: None,
                top: Vec::new(),
                time: ms(*time),
            };
            progress.take_delta(&Delta {
                sample: 0,
                text: String::new(),
                parts: Vec::new(),
                tokens: times.iter().map(token).collect(),
                sampled: None,
            });
            thread::sleep(ms(12));
            let mut chunk = json!({});
            progress.add_timings(0, &mut chunk);
            let timings = &chunk["timings"];
            assert_eq!(
                (timings["predicted_n"].as_u64(), timings["predicted_ms"].as_f64()),
                (Some(n_predicted), Some(predicted_ms)),
                "{timings}"
            );
        }
    }

    #[test]
    fn the_samples_of_a_prompt_share_its_progress() {
        let progress = StreamProgress::new(ProgressFields::default(), 2, 3);
        let prompts: Vec<usize> = (0..6).map(|sample| progress.prompt_of(sample)).collect();
        assert_eq!(prompts, [0, 0, 0, 1, 1, 1]);
    }
}
