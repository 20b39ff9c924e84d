//! [`PrefixDirFigures`]: metrics of the folder of `--prefix-dir`, for operators.
//!
//! They are the folder's, not the engine's. Invariant: they are zero without a folder.

use std::sync::{Arc, atomic::Ordering};

use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};
use tokenmill::sessions::PrefixFolderFigures;

/// Metrics of the folder, read at each scrape.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrefixDirFigures(Arc<Metrics>);

#[derive(Debug, Default)]
struct Metrics {
    hits: Counter,
    written_pages: Counter,
    written_bytes: Counter,
    read_pages: Counter,
    read_bytes: Counter,
    refused_files: Counter,
    failed_writes: Counter,
    pages: Gauge,
    bytes: Gauge,
}

impl PrefixDirFigures {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let metrics = &self.0;
        #[rustfmt::skip]
        let counters = [
            ("hits", "Prompts that something was read for from --prefix-dir", &metrics.hits),
            ("written_pages", "Pages and recurrent states that were written to --prefix-dir", &metrics.written_pages),
            ("written_bytes", "Bytes that were written to --prefix-dir", &metrics.written_bytes),
            ("read_pages", "Pages and recurrent states that were read from --prefix-dir", &metrics.read_pages),
            ("read_bytes", "Bytes that were read from --prefix-dir", &metrics.read_bytes),
            ("refused_files", "Files of --prefix-dir that were cut, damaged or another's, and were removed", &metrics.refused_files),
            ("failed_writes", "Writes to --prefix-dir that failed", &metrics.failed_writes),
        ];
        for (name, help, counter) in counters {
            registry.register(format!("tokenmill_prefix_dir_{name}"), help, counter.clone());
        }
        for (name, help, gauge) in [
            ("pages", "Files of the model in --prefix-dir", &metrics.pages),
            ("bytes", "Their bytes", &metrics.bytes),
        ] {
            registry.register(format!("tokenmill_prefix_dir_{name}"), help, gauge.clone());
        }
    }

    pub(crate) fn set(&self, figures: &PrefixFolderFigures) {
        let metrics = &self.0;
        for (counter, value) in [
            (&metrics.hits, figures.hits),
            (&metrics.written_pages, figures.written_pages),
            (&metrics.written_bytes, figures.written_bytes),
            (&metrics.read_pages, figures.read_pages),
            (&metrics.read_bytes, figures.read_bytes),
            (&metrics.refused_files, figures.refused_files),
            (&metrics.failed_writes, figures.failed_writes),
        ] {
            counter.inner().store(value, Ordering::Relaxed);
        }
        metrics.pages.set(figures.kept_pages as i64);
        metrics.bytes.set(figures.kept_bytes as i64);
    }
}
