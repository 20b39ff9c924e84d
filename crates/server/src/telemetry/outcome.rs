//! Describes finished samples: token counts, finish reasons, timings.
//!
//! Metrics and logs share it with the readers of streams. Invariant: the samples of a prompt count its tokens
//! once.

use std::time::Duration;

use serde_json::{Value, json};
use tokenmill::stream::{Sample, TextEnd};
use tokenmill_backend::PAGE_TOKENS;
use tokenmill_sched::{FinishReason, Timings};

use crate::requests::tools::ends_in_calls;

/// Token counts of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenCounts {
    pub(crate) prompt: usize,
    pub(crate) cached: usize,
    pub(crate) completion: usize,
    pub(crate) reasoning: usize,
}

impl TokenCounts {
    /// Adds a sample. The samples of a prompt share it, so only the first counts it.
    pub(crate) fn add(&mut self, end: &TextEnd) {
        let usage = end.finished.usage;
        if end.finished.sample == 0 {
            self.prompt += usage.prompt_tokens;
            self.cached += usage.cached_tokens;
        }
        self.completion += usage.completion_tokens;
        self.reasoning += end.reasoning_tokens;
    }

    /// Sums the counts of all samples of a request.
    pub(crate) fn of_samples(samples: &[Sample]) -> Self {
        let mut usage = Self::default();
        for sample in samples {
            usage.add(&sample.end);
        }
        usage
    }

    /// As OpenAI's older endpoints write it.
    pub(crate) fn to_openai(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": { "cached_tokens": self.cached },
            "completion_tokens_details": { "reasoning_tokens": self.reasoning },
        })
    }

    /// As the responses endpoint writes it.
    pub(crate) fn to_responses(self) -> Value {
        json!({
            "input_tokens": self.prompt,
            "input_tokens_details": { "cached_tokens": self.cached, "cache_write_tokens": 0 },
            "output_tokens": self.completion,
            "output_tokens_details": { "reasoning_tokens": self.reasoning },
            "total_tokens": self.prompt + self.completion,
        })
    }

    /// Writes the counts in Anthropic's form: tokens that were read from the cache, or stored in it if the request `marks` what to cache,
    /// are not input tokens. The cache stores whole pages.
    pub(crate) fn to_anthropic(self, marks: bool) -> Value {
        let computed = self.prompt - self.cached;
        let kept = if marks {
            (self.prompt / PAGE_TOKENS * PAGE_TOKENS).saturating_sub(self.cached)
        } else {
            0
        };
        json!({
            "input_tokens": computed - kept,
            "cache_read_input_tokens": self.cached,
            "cache_creation_input_tokens": kept,
            "output_tokens": self.completion,
        })
    }
}

/// Names this program and its version.
pub(crate) const SYSTEM_FINGERPRINT: &str = concat!("build-", env!("CARGO_PKG_VERSION"));

/// Why a sample ended, in OpenAI's words.
pub(crate) fn finish_reason(end: &TextEnd) -> &'static str {
    match (end.stopped_by, end.finished.reason) {
        _ if ends_in_calls(end) => "tool_calls",
        (None, FinishReason::Length) => "length",
        // A client that is gone cancels, and has no reader. A line that ends an answer of `/infill` cancels too; that endpoint
        // reports its end in its own words.
        (Some(_), _) | (None, FinishReason::Stop | FinishReason::Cancelled) => "stop",
    }
}

/// Measurements of a sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) queued: Duration,
    pub(crate) prefill: Duration,
    /// From the first token to the last.
    pub(crate) decode: Duration,
    /// Tokens of the prompt that came from the cache.
    pub(crate) n_cached: usize,
    /// The other tokens of the prompt.
    pub(crate) n_computed: usize,
    pub(crate) n_predicted: usize,
}

impl Measured {
    /// Writes them as llama.cpp's server does.
    pub(crate) fn to_json(self) -> Value {
        let (prefill, decode) = (self.prefill.as_secs_f64(), self.decode.as_secs_f64());
        let rate = |n: usize, seconds: f64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        let per_token_ms = |n: usize, seconds: f64| if n > 0 { seconds * 1e3 / n as f64 } else { 0.0 };
        // The time begins with the first token, so one token has no rate: llama.cpp writes 0.
        let n_after_first = self.n_predicted.saturating_sub(1);
        json!({
            "queued_ms": self.queued.as_secs_f64() * 1e3,
            "cache_n": self.n_cached,
            "prompt_n": self.n_computed,
            "prompt_ms": prefill * 1e3,
            "prompt_per_token_ms": per_token_ms(self.n_computed, prefill),
            "prompt_per_second": rate(self.n_computed, prefill),
            "predicted_n": self.n_predicted,
            "predicted_ms": decode * 1e3,
            "predicted_per_token_ms": per_token_ms(n_after_first, decode),
            "predicted_per_second": rate(n_after_first, decode),
        })
    }
}

/// The timings of a sample as llama.cpp's server reports them.
pub(crate) fn timings(end: &TextEnd) -> Value {
    let usage = end.finished.usage;
    let Timings {
        queued,
        prefill,
        first_token,
        total,
        ..
    } = end.finished.timings;
    let measured = Measured {
        queued,
        prefill,
        decode: total.saturating_sub(first_token),
        n_cached: usage.cached_tokens,
        n_computed: usage.prompt_tokens - usage.cached_tokens,
        n_predicted: usage.completion_tokens,
    };
    let mut timings = measured.to_json();
    if usage.drafted_tokens > 0 {
        timings["draft_n"] = usage.drafted_tokens.into();
        timings["draft_n_accepted"] = usage.accepted_tokens.into();
    }
    if usage.dropped_tokens > 0 {
        timings["dropped_n"] = usage.dropped_tokens.into();
    }
    timings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_marked_tokens_are_counted_once() {
        let counts = TokenCounts {
            prompt: 3 * PAGE_TOKENS + 5,
            cached: PAGE_TOKENS,
            completion: 7,
            reasoning: 0,
        };
        for (marks, kept) in [(true, 2 * PAGE_TOKENS), (false, 0)] {
            let usage = counts.to_anthropic(marks);
            assert_eq!(usage["cache_read_input_tokens"], PAGE_TOKENS);
            assert_eq!(usage["cache_creation_input_tokens"], kept);
            assert_eq!(usage["input_tokens"], 2 * PAGE_TOKENS + 5 - kept);
        }
        let all_cached = TokenCounts {
            cached: counts.prompt,
            ..counts
        };
        assert_eq!(all_cached.to_anthropic(true)["cache_creation_input_tokens"], 0);
    }
}
