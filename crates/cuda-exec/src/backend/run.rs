//! Runs a step: eagerly, or captured once for its shape and replayed.
//!
//! Invariants: a capture runs nothing, so a step that was just captured is replayed; after a failed capture the step is launched eagerly
//! and its shape is not tried again; a lost device is never retried.

use tokenmill_backend::{BackendError, ForwardBatch, StepShape};

use super::{CudaBackend, places::Places, prepared, shared_pages::SharedShape, trace::Moment};

/// Identifies a captured step: its shape, whether its sampling has the launches for [many tokens](crate::SampleRecord::draws_many), whether
/// it has those of adapters, which pages its rows share, and its [`Places`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StepKey {
    shape: StepShape,
    has_many: bool,
    has_adapters: bool,
    shared: Option<SharedShape>,
    places: Option<Places>,
}

enum Replayed {
    Yes,
    NotCaptured,
    CannotBe,
}

impl CudaBackend {
    /// Returns the key of the step whose values were uploaded last, and which has this shape.
    pub(super) fn key_of(&self, shape: &StepShape) -> StepKey {
        StepKey {
            shape: *shape,
            has_many: (self.workspace.as_ref()).is_some_and(|workspace| workspace.inputs.has_many()),
            has_adapters: self.adapters.has_step_some(),
            shared: (self.workspace.as_ref()).and_then(|workspace| workspace.inputs.shared_shape()),
            places: (self.workspace.as_ref()).map(|workspace| workspace.inputs.places_of_step()),
        }
    }

    /// Runs a step in the fastest way and queues the copies of its results after it.
    pub(super) fn run_best(
        &mut self,
        shape: StepShape,
        body: &mut impl FnMut(&mut Self, StepShape) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let is_capturable = self.uses_graphs
            && prepared(&mut self.workspace).inputs.is_recurring(&shape)
            && !self.waits_within_steps();
        let replayed = if is_capturable {
            self.replay(&shape)?
        } else {
            Replayed::CannotBe
        };
        match replayed {
            Replayed::Yes => {}
            Replayed::CannotBe => body(self, shape)?,
            Replayed::NotCaptured => match self.capture(shape, body) {
                Ok(()) => {
                    self.replay(&shape)?;
                }
                Err(error @ BackendError::Lost { .. }) => return Err(error),
                Err(error) => {
                    self.capture_failure = Some(error.to_string());
                    self.graphs.give_up(self.key_of(&shape));
                    body(self, shape)?;
                }
            },
        }
        self.queue_results(shape)
    }

    /// Uploads the values of a step; `pads` says whether its counts may be padded.
    pub(super) fn begin_counted(
        &mut self,
        batch: &ForwardBatch,
        pads: bool,
    ) -> Result<StepShape, BackendError> {
        self.mark(Moment::Begun)?;
        let workspace = prepared(&mut self.workspace);
        let kv = self.kv.as_mut().expect("the KV store was allocated at load");
        let sampling = workspace.inputs.device_mode(batch);
        workspace.results.begin(batch, sampling);
        let shares = self.uses_shared_pages && self.ops.shares_pages();
        let shape = (workspace.inputs).begin(batch, sampling, pads, shares, &mut workspace.results)?;
        let width = workspace.inputs.limits().n_embd;
        (workspace.input_rows).begin(&self.device, batch, width)?;
        if let Some(hidden) = &mut workspace.hidden {
            hidden.begin(&batch.hidden_inputs, shape.n_tokens)?;
        }
        (self.adapters).begin(batch, &shape, workspace.inputs.output_rows())?;
        for (group, store) in kv.iter_mut() {
            store.await_pages(workspace.inputs.pages(group))?;
        }
        self.mark(Moment::Uploaded)?;
        Ok(shape)
    }

    /// Queues the copies of a step's results after it.
    pub(super) fn queue_results(&mut self, shape: StepShape) -> Result<(), BackendError> {
        self.mark(Moment::Computed)?;
        let workspace = prepared(&mut self.workspace);
        workspace.results.queue(&workspace.picked)?;
        self.mark(Moment::Downloaded)?;
        if let Some(tracer) = &mut self.tracer {
            tracer.queued(shape);
        }
        Ok(())
    }

    /// Marks a moment of the newest step if steps are measured.
    pub(super) fn mark(&mut self, moment: Moment) -> Result<(), BackendError> {
        match &mut self.tracer {
            Some(tracer) => Ok(tracer.mark(moment)?),
            None => Ok(()),
        }
    }

    /// Captures a step and keeps the graph, which has not run yet.
    fn capture(
        &mut self,
        shape: StepShape,
        body: &mut impl FnMut(&mut Self, StepShape) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let capture = crate::Capture::begin(&self.device)?;
        body(self, shape)?;
        let graph = capture.finish()?;
        let sources = self.workspace().results.sources();
        self.graphs.insert(self.key_of(&shape), graph, sources);
        Ok(())
    }

    /// Replays the step's graph if there is one.
    fn replay(&mut self, shape: &StepShape) -> Result<Replayed, BackendError> {
        let key = self.key_of(shape);
        match self.graphs.plan(&key, self.epoch) {
            crate::GraphPlan::Replay(graph, sources) => {
                graph.replay()?;
                let sources = sources.clone();
                self.workspace().results.set_sources(sources);
                Ok(Replayed::Yes)
            }
            crate::GraphPlan::Capture => Ok(Replayed::NotCaptured),
            crate::GraphPlan::Eager => Ok(Replayed::CannotBe),
        }
    }
}
