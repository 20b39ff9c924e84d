//! The coarse seam: [`Executor`] runs one step for a whole batch.
//!
//! It is all that an engine sees of a model and a device. Invariant: nothing here names a sequence, a queue or a
//! particular device, so a CPU backend, captured CUDA graphs and a whole-model kernel fit behind it alike.

use crate::{
    Adapter, AdapterError, AdapterId, BackendError, BatchError, ExecutorLimits, ForwardBatch, MemoryFormat,
    MemoryPlace, PageGroup, StepTrace,
};

/// Runs the forward pass and the sampling of one batch per step. Object-safe; called by one thread, which owns it.
///
/// A step is `submit`, then `wait`. An engine may submit step `n + 1` before it waits for step `n`
/// ([`TokenSource::SampledRow`](crate::TokenSource::SampledRow) names a token it does not know yet); steps and page
/// copies take effect in the order of the calls. At most two tickets are open at a time.
pub trait Executor {
    /// Says what batches this executor takes. Constant over its life.
    fn limits(&self) -> &ExecutorLimits;

    /// Steps that are worth having in flight: 2 where the executor works apart from the thread that calls it, so that the
    /// next step is planned and submitted while one runs.
    fn steps_in_flight(&self) -> usize {
        1
    }

    /// Whether rows that sample wait for [`RowMask::Late`](crate::RowMask::Late) at the end of a step, when all else is computed. An
    /// executor that says no waits in `submit`, so that such a mask gains nothing.
    fn takes_late_masks(&self) -> bool {
        false
    }

    /// The width of inputs that are no tokens, such as an image's rows ([`ForwardBatch::input_rows`]); `None` where all
    /// inputs are tokens.
    fn input_row_width(&self) -> Option<usize> {
        None
    }

    /// Whether each token comes with the hidden state of the one before it
    /// ([`ForwardBatch::hidden_inputs`]), as a layer that guesses further tokens reads it.
    fn reads_hidden(&self) -> bool {
        false
    }

    /// Starts a step. The batch is read before this returns, so it may be reused at once.
    ///
    /// # Errors
    /// [`StepError::InvalidBatch`] before anything was computed or stored; device errors may also come from `wait`.
    fn submit(&mut self, batch: &ForwardBatch) -> Result<Ticket, StepError>;

    /// Waits for a step and writes its results into `output`, whose memory is reused. Tickets are waited for in the
    /// order of their submission, each once.
    ///
    /// # Errors
    /// [`StepError::Device`] when this step failed: its sequences' new KV slots are undefined, all others are intact.
    /// [`StepError::DeviceLost`] or [`StepError::WeightsChanged`] when nothing will work any more.
    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), StepError>;

    /// Copies whole KV pages of a group (all its layers) in the order given, after the steps submitted before and ahead of those
    /// submitted later.
    ///
    /// # Errors
    /// [`StepError::PageOutOfRange`] before anything was copied, or a device error.
    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), StepError>;

    /// Uploads the change that an adapter makes to one of its weights ahead of [`Self::add_adapter`] with the same id, so that steps
    /// can run in between. Where that is never called, [`Self::remove_adapter`] forgets what was uploaded.
    ///
    /// # Errors
    /// [`AdapterError`]; what was uploaded before is still there.
    fn prepare_adapter(
        &mut self,
        id: AdapterId,
        adapter: &Adapter,
        weight_idx: usize,
    ) -> Result<(), AdapterError> {
        let _ = (id, adapter, weight_idx);
        Ok(())
    }

    /// Takes an adapter, whose changes are multiplied by `strength`. Batches name it from then on.
    ///
    /// # Errors
    /// [`AdapterError`]; nothing has changed then.
    fn add_adapter(&mut self, id: AdapterId, adapter: &Adapter, strength: f32) -> Result<(), AdapterError> {
        let _ = (id, adapter, strength);
        Err(AdapterError::Unsupported {
            device: "this executor",
        })
    }

    /// Takes the adapter `from` once more as `id`, with a strength of its own; its matrices are shared.
    ///
    /// # Errors
    /// [`AdapterError`]; nothing has changed then.
    fn copy_adapter(&mut self, from: AdapterId, id: AdapterId, strength: f32) -> Result<(), AdapterError> {
        let _ = (id, strength);
        Err(AdapterError::NotLoaded { id: from })
    }

    /// Forgets an adapter, which no later batch names.
    fn remove_adapter(&mut self, id: AdapterId) {
        let _ = id;
    }

    /// How the memory of sequences is arranged; `None` where it can be neither read nor written as bytes.
    fn memory_format(&self) -> Option<MemoryFormat> {
        None
    }

    /// Gives the bytes of places to `take`, in their order, as the steps and copies submitted before leave them.
    ///
    /// # Errors
    /// [`StepError::PlaceOutOfRange`] before anything was read, or a device error.
    fn read_memory(&mut self, places: &[MemoryPlace], take: &mut dyn FnMut(&[u8])) -> Result<(), StepError> {
        let _ = take;
        places
            .first()
            .map_or(Ok(()), |&place| Err(StepError::PlaceOutOfRange { place }))
    }

    /// Writes the bytes of places, after the steps and copies submitted before and ahead of those submitted later.
    ///
    /// # Errors
    /// [`StepError::PlaceOutOfRange`] before anything was written, also for a wrong number of bytes; or a device error.
    fn write_memory(&mut self, contents: &[(MemoryPlace, &[u8])]) -> Result<(), StepError> {
        contents
            .first()
            .map_or(Ok(()), |&(place, _)| Err(StepError::PlaceOutOfRange { place }))
    }

    /// What the time of the steps waited for so far went to, where the device measures it.
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
    /// Within the pool: the copy of a copy-on-write.
    Duplicate {
        /// Page to read.
        from: u32,
        /// Page to write.
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
    /// Natural logarithm of its probability under the softmax of the raw logits.
    pub logprob: f32,
}

/// What one [`RowOutput::Sample`](crate::RowOutput::Sample) row yields.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampledToken {
    /// The sampled id.
    pub id: u32,
    /// Its log-probability; `None` unless the row's parameters ask for log-probabilities.
    pub logprob: Option<f32>,
}

/// Why one row has no token although the step as a whole succeeded.
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
    /// A result for each logit row, `[L]`; `None` for rows that asked for raw logits.
    pub sampled: Vec<Option<Result<SampledToken, RowError>>>,
    /// The most likely tokens of the rows that asked for them, most likely first; row `r` has
    /// `top_starts[r]..top_starts[r + 1]`.
    pub top: Vec<TokenLogprob>,
    /// Offsets of the rows in `top`, `[L + 1]`.
    pub top_starts: Vec<u32>,
    /// Raw logits of the rows that asked for them, in row order: `[n, n_vocab]`.
    pub logits: Vec<f32>,
    /// Hidden states after the final norm, or what the network pools them to, of the rows asked for: `[H, n_embd]`.
    pub hidden: Vec<f32>,
}

impl StepOutput {
    /// Empties the results and keeps their memory.
    pub fn clear(&mut self) {
        self.sampled.clear();
        self.top.clear();
        self.top_starts.clear();
        self.logits.clear();
        self.hidden.clear();
    }

    /// Appends the results of the rows behind these, as of the next part of a step.
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

    /// The most likely tokens of logit row `row`.
    pub fn top_of(&self, row: usize) -> &[TokenLogprob] {
        &self.top[self.top_starts[row] as usize..self.top_starts[row + 1] as usize]
    }
}

/// Why a step failed as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The batch was refused; nothing was computed.
    #[error("invalid batch: {0}")]
    InvalidBatch(#[from] BatchError),
    /// A ticket that is not the oldest open one.
    #[error("ticket {found} is not the oldest open step")]
    UnexpectedTicket {
        /// The ticket's number.
        found: u64,
    },
    /// Two steps are already open.
    #[error("two steps are already in flight; wait for one first")]
    TooManyInFlight,
    /// A page copy names a page outside the pool or the host tier.
    #[error("page copy {copy:?} is outside the pool of {n_pages} pages or the host tier of {n_host_pages}")]
    PageOutOfRange {
        /// The copy.
        copy: PageCopy,
        /// Pages of the pool.
        n_pages: usize,
        /// Pages of the host tier.
        n_host_pages: usize,
    },
    /// A read or a write of memory that is not there, or of another number of bytes than it has.
    #[error("{place:?} is no memory of this executor, or has another size")]
    PlaceOutOfRange {
        /// The place.
        place: MemoryPlace,
    },
    /// This step failed; the executor remains usable.
    #[error("{operation} failed: {reason}")]
    Device {
        /// The operation that failed.
        operation: &'static str,
        /// What the device said.
        reason: String,
    },
    /// Weights that stay in their file were changed there; every later call fails the same way.
    #[error("{reason}")]
    WeightsChanged {
        /// Which tensor, and what happened to which file.
        reason: String,
    },
    /// The device is gone; every later call fails the same way.
    #[error("the device is lost ({operation}: {reason}); restart the process")]
    DeviceLost {
        /// The operation that noticed.
        operation: &'static str,
        /// What the device said.
        reason: String,
    },
}

impl StepError {
    /// Whether every later step fails too.
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
