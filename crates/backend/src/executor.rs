//! The coarse seam: [`Executor`] runs one step for a whole batch.
//!
//! It is all that an engine sees of a model and a device. Invariant: nothing here refers to a sequence, a
//! queue or a particular device, so a CPU backend, captured CUDA graphs and a whole-model kernel all fit
//! this interface.

use crate::{
    Adapter, AdapterError, AdapterId, BackendError, BatchError, ExecutorLimits, ForwardBatch, MemoryFormat,
    MemoryPlace, PageGroup, StepTrace,
};

/// Computes the network and samples for one batch per step. Object-safe; called by one thread, which
/// owns it.
///
/// A step is `submit`, then `wait`. An engine may submit step `n + 1` before it waits for step `n`
/// ([`TokenSource::SampledRow`](crate::TokenSource::SampledRow) refers to a token not known yet); steps and
/// page copies take effect in the order of the calls. At most two tickets are open at a time.
pub trait Executor {
    /// Returns the limits for batches. Constant over the executor's lifetime.
    fn limits(&self) -> &ExecutorLimits;

    /// Returns the useful number of steps in flight: 2 if the executor works independently of the calling
    /// thread, so that the next step is planned and submitted while one runs.
    fn steps_in_flight(&self) -> usize {
        1
    }

    /// Returns whether sampling rows wait for [`RowMask::Late`](crate::RowMask::Late) at the end of a step,
    /// after everything else. Otherwise the executor waits in `submit`, and a late mask gains nothing.
    fn takes_late_masks(&self) -> bool {
        false
    }

    /// Returns the width of non-token inputs, such as an image's rows ([`ForwardBatch::input_rows`]); `None`
    /// if all inputs are tokens.
    fn input_row_width(&self) -> Option<usize> {
        None
    }

    /// Returns whether each token needs the hidden state of the one before it
    /// ([`ForwardBatch::hidden_inputs`]), as an MTP layer does.
    fn reads_hidden(&self) -> bool {
        false
    }

    /// Starts a step. The batch is read before this returns, so it may be reused at once.
    ///
    /// # Errors
    /// [`StepError::InvalidBatch`] before anything was computed or stored; device errors may also come from `wait`.
    fn submit(&mut self, batch: &ForwardBatch) -> Result<Ticket, StepError>;

    /// Waits for a step and writes its results into `output`, reusing its memory. Tickets are awaited in the
    /// order of submission, each once.
    ///
    /// # Errors
    /// [`StepError::Device`] if this step failed: its sequences' new KV slots are undefined, all others are
    /// intact. [`StepError::DeviceLost`] or [`StepError::WeightsChanged`] if every later step fails too.
    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), StepError>;

    /// Copies whole KV pages of a group (all its layers) in the given order, between the steps submitted
    /// earlier and those submitted later.
    ///
    /// # Errors
    /// [`StepError::PageOutOfRange`] before anything was copied, or a device error.
    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), StepError>;

    /// Uploads an adapter's change of one weight before [`Self::add_adapter`] with the same id, so that steps
    /// can run in between. If that is never called, [`Self::remove_adapter`] discards the upload.
    ///
    /// # Errors
    /// [`AdapterError`]; earlier uploads are kept.
    fn prepare_adapter(
        &mut self,
        id: AdapterId,
        adapter: &Adapter,
        weight_idx: usize,
    ) -> Result<(), AdapterError> {
        let _ = (id, adapter, weight_idx);
        Ok(())
    }

    /// Adds an adapter; its changes are multiplied by `strength`. Batches may refer to it from then on.
    ///
    /// # Errors
    /// [`AdapterError`]; then nothing has changed.
    fn add_adapter(&mut self, id: AdapterId, adapter: &Adapter, strength: f32) -> Result<(), AdapterError> {
        let _ = (id, adapter, strength);
        Err(AdapterError::Unsupported {
            device: "this executor",
        })
    }

    /// Adds the adapter `from` a second time as `id`, with its own strength; the matrices are shared.
    ///
    /// # Errors
    /// [`AdapterError`]; then nothing has changed.
    fn copy_adapter(&mut self, from: AdapterId, id: AdapterId, strength: f32) -> Result<(), AdapterError> {
        let _ = (id, strength);
        Err(AdapterError::NotLoaded { id: from })
    }

    /// Removes an adapter that no later batch uses.
    fn remove_adapter(&mut self, id: AdapterId) {
        let _ = id;
    }

    /// Returns the memory layout of sequences; `None` if it can be neither read nor written as bytes.
    fn memory_format(&self) -> Option<MemoryFormat> {
        None
    }

    /// Passes the bytes of places to `take`, in order, after the steps and copies submitted before.
    ///
    /// # Errors
    /// [`StepError::PlaceOutOfRange`] before anything was read, or a device error.
    fn read_memory(&mut self, places: &[MemoryPlace], take: &mut dyn FnMut(&[u8])) -> Result<(), StepError> {
        let _ = take;
        places
            .first()
            .map_or(Ok(()), |&place| Err(StepError::PlaceOutOfRange { place }))
    }

    /// Writes the bytes of places, between the steps and copies submitted earlier and those submitted later.
    ///
    /// # Errors
    /// [`StepError::PlaceOutOfRange`] before anything was written, also for a wrong number of bytes; or a device error.
    fn write_memory(&mut self, contents: &[(MemoryPlace, &[u8])]) -> Result<(), StepError> {
        contents
            .first()
            .map_or(Ok(()), |&(place, _)| Err(StepError::PlaceOutOfRange { place }))
    }

    /// Returns how the awaited steps spent their time, if the device measures it.
    fn trace(&self) -> Option<StepTrace> {
        None
    }
}

impl<E: Executor + ?Sized> Executor for Box<E> {
    fn limits(&self) -> &ExecutorLimits {
        (**self).limits()
    }

    fn steps_in_flight(&self) -> usize {
        (**self).steps_in_flight()
    }

    fn takes_late_masks(&self) -> bool {
        (**self).takes_late_masks()
    }

    fn input_row_width(&self) -> Option<usize> {
        (**self).input_row_width()
    }

    fn reads_hidden(&self) -> bool {
        (**self).reads_hidden()
    }

    fn submit(&mut self, batch: &ForwardBatch) -> Result<Ticket, StepError> {
        (**self).submit(batch)
    }

    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), StepError> {
        (**self).wait(ticket, output)
    }

    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), StepError> {
        (**self).copy_pages(group, copies)
    }

    fn prepare_adapter(
        &mut self,
        id: AdapterId,
        adapter: &Adapter,
        weight_idx: usize,
    ) -> Result<(), AdapterError> {
        (**self).prepare_adapter(id, adapter, weight_idx)
    }

    fn add_adapter(&mut self, id: AdapterId, adapter: &Adapter, strength: f32) -> Result<(), AdapterError> {
        (**self).add_adapter(id, adapter, strength)
    }

    fn copy_adapter(&mut self, from: AdapterId, id: AdapterId, strength: f32) -> Result<(), AdapterError> {
        (**self).copy_adapter(from, id, strength)
    }

    fn remove_adapter(&mut self, id: AdapterId) {
        (**self).remove_adapter(id);
    }

    fn memory_format(&self) -> Option<MemoryFormat> {
        (**self).memory_format()
    }

    fn read_memory(&mut self, places: &[MemoryPlace], take: &mut dyn FnMut(&[u8])) -> Result<(), StepError> {
        (**self).read_memory(places, take)
    }

    fn write_memory(&mut self, contents: &[(MemoryPlace, &[u8])]) -> Result<(), StepError> {
        (**self).write_memory(contents)
    }

    fn trace(&self) -> Option<StepTrace> {
        (**self).trace()
    }
}

/// A submitted step.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// A copy of one KV page, all layers of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageCopy {
    /// Within the pool: a copy-on-write.
    Duplicate {
        /// Source page.
        from: u32,
        /// Destination page.
        to: u32,
    },
    /// From the pool to the host tier.
    Download {
        /// Page of the pool.
        page: u32,
        /// Page of the host tier.
        host_page: u32,
    },
    /// From the host tier to the pool.
    Upload {
        /// Page of the host tier.
        host_page: u32,
        /// Page of the pool.
        page: u32,
    },
}

/// A token with the logarithm of its probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub id: u32,
    /// Natural logarithm of its probability under the softmax of the raw logits, or of the
    /// [draw](crate::SamplingParams::scores_draw).
    pub logprob: f32,
}

/// The result of one [`RowOutput::Sample`](crate::RowOutput::Sample) row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampledToken {
    /// The sampled id.
    pub id: u32,
    /// Its log-probability; `None` unless the row's parameters ask for log-probabilities.
    pub logprob: Option<f32>,
}

/// The reason why one row has no token although the step succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowError {
    /// A logit is NaN, or all are negative infinity: the weights or the KV store hold values that are not finite.
    #[error("the model produced logits that are not finite")]
    NonFiniteLogits,
    /// The row's vocabulary mask forbids every token.
    #[error("no token of the vocabulary is allowed here")]
    NothingAllowed,
}

/// The results of one step. Reused from step to step.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// The result of each logit row, `[L]`; `None` for rows that requested raw logits.
    pub sampled: Vec<Option<Result<SampledToken, RowError>>>,
    /// The most likely tokens of the rows that requested them, most likely first; row `r` has
    /// `top_starts[r]..top_starts[r + 1]`.
    pub top: Vec<TokenLogprob>,
    /// Offsets of the rows in `top`, `[L + 1]`.
    pub top_starts: Vec<u32>,
    /// Raw logits of the rows that requested them, in row order: `[n, n_vocab]`.
    pub logits: Vec<f32>,
    /// Requested hidden states after the final norm, or pooled rows: `[H, n_embd]`.
    pub hidden: Vec<f32>,
}

impl StepOutput {
    /// Clears the results and keeps their memory.
    pub fn clear(&mut self) {
        self.sampled.clear();
        self.top.clear();
        self.top_starts.clear();
        self.logits.clear();
        self.hidden.clear();
    }

    /// Appends the results of the next part of a step.
    pub fn append(&mut self, next: &Self) {
        self.sampled.extend_from_slice(&next.sampled);
        let n_before = self.top.len() as u32;
        self.top.extend_from_slice(&next.top);
        if self.top_starts.is_empty() {
            self.top_starts.push(0);
        }
        (self.top_starts).extend(next.top_starts.iter().skip(1).map(|start| n_before + start));
        self.logits.extend_from_slice(&next.logits);
        self.hidden.extend_from_slice(&next.hidden);
    }

    /// Returns the most likely tokens of logit row `row`.
    pub fn top_of(&self, row: usize) -> &[TokenLogprob] {
        &self.top[self.top_starts[row] as usize..self.top_starts[row + 1] as usize]
    }
}

/// The reason why a step failed as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The batch was refused; nothing was computed.
    #[error("invalid batch: {0}")]
    InvalidBatch(#[from] BatchError),
    /// The ticket is not the oldest open one.
    #[error("ticket {found} is not the oldest open step")]
    UnexpectedTicket {
        /// The ticket's number.
        found: u64,
    },
    /// Two steps are already open.
    #[error("two steps are already in flight; wait for one first")]
    TooManyInFlight,
    /// A page copy refers to a page outside the pool or the host tier.
    #[error("page copy {copy:?} is outside the pool of {n_pages} pages or the host tier of {n_host_pages}")]
    PageOutOfRange {
        /// The copy.
        copy: PageCopy,
        /// Number of pages in the pool.
        n_pages: usize,
        /// Number of pages in the host tier.
        n_host_pages: usize,
    },
    /// A read or write is out of range, or has the wrong number of bytes.
    #[error("{place:?} is not memory of this executor, or has another size")]
    PlaceOutOfRange {
        /// The place.
        place: MemoryPlace,
    },
    /// This step failed; the executor remains usable.
    #[error("{operation} failed: {reason}")]
    Device {
        /// The operation that failed.
        operation: &'static str,
        /// The device's message.
        reason: String,
    },
    /// Weights read from their file on demand have changed; every later call fails the same way.
    #[error("{reason}")]
    WeightsChanged {
        /// The tensor, the file and the error.
        reason: String,
    },
    /// The device is gone; every later call fails the same way.
    #[error("the device is lost ({operation}: {reason}); restart the process")]
    DeviceLost {
        /// The operation that detected it.
        operation: &'static str,
        /// The device's message.
        reason: String,
    },
}

impl StepError {
    /// Returns whether every later step fails too.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::DeviceLost { .. } | Self::WeightsChanged { .. })
    }
}

impl From<BackendError> for StepError {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::Failed { operation, source } => Self::Device {
                operation,
                reason: source.to_string(),
            },
            BackendError::Lost { operation, source } => Self::DeviceLost {
                operation,
                reason: source.to_string(),
            },
            error @ BackendError::WeightsChanged { .. } => Self::WeightsChanged {
                reason: error.to_string(),
            },
            other => Self::Device {
                operation: "step",
                reason: other.to_string(),
            },
        }
    }
}
