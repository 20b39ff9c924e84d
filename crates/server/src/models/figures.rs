//! [`Figures`]: metrics of models that come and go: which are loaded, their memory, the number and duration
//! of loads.
//!
//! The metrics of a model exist only while it is loaded, these always. Invariant: the state of each model is
//! read at each scrape, never stored twice.

use std::{
    sync::{Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use super::{Doing, Listed};
use crate::{ApiError, telemetry::prometheus_text::joined};

const LOAD_S: [f64; 10] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ModelLabels {
    model_name: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabels {
    model_name: String,
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// The figures of models that come and go.
#[derive(Debug)]
pub(super) struct Figures {
    registry: Registry,
    /// Held while the figures are written out.
    encoding: Mutex<()>,
    state: Family<StateLabels, Gauge>,
    bytes: Family<ModelLabels, Gauge>,
    waiting: Family<ModelLabels, Gauge>,
    running: Family<ModelLabels, Gauge>,
    loads: Family<ModelLabels, Counter>,
    failures: Family<ModelLabels, Counter>,
    unloads: Family<ModelLabels, Counter>,
    load_seconds: Family<ModelLabels, Histogram>,
    refused: Family<ReasonLabels, Counter>,
}

/// Returns the state of a model, in the words of the model lists.
fn word(listed: &Listed) -> &'static str {
    match listed.status.doing {
        Doing::Loaded => "loaded",
        Doing::Loading => "loading",
        Doing::Unloaded if listed.status.failure.is_some() => "failed",
        Doing::Unloaded | Doing::Unloading => "unloaded",
    }
}

impl Figures {
    pub(super) fn new(budget_bytes: Option<u64>) -> Self {
        let mut registry = Registry::default();
        let figures = Self {
            registry: Registry::default(),
            encoding: Mutex::default(),
            state: Family::default(),
            bytes: Family::default(),
            waiting: Family::default(),
            running: Family::default(),
            loads: Family::default(),
            failures: Family::default(),
            unloads: Family::default(),
            load_seconds: Family::new_with_constructor(|| Histogram::new(LOAD_S)),
            refused: Family::default(),
        };
        registry.register(
            "tokenmill_model_state",
            "1 for the state of each model: loaded, loading, unloaded or failed",
            figures.state.clone(),
        );
        registry.register(
            "tokenmill_model_bytes",
            "Memory that each model takes",
            figures.bytes.clone(),
        );
        registry.register(
            "tokenmill_model_requests_waiting",
            "Requests that wait for the model to be loaded",
            figures.waiting.clone(),
        );
        registry.register(
            "tokenmill_model_requests",
            "Requests that hold the model",
            figures.running.clone(),
        );
        registry.register(
            "tokenmill_model_loads",
            "Loads that succeeded",
            figures.loads.clone(),
        );
        registry.register(
            "tokenmill_model_load_failures",
            "Loads that failed",
            figures.failures.clone(),
        );
        registry.register(
            "tokenmill_model_unloads",
            "Times that the model was unloaded",
            figures.unloads.clone(),
        );
        registry.register(
            "tokenmill_model_load_seconds",
            "Time that loads took",
            figures.load_seconds.clone(),
        );
        registry.register(
            "tokenmill_requests_refused",
            "Requests refused before they reached the engine, by reason",
            figures.refused.clone(),
        );
        if let Some(budget_bytes) = budget_bytes {
            let budget = Gauge::<i64>::default();
            budget.set(i64::try_from(budget_bytes).unwrap_or(i64::MAX));
            registry.register(
                "tokenmill_memory_budget_bytes",
                "Memory that all models together may take",
                budget,
            );
        }
        Self { registry, ..figures }
    }

    pub(super) fn count_refusal(&self, error: &ApiError) {
        self.refused
            .get_or_create(&ReasonLabels { reason: error.code() })
            .inc();
    }

    pub(super) fn observe_load(&self, name: &str, took: Duration) {
        let labels = ModelLabels {
            model_name: name.to_owned(),
        };
        self.load_seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    /// All figures in OpenMetrics text: these, and those of each model that is loaded.
    pub(super) fn encode(&self, models: &[Listed]) -> String {
        // Another scrape would find the states cleared.
        let _one = self.encoding.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.clear();
        for listed in models {
            let model_name = listed.spec.name().to_owned();
            let state = word(listed);
            self.state
                .get_or_create(&StateLabels {
                    model_name: model_name.clone(),
                    state,
                })
                .set(1);
            let labels = ModelLabels { model_name };
            let status = &listed.status;
            self.bytes.get_or_create(&labels).set(status.n_bytes as i64);
            self.waiting.get_or_create(&labels).set(status.n_waiting as i64);
            self.running.get_or_create(&labels).set(status.n_running as i64);
            for (family, count) in [
                (&self.loads, status.counts.loads),
                (&self.failures, status.counts.failures),
                (&self.unloads, status.counts.unloads),
            ] {
                family
                    .get_or_create(&labels)
                    .inner()
                    .store(count, Ordering::Relaxed);
            }
        }
        let mut own = String::new();
        encode(&mut own, &self.registry).expect("writing to a string succeeds");
        let of_models = models.iter().filter_map(|listed| listed.status.app.as_ref());
        let texts = of_models.map(|app| app.metrics.encode(app.model.model()));
        joined(&std::iter::once(own).chain(texts).collect::<Vec<_>>())
    }
}
