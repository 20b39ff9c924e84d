//! [`LlamaFigures`] exports metrics under the names of llama.cpp's server, for dashboards made for it.
//!
//! These metrics count differently: cached prompt tokens apart, and seconds as sums. Invariant: with one
//! model they have no labels, as in llama.cpp; with several, labels distinguish the models.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};
use tokenmill::stream::TextEnd;
use tokenmill_sched::EngineStats;

type Seconds = Counter<f64, AtomicU64>;
type Rate = Gauge<f64, AtomicU64>;

/// Holds the metrics; clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct LlamaFigures {
    prompt_tokens: Counter,
    cached_tokens: Counter,
    prompt_s: Seconds,
    predicted_tokens: Counter,
    predicted_s: Seconds,
    steps: Counter,
    most_tokens: Gauge,
    draft_tokens: Counter,
    accepted_tokens: Counter,
    drafts: Counter,
    prompt_rate: Rate,
    predicted_rate: Rate,
    running: Gauge,
    waiting: Gauge,
    rows_per_step: Rate,
    /// Tokens after the first of each answer, over which the decode seconds are measured.
    decoded_tokens: Arc<AtomicU64>,
}

impl LlamaFigures {
    /// Registers the metrics.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let counters = [
            ("prompt_tokens", "Prompt tokens computed", &self.prompt_tokens),
            (
                "prompt_tokens_cached",
                "Prompt tokens found in the prefix cache",
                &self.cached_tokens,
            ),
            ("tokens_predicted", "Tokens of answers", &self.predicted_tokens),
            ("n_decode", "Steps of the engine", &self.steps),
            (
                "spec_decode_num_draft_tokens",
                "Tokens of drafts",
                &self.draft_tokens,
            ),
            (
                "spec_decode_num_accepted_tokens",
                "Draft tokens that were accepted",
                &self.accepted_tokens,
            ),
            (
                "spec_decode_num_drafts",
                "Drafts that were verified",
                &self.drafts,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(format!("llamacpp:{name}"), help, counter.clone());
        }
        let seconds = [
            (
                "prompt_seconds",
                "Seconds spent on computing prompts",
                &self.prompt_s,
            ),
            (
                "tokens_predicted_seconds",
                "Seconds spent on generating answers after their first token",
                &self.predicted_s,
            ),
        ];
        for (name, help, counter) in seconds {
            registry.register(format!("llamacpp:{name}"), help, counter.clone());
        }
        let rates = [
            (
                "prompt_tokens_seconds",
                "Average prompt tokens computed per second",
                &self.prompt_rate,
            ),
            (
                "predicted_tokens_seconds",
                "Average answer tokens generated per second",
                &self.predicted_rate,
            ),
            (
                "n_busy_slots_per_decode",
                "Average sequences sampled per step",
                &self.rows_per_step,
            ),
        ];
        for (name, help, gauge) in rates {
            registry.register(format!("llamacpp:{name}"), help, gauge.clone());
        }
        let gauges = [
            (
                "n_tokens_max",
                "Length of the longest sequence, in tokens",
                &self.most_tokens,
            ),
            (
                "requests_processing",
                "Sequences that are being computed",
                &self.running,
            ),
            ("requests_deferred", "Sequences that wait to start", &self.waiting),
        ];
        for (name, help, gauge) in gauges {
            registry.register(format!("llamacpp:{name}"), help, gauge.clone());
        }
    }

    /// Counts an answer.
    pub(crate) fn observe_end(&self, end: &TextEnd) {
        let (usage, timings) = (&end.finished.usage, &end.finished.timings);
        let n_predicted = usage.completion_tokens as u64;
        self.predicted_tokens.inc_by(n_predicted);
        self.most_tokens.inner().fetch_max(
            (usage.prompt_tokens + usage.completion_tokens) as i64,
            Ordering::Relaxed,
        );
        if n_predicted > 0 {
            self.prompt_s.inc_by(timings.prefill.as_secs_f64());
            let decode = timings.total.saturating_sub(timings.first_token);
            self.predicted_s.inc_by(decode.as_secs_f64());
            self.decoded_tokens.fetch_add(n_predicted - 1, Ordering::Relaxed);
        }
    }

    /// Copies the engine's counters. `n_waiting` is the number of waiting sequences.
    pub(crate) fn read(&self, stats: &EngineStats, n_waiting: usize) {
        let set = |counter: &Counter, value: u64| counter.inner().store(value, Ordering::Relaxed);
        let scheduler = &stats.scheduler;
        let n_computed = scheduler.prompt_tokens.saturating_sub(scheduler.cached_tokens);
        set(&self.prompt_tokens, n_computed);
        set(&self.cached_tokens, scheduler.cached_tokens);
        set(&self.steps, scheduler.steps);
        set(&self.draft_tokens, scheduler.drafts.draft_tokens);
        set(&self.accepted_tokens, scheduler.drafts.accepted_tokens);
        set(&self.drafts, scheduler.drafts.drafts);
        self.running.set(stats.n_running as i64);
        self.waiting.set(n_waiting as i64);
        let ratio = |n: u64, of: f64| if of > 0.0 { n as f64 / of } else { 0.0 };
        self.prompt_rate.set(ratio(n_computed, self.prompt_s.get()));
        let n_decoded = self.decoded_tokens.load(Ordering::Relaxed);
        self.predicted_rate.set(ratio(n_decoded, self.predicted_s.get()));
        self.rows_per_step
            .set(ratio(scheduler.sampling_rows, scheduler.steps as f64));
    }
}
