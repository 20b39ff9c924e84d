//! [`Results`]: the results that steps copy back to the host, and the host's part of sampling.
//!
//! Rows that the device samples come back as ids and, on request, log-probabilities. For other rows
//! ([`sampling`](super::sampling) says which) the logits come back and the host's sampler picks. Invariants: results are taken
//! in step order; a step's results are copied after it and waited for once; two steps may be open, each with pinned buffers of
//! its own.

use std::{collections::VecDeque, ops::Range};

use tokenmill_backend::{
    BackendError, ExecutorLimits, ForwardBatch, HostStep, PickRow, RowError, RowOutput, SampledToken,
    SamplingMode, StepOutput, StepShape, TokenLogprob,
};

use super::sampling::{MAX_TOP, n_top};

/// Holds the open steps, their pinned buffers, and the host's sampler.
pub(super) struct Results {
    host: HostStep,
    slots: [Slot; 2],
    /// The step that is running.
    current: OpenStep,
    open: VecDeque<OpenStep>,
    spare: Vec<OpenStep>,
    sources: Option<Sources>,
    newest_samples_on_device: bool,
    layout: PickedLayout,
    n_vocab: usize,
    n_embd: usize,
}

/// Names the device buffers in which a step leaves its results.
#[derive(Clone)]
pub(super) struct Sources {
    logits: crate::SharedView<f32>,
    outputs: crate::SharedView<f32>,
}

impl Sources {
    pub(super) fn new(logits: crate::SharedView<f32>, outputs: crate::SharedView<f32>) -> Self {
        Self { logits, outputs }
    }
}

/// Pinned memory for the results of one step.
struct Slot {
    picked: crate::Pinned<u32>,
    logits: crate::Pinned<f32>,
    outputs: crate::Pinned<f32>,
}

/// A step whose results were not taken yet.
struct OpenStep {
    batch: ForwardBatch,
    slot: usize,
    sampling: SamplingMode,
    n_logits: usize,
    n_outputs: usize,
}

impl Default for OpenStep {
    fn default() -> Self {
        Self {
            batch: ForwardBatch::default(),
            slot: 0,
            sampling: SamplingMode::Raw,
            n_logits: 0,
            n_outputs: 0,
        }
    }
}

/// Describes the positions of the device's results for up to `max_rows` rows: ids, statuses, log-probabilities, then the
/// likeliest tokens of all rows and their log-probabilities.
#[derive(Clone, Copy)]
pub(super) struct PickedLayout {
    max_rows: usize,
}

impl PickedLayout {
    pub(super) fn new(limits: &ExecutorLimits) -> Self {
        Self {
            max_rows: limits.max_logit_rows,
        }
    }

    pub(super) fn n_words(self) -> usize {
        self.max_rows * (3 + 2 * MAX_TOP)
    }

    /// Splits the device's words: ids, status, log-probabilities, top ids, top log-probabilities.
    pub(super) fn split(
        self,
        words: crate::ViewMut<'_, u32>,
    ) -> Result<[crate::ViewMut<'_, u32>; 5], crate::CudaExecError> {
        let (ids, rest) = words.split_at(self.max_rows)?;
        let (status, rest) = rest.split_at(self.max_rows)?;
        let (logprobs, rest) = rest.split_at(self.max_rows)?;
        let (top_ids, top_logprobs) = rest.split_at(self.max_rows * MAX_TOP)?;
        Ok([ids, status, logprobs, top_ids, top_logprobs])
    }

    /// Returns the result of a row, and appends its likeliest tokens to `top`.
    fn result(
        self,
        words: &[u32],
        row: usize,
        output: &RowOutput,
        tops: Range<usize>,
        top: &mut Vec<TokenLogprob>,
    ) -> Result<SampledToken, RowError> {
        match words[self.max_rows + row] {
            0 => {}
            1 => return Err(RowError::NonFiniteLogits),
            _ => return Err(RowError::NothingAllowed),
        }
        let top_ids = &words[3 * self.max_rows..];
        let top_logprobs = &top_ids[self.max_rows * MAX_TOP..];
        top.extend(tops.map(|index| TokenLogprob {
            id: top_ids[index],
            logprob: f32::from_bits(top_logprobs[index]),
        }));
        let reports = matches!(output, RowOutput::Sample(sample) if sample.params.n_logprobs.is_some());
        Ok(SampledToken {
            id: words[row],
            logprob: reports.then(|| f32::from_bits(words[2 * self.max_rows + row])),
        })
    }
}

impl Results {
    pub(super) fn new(device: &crate::Device, limits: &ExecutorLimits) -> Result<Self, crate::CudaExecError> {
        let slot = || -> Result<Slot, crate::CudaExecError> {
            Ok(Slot {
                picked: device.alloc_pinned(PickedLayout::new(limits).n_words())?,
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
            layout: PickedLayout::new(limits),
            n_vocab: limits.n_vocab,
            n_embd: limits.n_embd,
        })
    }

    /// Notes which results a step will copy back. The step is open once [`Self::queue`] was called for it.
    pub(super) fn begin(&mut self, batch: &ForwardBatch, sampling: SamplingMode) {
        let shape = StepShape::of(batch);
        let step = &mut self.current;
        step.batch.copy_from(batch);
        step.slot = self.open.back().map_or(0, |open| 1 - open.slot);
        step.sampling = sampling;
        let samples_on_host = sampling == SamplingMode::Raw && shape.sampling != SamplingMode::Raw;
        let has_raw_rows = (batch.outputs.iter()).any(|output| matches!(output, RowOutput::Logits));
        step.n_logits = if has_raw_rows || samples_on_host {
            shape.n_logits
        } else {
            0
        };
        step.n_outputs = if shape.n_hidden > 0 { shape.n_outputs } else { 0 };
    }

    /// Returns the tokens of the newest open or taken step if the host sampled them, after waiting for them; `None` if the
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

    /// Returns the buffers in which the running step leaves its results.
    pub(super) fn set_sources(&mut self, sources: Sources) {
        self.sources = Some(sources);
    }

    pub(super) fn sources(&self) -> Sources {
        self.sources.clone().expect("every forward pass ends in sampling")
    }

    /// Queues the copies of the begun step's results after it.
    pub(super) fn queue(&mut self, picked: &crate::Buffer<u32>) -> Result<(), BackendError> {
        let step = &self.current;
        let sources = self.sources();
        let slot = &mut self.slots[step.slot];
        let stream = crate::Stream::Compute;
        let has_tops = (step.batch.outputs.iter()).any(|output| n_top(output, self.n_vocab) > 0);
        let n_words = match step.sampling {
            SamplingMode::Raw => 0,
            SamplingMode::Argmax => step.batch.logit_rows.len(),
            SamplingMode::Full if has_tops => self.layout.n_words(),
            SamplingMode::Full => 3 * self.layout.max_rows,
        };
        if n_words > 0 {
            slot.picked
                .download(stream, picked.view().range(0..n_words)?, 0..n_words)?;
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
        self.newest_samples_on_device = step.sampling != SamplingMode::Raw;
        let step = std::mem::replace(&mut self.current, self.spare.pop().unwrap_or_default());
        self.open.push_back(step);
        Ok(())
    }

    /// Waits for the oldest open step, and samples the rows that are left to the host.
    fn take(&mut self) -> Result<(), BackendError> {
        let Some(step) = self.open.pop_front() else {
            return Ok(());
        };
        let Slot {
            picked,
            logits,
            outputs,
        } = &mut self.slots[step.slot];
        // In reverse order of their copies, so that only the first wait takes time.
        let outputs = outputs.host()?;
        let logits = logits.host()?;
        let picked = &*picked.host()?;
        self.host.begin(&step.batch);
        let (layout, n_vocab) = (self.layout, self.n_vocab);
        let mut n_tops = 0;
        let mut result = |row: usize, top: &mut Vec<TokenLogprob>| match step.sampling {
            SamplingMode::Full => {
                let output = &step.batch.outputs[row];
                let tops = n_tops..n_tops + n_top(output, n_vocab);
                n_tops = tops.end;
                layout.result(picked, row, output, tops, top)
            }
            _ if (picked[row] as usize) < n_vocab => Ok(SampledToken {
                id: picked[row],
                logprob: None,
            }),
            _ => Err(RowError::NonFiniteLogits),
        };
        let on_device: Option<&mut PickRow<'_>> = if step.sampling == SamplingMode::Raw {
            None
        } else {
            Some(&mut result)
        };
        (self.host).finish(logits, n_vocab, outputs, self.n_embd, on_device);
        self.spare.push(step);
        Ok(())
    }

    /// Returns the results of the oldest step that was not read.
    pub(super) fn read(&mut self, output: &mut StepOutput) -> Result<(), BackendError> {
        if !self.host.has_unread() {
            self.take()?;
        }
        self.host.read(output);
        Ok(())
    }
}
