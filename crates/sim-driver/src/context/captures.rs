//! Captures of streams, and the launch of their graphs.
//!
//! Invariant: a capture that ends, with or without a graph, leaves its stream unchanged.

use super::{Capture, Operation, State, handle};
use crate::{
    code::{self, Outcome},
    fault::{Defect, Fault},
};

impl State {
    pub(crate) fn begin_capture(&mut self, stream: u64) -> Outcome {
        self.context.check()?;
        self.context.refuse_in_capture()?;
        self.queue_of(stream)?;
        if self.fault == Some(Fault::BeginCapture) {
            self.fault = None;
            return Err(code::STREAM_CAPTURE_UNSUPPORTED);
        }
        if self.defects.contains(&Defect::Capture) {
            return Err(code::STREAM_CAPTURE_UNSUPPORTED);
        }
        self.context.capture = Some(Capture {
            stream,
            recorded: Vec::new(),
            is_invalid: false,
        });
        Ok(())
    }

    pub(crate) fn end_capture(&mut self, stream: u64) -> Outcome<u64> {
        self.context.check()?;
        let capture = self.context.capture.take_if(|capture| capture.stream == stream);
        let capture = capture.ok_or(code::INVALID_VALUE)?;
        if self.fault == Some(Fault::EndCapture) {
            self.fault = None;
            return Err(code::STREAM_CAPTURE_INVALIDATED);
        }
        let is_early = |operation: &Operation| matches!(operation, Operation::Launch { is_early: true, .. });
        let fails_early =
            self.defects.contains(&Defect::EarlyCapture) && capture.recorded.iter().any(is_early);
        if capture.is_invalid || fails_early {
            return Err(code::STREAM_CAPTURE_INVALIDATED);
        }
        let graph = handle();
        self.counts.n_captured += 1;
        self.context.graphs.insert(graph, capture.recorded.into());
        Ok(graph)
    }

    pub(crate) fn launch_graph(&mut self, graph: u64, stream: u64) -> Outcome {
        self.context
            .refuse_on_captured(stream, code::STREAM_CAPTURE_UNSUPPORTED)?;
        let operations = self.context.graphs.get(&graph).cloned();
        let operations = operations.ok_or(code::INVALID_HANDLE)?;
        self.context.queue(stream, Operation::Replay(operations))?;
        self.counts.n_replayed += 1;
        Ok(())
    }
}
