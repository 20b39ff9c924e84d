//! Figures for operators: metrics, request logs, traces, and the usage and timings of each answer.

mod llama_figures;
mod mask_figures;
pub(crate) mod metrics;
#[cfg(feature = "otel")]
pub mod otel;
pub(crate) mod outcome;
mod prefix_dir_figures;
pub(crate) mod prometheus_text;
pub(crate) mod request_id;
pub(crate) mod request_log;
pub(crate) mod stream_progress;
pub(crate) mod throughput;
