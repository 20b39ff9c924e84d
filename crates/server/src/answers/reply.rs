//! Streams read to their end, and measured as they pass.
//!
//! The description of an end ([`outcome`](crate::telemetry::outcome)) needs no server. Invariant: each event
//! is counted once.

use std::time::Instant;

use tokenmill::{
    TextStream,
    stream::{Sample, TextEvent},
};

use crate::{
    ApiError, App,
    app::Call,
    telemetry::{metrics::Metrics, request_log::Tally},
};

/// Reads a stream to its end.
///
/// # Errors
/// The first failure of a sample; dropping the stream then cancels the others.
pub(crate) async fn collect(stream: TextStream, app: &App, call: &Call) -> Result<Vec<Sample>, ApiError> {
    collect_showing(stream, app, call, |_| {}).await
}

/// Reads a stream to its end, and shows every event as it comes.
///
/// # Errors
/// As [`collect`].
pub(crate) async fn collect_showing(
    stream: TextStream,
    app: &App,
    call: &Call,
    mut on_event: impl FnMut(&TextEvent),
) -> Result<Vec<Sample>, ApiError> {
    let mut meter = Meter::new(app, call, stream.n_samples());
    let gathered = stream.gather(|event| {
        meter.observe(event);
        on_event(event);
    });
    Ok(gathered.await?)
}

/// Measures a stream for the metrics and the log as its events pass.
#[derive(Debug)]
pub(crate) struct Meter {
    metrics: Metrics,
    tally: Tally,
    newest: Vec<Option<Instant>>,
}

impl Meter {
    pub(crate) fn new(app: &App, call: &Call, n_samples: usize) -> Self {
        Self {
            metrics: app.metrics.clone(),
            tally: call.tally.clone(),
            newest: vec![None; n_samples],
        }
    }

    pub(crate) fn observe(&mut self, event: &TextEvent) {
        match event {
            TextEvent::Prefill(_) => {}
            TextEvent::Delta(delta) => {
                let now = Instant::now();
                if let Some(before) = self.newest[delta.sample as usize].replace(now) {
                    self.metrics.observe_inter_token(now - before);
                }
            }
            TextEvent::Finished(end) => {
                self.metrics.observe_end(end);
                self.tally.add(end);
            }
            TextEvent::Failed { .. } => self.metrics.count_failure(),
        }
    }
}
