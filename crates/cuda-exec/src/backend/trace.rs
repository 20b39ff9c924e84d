//! [`Tracer`]: measures how steps spend their time, with events of the device.
//!
//! It creates no events while it is off. Invariant: a step's events are read only after the step's results were
//! waited for, so tracing adds waits after a step and none inside.

use std::collections::VecDeque;

use tokenmill_backend::{Phase, StepShape, StepTrace};

/// The four moments of a step: before its values are uploaded, after that, after the forward pass, after the copies.
type Moments = [crate::Fence; 4];

/// Holds the events of the running steps, and the sums.
pub(super) struct Tracer {
    moments: [Moments; 2],
    /// Index of the events of the newest step that began.
    newest: usize,
    /// Steps that run or were not read yet: their events and their kind.
    open: VecDeque<(usize, StepShape)>,
    trace: StepTrace,
}

/// A moment of a step.
#[derive(Clone, Copy)]
pub(super) enum Moment {
    Begun = 0,
    Uploaded = 1,
    Computed = 2,
    Downloaded = 3,
}

impl Tracer {
    pub(super) fn new(device: &crate::Device) -> Result<Self, crate::CudaExecError> {
        let moments = || -> Result<Moments, crate::CudaExecError> {
            Ok([
                device.timed_fence()?,
                device.timed_fence()?,
                device.timed_fence()?,
                device.timed_fence()?,
            ])
        };
        Ok(Self {
            moments: [moments()?, moments()?],
            newest: 0,
            open: VecDeque::with_capacity(2),
            trace: StepTrace::default(),
        })
    }

    pub(super) fn trace(&self) -> StepTrace {
        self.trace
    }

    /// Marks a moment of the newest step.
    pub(super) fn mark(&mut self, moment: Moment) -> Result<(), crate::CudaExecError> {
        if matches!(moment, Moment::Begun) {
            // Do not count instead: a step that began and failed must not return the events of the step that is
            // still open.
            self.newest = self.open.back().map_or(0, |&(open, _)| 1 - open);
        }
        self.moments[self.newest][moment as usize].record(crate::Stream::Compute)
    }

    /// Notes that the newest step was queued as a whole.
    pub(super) fn queued(&mut self, shape: StepShape) {
        self.open.push_back((self.newest, shape));
    }

    /// Adds the oldest step that was not read.
    pub(super) fn read(&mut self) -> Result<(), crate::CudaExecError> {
        let Some((index, shape)) = self.open.pop_front() else {
            return Ok(());
        };
        let [begun, uploaded, computed, downloaded] = &self.moments[index];
        downloaded.synchronize()?;
        let times = match shape.phase {
            Phase::Mixed => &mut self.trace.prefill,
            Phase::Verify => &mut self.trace.verify,
            Phase::Decode => &mut self.trace.decode,
        };
        times.n_steps += 1;
        times.n_tokens += shape.n_tokens as u64;
        times.upload_ms += f64::from(begun.elapsed_ms(uploaded)?);
        times.compute_ms += f64::from(uploaded.elapsed_ms(computed)?);
        times.download_ms += f64::from(computed.elapsed_ms(downloaded)?);
        Ok(())
    }
}
