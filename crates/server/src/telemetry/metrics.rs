//! [`Metrics`]: the metrics at `/metrics`, for operators and cluster routers.
//!
//! Each metric has a name of ours and, if vLLM has the same metric, that name as an alias, so that dashboards
//! and routers made for vLLM work unchanged. Gauges are read from the engine at each scrape, never stored
//! twice.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use tokenmill::{Model, stream::TextEnd};
use tokenmill_backend::{AdapterId, PAGE_TOKENS};
use tokenmill_sched::{DraftCounters, Engine};

use crate::{
    ApiError,
    telemetry::{
        llama_figures::LlamaFigures, mask_figures::MaskFigures, outcome::finish_reason,
        prefix_dir_figures::PrefixDirFigures,
    },
};

type FloatGauge = Gauge<f64, AtomicU64>;

const TIME_TO_FIRST_S: [f64; 15] = [
    0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0,
];
const INTER_TOKEN_S: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0,
];
const END_TO_END_S: [f64; 13] = [
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 600.0,
];

const SIZE_TOKENS: [f64; 15] = [
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 5e4, 1e5,
];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FinishedLabels {
    finished_reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PositionLabels {
    position: usize,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct DrafterLabels {
    drafter: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AdapterLabels {
    max_lora: usize,
    running_lora_adapters: String,
    waiting_lora_adapters: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CacheLabels {
    block_size: usize,
    num_gpu_blocks: usize,
}

/// Counters and histograms of the server; clones are handles to the same figures.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    engine: EngineFigures,
    llama_cpp: LlamaFigures,
    finished: Family<FinishedLabels, Counter>,
    failed: Counter,
    refused: Family<ReasonLabels, Counter>,
    first_token: Histogram,
    inter_token: Histogram,
    end_to_end: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    time_per_token: Histogram,
    prompt_size: Histogram,
    answer_size: Histogram,
}

/// Figures that are read from the engine at each scrape.
#[derive(Clone, Debug, Default)]
struct EngineFigures {
    running: Gauge,
    waiting: Gauge,
    kv_usage: FloatGauge,
    kv_pages_in_use: Gauge,
    kv_pages_cached: Gauge,
    window_pages: Gauge,
    window_pages_in_use: Gauge,
    heartbeat_age: FloatGauge,
    prompt_tokens: Counter,
    generated_tokens: Counter,
    cached_tokens: Counter,
    evicted_pages: Counter,
    evicted_window_pages: Counter,
    preemptions: Counter,
    context_shifts: Counter,
    dropped_tokens: Counter,
    steps: Counter,
    sampling_rows: Counter,
    tokens_per_step: FloatGauge,
    failed_steps: Counter,
    masks: MaskFigures,
    prefix_dir: PrefixDirFigures,
    drafts: Counter,
    draft_tokens: Counter,
    accepted_tokens: Counter,
    /// By the place in the draft.
    accepted_at: Family<PositionLabels, Counter>,
    /// By the source of the draft.
    draft_tokens_by: Family<DrafterLabels, Counter>,
    accepted_by: Family<DrafterLabels, Counter>,
    /// The time of the last reading, with the adapters as labels.
    adapters: Family<AdapterLabels, FloatGauge>,
}

impl Metrics {
    /// Builds the metrics of a server for `model_name` with a pool of `n_pages` KV pages. If it is the server's only model, the metrics
    /// with llama.cpp's names have no label, as in llama.cpp.
    pub fn new(model_name: &str, n_pages: usize, is_only: bool) -> Self {
        let mut registry = Registry::default();
        let figures = Self {
            registry: Arc::default(),
            engine: EngineFigures::default(),
            llama_cpp: LlamaFigures::default(),
            finished: Family::default(),
            failed: Counter::default(),
            refused: Family::default(),
            first_token: Histogram::new(TIME_TO_FIRST_S),
            inter_token: Histogram::new(INTER_TOKEN_S),
            end_to_end: Histogram::new(END_TO_END_S),
            queue: Histogram::new(TIME_TO_FIRST_S),
            prefill: Histogram::new(END_TO_END_S),
            decode: Histogram::new(END_TO_END_S),
            inference: Histogram::new(END_TO_END_S),
            time_per_token: Histogram::new(INTER_TOKEN_S),
            prompt_size: Histogram::new(SIZE_TOKENS),
            answer_size: Histogram::new(SIZE_TOKENS),
        };
        let label = (Cow::Borrowed("model_name"), Cow::Owned(model_name.to_owned()));
        if is_only {
            figures.llama_cpp.register(&mut registry);
        }
        let labelled = registry.sub_registry_with_label(label);
        if !is_only {
            figures.llama_cpp.register(labelled);
        }
        figures.register(labelled, n_pages);
        Self {
            registry: Arc::new(registry),
            ..figures
        }
    }

    fn register(&self, registry: &mut Registry, n_pages: usize) {
        let engine = &self.engine;
        let both = |registry: &mut Registry, name: &str, vllm: &str, help: &str, metric: Figure| {
            metric.register(registry, &format!("tokenmill_{name}"), help);
            metric.register(registry, &format!("vllm:{vllm}"), help);
        };
        let gauge = |gauge: &Gauge| Figure::Gauge(gauge.clone());
        let counter = |counter: &Counter| Figure::Counter(counter.clone());
        let histogram = |histogram: &Histogram| Figure::Histogram(histogram.clone());
        #[rustfmt::skip]
        let shared = [
            ("requests_running", "num_requests_running", "Sequences that are being computed", gauge(&engine.running)),
            ("requests_waiting", "num_requests_waiting", "Sequences that wait to start", gauge(&engine.waiting)),
            ("kv_usage_ratio", "kv_cache_usage_perc", "Share of the KV pages that sequences hold, 0 to 1; of layers with a window and of others, the larger share", Figure::FloatGauge(engine.kv_usage.clone())),
            ("prompt_tokens", "prompt_tokens", "Prompt tokens of sequences that began", counter(&engine.prompt_tokens)),
            ("generated_tokens", "generation_tokens", "Tokens generated", counter(&engine.generated_tokens)),
            ("prefix_cache_hit_tokens", "prefix_cache_hits", "Prompt tokens found in the prefix cache", counter(&engine.cached_tokens)),
            ("prefix_cache_queried_tokens", "prefix_cache_queries", "Prompt tokens looked up in the prefix cache", counter(&engine.prompt_tokens)),
            ("preemptions", "num_preemptions", "Sequences that were preempted", counter(&engine.preemptions)),
            ("drafts", "spec_decode_num_drafts", "Drafts that were verified", counter(&engine.drafts)),
            ("draft_tokens", "spec_decode_num_draft_tokens", "Tokens of drafts", counter(&engine.draft_tokens)),
            ("accepted_draft_tokens", "spec_decode_num_accepted_tokens", "Draft tokens that were accepted", counter(&engine.accepted_tokens)),
            ("accepted_draft_tokens_per_position", "spec_decode_num_accepted_tokens_per_pos", "Draft tokens that were accepted, by their place in the draft", Figure::ByPosition(engine.accepted_at.clone())),
            ("requests_finished", "request_success", "Samples that ended, by reason", Figure::Finished(self.finished.clone())),
            ("time_to_first_token_seconds", "time_to_first_token_seconds", "From submission to the first token", histogram(&self.first_token)),
            ("inter_token_seconds", "inter_token_latency_seconds", "Between two tokens of a sample", histogram(&self.inter_token)),
            ("request_seconds", "e2e_request_latency_seconds", "From submission to the end", histogram(&self.end_to_end)),
            ("queue_seconds", "request_queue_time_seconds", "From submission until the sample began", histogram(&self.queue)),
            ("prefill_seconds", "request_prefill_time_seconds", "From the sample's beginning to its first token", histogram(&self.prefill)),
            ("decode_seconds", "request_decode_time_seconds", "From the sample's first token to its end", histogram(&self.decode)),
            ("inference_seconds", "request_inference_time_seconds", "From the sample's beginning to its end", histogram(&self.inference)),
            ("time_per_token_seconds", "request_time_per_output_token_seconds", "Mean time of a sample's tokens after the first", histogram(&self.time_per_token)),
            ("prompt_size_tokens", "request_prompt_tokens", "Prompt tokens of a request, counted once for all its samples of a prompt", histogram(&self.prompt_size)),
            ("answer_size_tokens", "request_generation_tokens", "Tokens generated of a sample", histogram(&self.answer_size)),
        ];
        for (name, vllm, help, metric) in shared {
            both(registry, name, vllm, help, metric);
        }
        #[rustfmt::skip]
        let own = [
            ("kv_pages_in_use", "KV pages that sequences hold", gauge(&engine.kv_pages_in_use)),
            ("kv_pages_cached", "KV pages that only the prefix cache holds", gauge(&engine.kv_pages_cached)),
            ("window_pages", "KV pages of layers with a window, where these have pages of their own", gauge(&engine.window_pages)),
            ("window_pages_in_use", "KV pages of layers with a window that sequences hold", gauge(&engine.window_pages_in_use)),
            ("prefix_cache_evicted_pages", "Cached pages forgotten to make room", counter(&engine.evicted_pages)),
            ("prefix_cache_evicted_window_pages", "Cached pages of layers with a window forgotten to make room", counter(&engine.evicted_window_pages)),
            ("context_shifts", "Times that a full context was shifted", counter(&engine.context_shifts)),
            ("context_shift_dropped_tokens", "Tokens that were dropped where a context was shifted", counter(&engine.dropped_tokens)),
            ("engine_heartbeat_age_seconds", "Time since the engine's last sign of life", Figure::FloatGauge(engine.heartbeat_age.clone())),
            ("engine_steps", "Steps of the engine", counter(&engine.steps)),
            ("sampling_rows", "Sequences sampled, summed over all steps", counter(&engine.sampling_rows)),
            ("tokens_per_step", "Tokens generated for each sequence sampled in a step, on average since the start; above 1 where drafts are accepted", Figure::FloatGauge(engine.tokens_per_step.clone())),
            ("engine_failed_steps", "Steps that failed", counter(&engine.failed_steps)),
            ("requests_failed", "Samples that failed after they were accepted", counter(&self.failed)),
            ("drafter_tokens", "Draft tokens, by their source: ngram, grammar, draft or mtp", Figure::ByDrafter(engine.draft_tokens_by.clone())),
            ("drafter_accepted_tokens", "Draft tokens that were accepted, by their source: ngram, grammar, draft or mtp", Figure::ByDrafter(engine.accepted_by.clone())),
        ];
        for (name, help, metric) in own {
            metric.register(registry, &format!("tokenmill_{name}"), help);
        }
        engine.masks.register(registry);
        engine.prefix_dir.register(registry);
        registry.register(
            "tokenmill_requests_refused",
            "Requests refused before they reached the engine, by reason",
            self.refused.clone(),
        );
        let cache = Family::<CacheLabels, Gauge>::default();
        cache
            .get_or_create(&CacheLabels {
                block_size: PAGE_TOKENS,
                num_gpu_blocks: n_pages,
            })
            .set(1);
        registry.register(
            "vllm:time_per_output_token_seconds",
            "Between two tokens of a sample, by the older name",
            self.inter_token.clone(),
        );
        registry.register(
            "vllm:lora_requests_info",
            "When the adapters of requests were read, seconds since 1970, and which they were",
            engine.adapters.clone(),
        );
        registry.register(
            "vllm:cache_config_info",
            "KV pages (vLLM calls them blocks)",
            cache,
        );
    }

    /// Writes all figures in OpenMetrics text.
    pub fn encode(&self, model: &Model) -> String {
        self.engine.read(model.engine());
        let (n_queued, _) = model.engine().queued();
        let stats = model.engine().stats();
        self.llama_cpp.read(&stats, n_queued.max(stats.n_waiting));
        self.engine.read_adapters(model);
        if let Some(figures) = model.prefix_folder_figures() {
            self.engine.prefix_dir.set(&figures);
        }
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string succeeds");
        text
    }

    /// Counts a request that was refused.
    pub fn count_refusal(&self, error: &ApiError) {
        self.refused
            .get_or_create(&ReasonLabels { reason: error.code() })
            .inc();
    }

    pub(crate) fn count_failure(&self) {
        self.failed.inc();
    }

    pub(crate) fn observe_inter_token(&self, elapsed: Duration) {
        self.inter_token.observe(elapsed.as_secs_f64());
    }

    pub(crate) fn observe_end(&self, end: &TextEnd) {
        self.llama_cpp.observe_end(end);
        let timings = &end.finished.timings;
        self.finished
            .get_or_create(&FinishedLabels {
                finished_reason: finish_reason(end),
            })
            .inc();
        self.queue.observe(timings.queued.as_secs_f64());
        self.end_to_end.observe(timings.total.as_secs_f64());
        let usage = &end.finished.usage;
        if end.finished.sample == 0 {
            self.prompt_size.observe(usage.prompt_tokens as f64);
        }
        self.answer_size.observe(usage.completion_tokens as f64);
        self.inference
            .observe(timings.total.saturating_sub(timings.queued).as_secs_f64());
        if usage.completion_tokens > 0 {
            let decode_s = timings.total.saturating_sub(timings.first_token).as_secs_f64();
            self.first_token.observe(timings.first_token.as_secs_f64());
            self.prefill.observe(timings.prefill.as_secs_f64());
            self.decode.observe(decode_s);
            if usage.completion_tokens > 1 {
                self.time_per_token
                    .observe(decode_s / (usage.completion_tokens - 1) as f64);
            }
        }
    }
}

impl EngineFigures {
    /// The adapters of requests by name, in the order of their names; nothing where no adapter is loaded.
    fn read_adapters(&self, model: &Model) {
        self.adapters.clear();
        let loaded = model.adapters();
        if loaded.is_empty() {
            return;
        }
        let in_use = model.engine().adapters_in_use();
        let names = |ids: &[AdapterId]| {
            let mut names: Vec<&str> = (loaded.iter())
                .filter(|adapter| ids.contains(&adapter.id))
                .map(|adapter| adapter.name.as_str())
                .collect();
            names.sort_unstable();
            names.join(",")
        };
        let labels = AdapterLabels {
            max_lora: model.max_adapters(),
            running_lora_adapters: names(&in_use.running),
            waiting_lora_adapters: names(&in_use.waiting),
        };
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH);
        self.adapters
            .get_or_create(&labels)
            .set(now_s.map_or(0.0, |now| now.as_secs_f64()));
    }

    fn read(&self, engine: &Engine) {
        let stats = engine.stats();
        let (n_queued, _) = engine.queued();
        self.running.set(stats.n_running as i64);
        self.waiting.set(n_queued.max(stats.n_waiting) as i64);
        self.kv_usage.set(stats.kv_usage());
        self.kv_pages_in_use.set(stats.n_pages_in_use as i64);
        self.kv_pages_cached.set(stats.n_pages_idle as i64);
        self.window_pages.set(stats.n_window_pages as i64);
        self.window_pages_in_use.set(stats.n_window_pages_in_use as i64);
        self.heartbeat_age.set(engine.heartbeat_age().as_secs_f64());
        let set = |counter: &Counter, value: u64| counter.inner().store(value, Ordering::Relaxed);
        set(&self.prompt_tokens, stats.scheduler.prompt_tokens);
        set(&self.generated_tokens, stats.generated_tokens);
        set(&self.cached_tokens, stats.scheduler.cached_tokens);
        set(&self.evicted_pages, stats.pool.evictions);
        set(&self.evicted_window_pages, stats.window_pool.evictions);
        set(&self.preemptions, stats.scheduler.preemptions);
        set(&self.context_shifts, stats.scheduler.context_shifts);
        set(&self.dropped_tokens, stats.scheduler.dropped_tokens);
        set(&self.steps, stats.scheduler.steps);
        let n_rows = stats.scheduler.sampling_rows;
        set(&self.sampling_rows, n_rows);
        self.tokens_per_step
            .set(stats.generated_tokens as f64 / n_rows.max(1) as f64);
        set(&self.failed_steps, stats.failed_steps);
        self.masks.set(stats.masks);
        let drafts = stats.scheduler.drafts;
        set(&self.drafts, drafts.drafts);
        set(&self.draft_tokens, drafts.draft_tokens);
        set(&self.accepted_tokens, drafts.accepted_tokens);
        let of_model = stats.scheduler.model_drafts;
        let forced = stats.scheduler.forced_drafts;
        let earlier = stats.scheduler.earlier_drafts;
        let (of_draft, of_mtp) = if stats.drafts_from_hidden {
            (DraftCounters::default(), of_model)
        } else {
            (of_model, DraftCounters::default())
        };
        for (drafter, n_tokens, n_accepted) in [
            (
                "ngram",
                drafts.draft_tokens - of_model.draft_tokens - forced.draft_tokens - earlier.draft_tokens,
                drafts.accepted_tokens
                    - of_model.accepted_tokens
                    - forced.accepted_tokens
                    - earlier.accepted_tokens,
            ),
            ("earlier", earlier.draft_tokens, earlier.accepted_tokens),
            ("grammar", forced.draft_tokens, forced.accepted_tokens),
            ("draft", of_draft.draft_tokens, of_draft.accepted_tokens),
            ("mtp", of_mtp.draft_tokens, of_mtp.accepted_tokens),
        ] {
            let labels = DrafterLabels { drafter };
            set(&self.draft_tokens_by.get_or_create(&labels), n_tokens);
            set(&self.accepted_by.get_or_create(&labels), n_accepted);
        }
        let max_draft = engine.config().speculation.max_draft();
        for (position, &n_accepted) in drafts.accepted_at[..max_draft].iter().enumerate() {
            let counter = self.accepted_at.get_or_create(&PositionLabels { position });
            set(&counter, n_accepted);
        }
    }
}

/// A metric of any kind, so that one table can name them all.
enum Figure {
    Gauge(Gauge),
    FloatGauge(FloatGauge),
    Counter(Counter),
    Histogram(Histogram),
    Finished(Family<FinishedLabels, Counter>),
    ByPosition(Family<PositionLabels, Counter>),
    ByDrafter(Family<DrafterLabels, Counter>),
}

impl Figure {
    fn register(&self, registry: &mut Registry, name: &str, help: &str) {
        match self {
            Self::Gauge(metric) => registry.register(name, help, metric.clone()),
            Self::FloatGauge(metric) => registry.register(name, help, metric.clone()),
            Self::Counter(metric) => registry.register(name, help, metric.clone()),
            Self::Histogram(metric) => registry.register(name, help, metric.clone()),
            Self::Finished(metric) => registry.register(name, help, metric.clone()),
            Self::ByPosition(metric) => registry.register(name, help, metric.clone()),
            Self::ByDrafter(metric) => registry.register(name, help, metric.clone()),
        }
    }
}
