//! [`Results`]: what steps bring back to the host, and the sampling that the host does with it.
//!
//! Separate from the operations because it happens behind a step, in step order. Plain argmax is the device's, and only ids
//! come back; for any other sampling the logits come back and the host's sampler, the one place with all parameters,
//! picks. Invariants: a step's results are copied behind it and waited for once; two steps may be open, each with pinned
//! buffers of its own.

use std::collections::VecDeque;

use tokenmill_cuda_exec as exec;

use crate::{
    BackendError, ExecutorLimits, ForwardBatch, HostStep, RowOutput, SamplingMode, StepOutput, StepShape,
};

/// Open steps, their pinned buffers, and the host's sampler.
pub(super) struct Results {
    host: HostStep,
    slots: [Slot; 2],
    /// The step that is being run.
    current: OpenStep,
    open: VecDeque<OpenStep>,
    spare: Vec<OpenStep>,
    sources: Option<Sources>,
    newest_samples_on_device: bool,
    n_vocab: usize,
    n_embd: usize,
}

/// The buffers that a step leaves its results in.
#[derive(Clone)]
pub(super) struct Sources {
    logits: exec::SharedView<f32>,
    outputs: exec::SharedView<f32>,
}

impl Sources {
    pub(super) fn new(logits: exec::SharedView<f32>, outputs: exec::SharedView<f32>) -> Self {
        Self { logits, outputs }
    }
}

/// Pinned memory for the results of one step.
struct Slot {
    ids: exec::Pinned<u32>,
    logits: exec::Pinned<f32>,
    outputs: exec::Pinned<f32>,
}

/// A step whose results were not taken yet.
#[derive(Default)]
struct OpenStep {
    batch: ForwardBatch,
    slot: usize,
    samples_on_device: bool,
    n_logits: usize,
    n_outputs: usize,
}

impl Results {
    pub(super) fn new(device: &exec::Device, limits: &ExecutorLimits) -> Result<Self, exec::CudaExecError> {
        let slot = || -> Result<Slot, exec::CudaExecError> {
            Ok(Slot {
                ids: device.alloc_pinned(limits.max_logit_rows)?,
                logits: device.alloc_pinned(limits.max_logit_rows * limits.n_vocab)?,
                outputs: device.alloc_pinned(limits.max_batch_tokens * limits.n_embd)?,
            })
        };
        Ok(Self {
            host: HostStep::default(),
            slots: [slot()?, slot()?],
            current: OpenStep::default(),
            open: VecDeque::with_capacity(2),
            spare: Vec::with_capacity(2),
            sources: None,
            newest_samples_on_device: false,
            n_vocab: limits.n_vocab,
            n_embd: limits.n_embd,
        })
    }

    /// Notes what a step will bring back. It is open once [`Self::queue`] was called for it.
    pub(super) fn begin(&mut self, batch: &ForwardBatch) {
        let shape = StepShape::of(batch);
        let step = &mut self.current;
        step.batch.copy_from(batch);
        step.slot = self.open.back().map_or(0, |open| 1 - open.slot);
        step.samples_on_device = shape.sampling == SamplingMode::Argmax;
        let has_raw_rows = (batch.outputs.iter()).any(|output| matches!(output, RowOutput::Logits));
        step.n_logits = if has_raw_rows || shape.sampling == SamplingMode::Full {
            shape.n_logits
        } else {
            0
        };
        step.n_outputs = if shape.n_hidden > 0 { shape.n_outputs } else { 0 };
    }

    /// The tokens of the newest open or taken step where the host sampled them, after waiting for them; `None` where the
    /// device has them.
    pub(super) fn sampled_on_host(&mut self) -> Result<Option<&[u32]>, BackendError> {
        if self.newest_samples_on_device {
            return Ok(None);
        }
        while !self.open.is_empty() {
            self.take()?;
        }
        Ok(Some(self.host.sampled()))
    }

    /// The buffers that the step which is being run leaves its results in.
    pub(super) fn set_sources(&mut self, sources: Sources) {
        self.sources = Some(sources);
    }

    pub(super) fn sources(&self) -> Sources {
        self.sources.clone().expect("every forward pass ends in sampling")
    }

    /// Queues the copies of the begun step's results, behind it.
    pub(super) fn queue(&mut self, sampled: &exec::Buffer<u32>) -> Result<(), BackendError> {
        let step = &self.current;
        let sources = self.sources();
        let slot = &mut self.slots[step.slot];
        let stream = exec::Stream::Compute;
        if step.samples_on_device {
            let n_rows = step.batch.logit_rows.len();
            let ids = sampled.view().range(0..n_rows)?;
            slot.ids.download(stream, ids, 0..n_rows)?;
        }
        if step.n_logits > 0 {
            let len = step.n_logits * self.n_vocab;
            slot.logits
                .download(stream, sources.logits.view().range(0..len)?, 0..len)?;
        }
        if step.n_outputs > 0 {
            let len = step.n_outputs * self.n_embd;
            slot.outputs
                .download(stream, sources.outputs.view().range(0..len)?, 0..len)?;
        }
        self.newest_samples_on_device = step.samples_on_device;
        let step = std::mem::replace(&mut self.current, self.spare.pop().unwrap_or_default());
        self.open.push_back(step);
        Ok(())
    }

    /// Waits for the oldest open step and samples what the host has to.
    fn take(&mut self) -> Result<(), BackendError> {
        let Some(step) = self.open.pop_front() else {
            return Ok(());
        };
        let Slot { ids, logits, outputs } = &mut self.slots[step.slot];
        // In reverse order of their copies, so that the first wait is the only one.
        let outputs = outputs.host()?;
        let logits = logits.host()?;
        let ids = ids.host()?;
        self.host.begin(&step.batch);
        let picked = step.samples_on_device.then_some(&*ids);
        (self.host).finish(logits, self.n_vocab, outputs, self.n_embd, picked);
        self.spare.push(step);
        Ok(())
    }

    /// Gives the results of the oldest step that was not read.
    pub(super) fn read(&mut self, output: &mut StepOutput) -> Result<(), BackendError> {
        if !self.host.has_unread() {
            self.take()?;
        }
        self.host.read(output);
        Ok(())
    }
}
