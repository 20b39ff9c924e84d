//! The operations of a GPU that computes a network together with the CPU.
//!
//! Values cross the border through pinned memory. On the way down, the host waits for the copy; on the way
//! up, it continues and the copy follows in order. Invariant: the pinned memory for one piece each way is
//! allocated at the first step and kept. The launches of a decode step between two borders are recorded once
//! for the step's shape and replayed.

use std::ops::Range;

use tokenmill_backend::{BackendError, ForwardBatch, Phase, Recorded, SplitOperations, StepShape};

use super::{
    CudaBackend, CudaBuffer, Sources,
    segments::{Known, SegmentCache},
};

/// Pinned memory for the values that cross the border.
#[derive(Default)]
pub(super) struct Border {
    down: Option<crate::Pinned<f32>>,
    /// Used in turn, so that the host can write the next piece while the device reads the last.
    up: [Option<crate::Pinned<f32>>; 2],
    n_up: usize,
    /// The recorded graphs by the shape of the step, and the buffers in which such a step leaves its results.
    segments: SegmentCache<super::run::StepKey, crate::Graph, Sources>,
    /// The epoch of the recording: no buffer has moved since then.
    epoch: u64,
    recording: Option<crate::Capture>,
    recorded: Vec<crate::Graph>,
}

impl SplitOperations for CudaBackend {
    type Entered = ();

    fn begin_part(&mut self, batch: &ForwardBatch) -> Result<StepShape, BackendError> {
        self.begin_counted(batch, false)
    }

    fn enter_step(&mut self, _: &StepShape) {}

    fn end_part(&mut self, shape: &StepShape, samples: bool) -> Result<(), BackendError> {
        if samples {
            self.queue_results(*shape)?;
        }
        Ok(())
    }

    fn recorded(&mut self, shape: &StepShape) -> Recorded {
        if self.border.epoch != self.epoch {
            self.border.segments.clear();
            self.border.epoch = self.epoch;
        }
        if !self.uses_graphs || shape.phase != Phase::Decode || shape.n_tokens == 0 {
            return Recorded::CannotBe;
        }
        let key = self.key_of(shape);
        match self.border.segments.find(&key) {
            Known::Nothing => Recorded::NotYet,
            Known::Failed => Recorded::CannotBe,
            Known::Recorded(sources) => {
                let sources = sources.clone();
                self.workspace().results.set_sources(sources);
                Recorded::Yes
            }
        }
    }

    fn begin_segment(&mut self) -> Result<(), BackendError> {
        self.border.recording = Some(crate::Capture::begin(&self.device)?);
        Ok(())
    }

    fn end_segment(&mut self) -> Result<(), BackendError> {
        if let Some(recording) = self.border.recording.take() {
            self.border.recorded.push(recording.finish()?);
        }
        Ok(())
    }

    fn keep_segments(&mut self, shape: &StepShape, is_whole: bool) {
        self.border.recording = None;
        let graphs = std::mem::take(&mut self.border.recorded);
        let sources = self.workspace().results.sources();
        let recorded = is_whole.then_some((graphs, sources));
        let key = self.key_of(shape);
        self.border.segments.keep(key, recorded);
    }

    fn forget_segments(&mut self) {
        self.border.segments.clear();
    }

    fn replay_segment(&mut self, shape: &StepShape, segment: usize) -> Result<(), BackendError> {
        let key = self.key_of(shape);
        let graph = self.border.segments.graph_mut(&key, segment);
        graph.expect("a recorded step has all its segments").replay()?;
        Ok(())
    }

    fn will_be_filled(&mut self, buffer: &mut CudaBuffer) {
        // The present twin does not belong to these values.
        buffer.write();
    }

    fn show_values(
        &mut self,
        buffer: &CudaBuffer,
        range: Range<usize>,
        see: &mut dyn FnMut(&[f32]) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let len = range.len();
        let pinned = room(&self.device, &mut self.border.down, len)?;
        pinned.download(crate::Stream::Compute, buffer.read().range(range)?, 0..len)?;
        see(&pinned.host()?[..len])
    }

    fn fill_values(
        &mut self,
        buffer: &mut CudaBuffer,
        range: Range<usize>,
        write: &mut dyn FnMut(&mut [f32]) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let len = range.len();
        let turn = self.border.n_up % 2;
        self.border.n_up += 1;
        let pinned = room(&self.device, &mut self.border.up[turn], len)?;
        write(&mut pinned.host()?[..len])?;
        let target = buffer.write().range(range)?;
        pinned.upload(crate::Stream::Compute, 0..len, &target)?;
        Ok(())
    }
}

/// Returns pinned memory for `len` values, and allocates more if needed.
fn room<'a>(
    device: &crate::Device,
    pinned: &'a mut Option<crate::Pinned<f32>>,
    len: usize,
) -> Result<&'a mut crate::Pinned<f32>, BackendError> {
    if pinned.as_ref().is_none_or(|pinned| pinned.len() < len) {
        *pinned = Some(device.alloc_pinned(len.next_power_of_two())?);
    }
    Ok(pinned.as_mut().expect("made above"))
}
