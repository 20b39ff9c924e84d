//! [`StreamProgress`] writes how far a streamed answer is: the progress of its prompt, and the timings of each chunk.
//!
//! Separate from the endpoints because llama.cpp's and OpenAI's chunks have both in the same form. Invariant: the last chunk has the
//! engine's own timings; those before it are measured here.

use std::time::Instant;

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
    /// The end of each prompt: the engine's clock of answers begins there, although text may be held back after it.
    prompt_ends: Vec<Option<Instant>>,
    samples: Vec<SampleProgress>,
}

#[derive(Clone, Copy, Debug, Default)]
struct SampleProgress {
    first_token: Option<Instant>,
    n_tokens: usize,
}

impl StreamProgress {
    /// Creates the state of an answer to `n_prompts` prompts with `n_samples` samples each.
    pub(crate) fn new(fields: ProgressFields, n_prompts: usize, n_samples: usize) -> Self {
        Self {
            fields,
            prefills: vec![None; n_prompts],
            prompt_ends: vec![None; n_prompts],
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
        if report.done_tokens == report.prompt_tokens {
            self.prompt_ends[prompt].get_or_insert_with(Instant::now);
        }
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
        if let Some(sample) = self.samples.get_mut(delta.sample as usize) {
            sample.first_token.get_or_insert_with(Instant::now);
            sample.n_tokens += delta.tokens.len();
        }
    }

    /// Adds the timings until now to a chunk, if the request asks for them.
    pub(crate) fn add_timings(&self, sample: u32, chunk: &mut Value) {
        let state = self.samples.get(sample as usize);
        let prompt = self.prompt_of(sample);
        let prefill = self.prefills.get(prompt).and_then(Option::as_ref);
        if let (true, Some(state), Some(prefill)) = (self.fields.timings_per_token, state, prefill) {
            let began = self.prompt_ends[prompt].or(state.first_token);
            let measured = Measured {
                queued: prefill.queued,
                prefill: prefill.elapsed,
                decode: began.map(|began| began.elapsed()).unwrap_or_default(),
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
    use std::{thread, time::Duration};

    use super::*;

    #[test]
    fn the_time_of_an_answer_begins_with_the_end_of_its_prompt() {
        let held_back = Duration::from_millis(20);
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
            elapsed: Duration::from_millis(1),
        });
        thread::sleep(held_back);
        progress.samples[0].n_tokens = 1;
        let mut chunk = json!({});
        progress.add_timings(0, &mut chunk);
        let of = |name: &str| chunk["timings"][name].as_f64();
        assert!(of("predicted_ms") >= Some(20.0), "{chunk}");
        assert_eq!(of("predicted_per_second"), None, "one token has no rate: {chunk}");
    }

    #[test]
    fn the_samples_of_a_prompt_share_its_progress() {
        let progress = StreamProgress::new(ProgressFields::default(), 2, 3);
        let prompts: Vec<usize> = (0..6).map(|sample| progress.prompt_of(sample)).collect();
        assert_eq!(prompts, [0, 0, 0, 1, 1, 1]);
    }
}
