//! [`ModelExecutor`]: a network on a backend, as an [`Executor`].
//!
//! The order of a step (check, upload, run, read) stands here once for all backends. Invariant: a batch is
//! validated before it reaches the backend, so a backend checks nothing.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use tokenmill_backend::{
    Adapter, AdapterError, AdapterId, AdapterMatrices, Backend, BackendError, BatchError, Executor,
    ExecutorLimits, ForwardBatch, GroupLimits, LowRank, MemoryFormat, MemoryPlace, PageCopy, PageGroup,
    RowOutput, StepError, StepOutput, StepShape, StepTrace, Ticket, TokenSource,
    program::{Prepared, Tables},
};

use crate::network::Network;

/// Maximum number of steps in flight.
const MAX_IN_FLIGHT: usize = 2;

/// Runs a network on a backend.
pub struct ModelExecutor<B: Backend> {
    pub(crate) backend: B,
    pub(crate) network: Network,
    prepared: Prepared,
    pub(crate) tables: Tables<B>,
    /// The shape of the step that ran last.
    last_shape: Option<StepShape>,
    /// The adapters that batches may name.
    pub(crate) adapters: BTreeMap<AdapterId, Arc<AdapterMatrices<B::Matrix>>>,
    /// Uploaded weights of adapters that are not complete yet, in the order of the network's weights.
    pub(crate) coming: BTreeMap<AdapterId, Vec<Option<LowRank<B::Matrix>>>>,
    limits: ExecutorLimits,
    in_flight: VecDeque<u64>,
    n_submitted: u64,
    /// Whether each logit row of the previous step has a sampled token.
    is_sampled: Vec<bool>,
}

impl<B: Backend> ModelExecutor<B> {
    /// Creates an executor from a network and its programs, on a backend that has allocated everything.
    pub(crate) fn new(
        backend: B,
        network: Network,
        prepared: Prepared,
        tables: Tables<B>,
        limits: ExecutorLimits,
    ) -> Self {
        Self {
            backend,
            network,
            prepared,
            tables,
            last_shape: None,
            adapters: BTreeMap::new(),
            coming: BTreeMap::new(),
            limits,
            in_flight: VecDeque::with_capacity(MAX_IN_FLIGHT),
            n_submitted: 0,
            is_sampled: Vec::new(),
        }
    }

    /// Returns the backend, for example for its counters.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Returns the backend mutably, for settings between steps.
    pub fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// Returns the backend, and the tapped streams of the previous step: `[T, n_embd]` for each layer that a
    /// tower's descriptor names.
    pub(crate) fn backend_and_taps(&mut self) -> (&mut B, impl Iterator<Item = &B::Buffer>) {
        let shape = self.last_shape.as_ref();
        let taps = shape
            .into_iter()
            .flat_map(|shape| self.prepared.taps(&self.tables, shape));
        (&mut self.backend, taps)
    }

    fn check_sampled_rows(&self, batch: &ForwardBatch) -> Result<(), BatchError> {
        for (index, token) in batch.tokens.iter().enumerate() {
            if let TokenSource::SampledRow(row) = *token
                && !self.is_sampled[row as usize]
            {
                return Err(BatchError::RowNotSampled { index, row });
            }
        }
        Ok(())
    }

    fn check_adapters(&self, batch: &ForwardBatch) -> Result<(), BatchError> {
        for (seq_idx, adapter) in batch.adapters.iter().enumerate() {
            if let Some(adapter) = *adapter
                && !self.adapters.contains_key(&adapter)
            {
                return Err(BatchError::UnknownAdapter { seq_idx, adapter });
            }
        }
        Ok(())
    }

    /// Returns the bytes of a place, unless it is out of range.
    fn bytes_of(&self, place: MemoryPlace) -> Option<usize> {
        let is_there = match place {
            MemoryPlace::Page { group, page } => {
                (self.limits.group(group)).is_some_and(|limits| (page as usize) < limits.n_pages)
            }
            MemoryPlace::State { slot } => (slot as usize) < self.limits.n_states,
        };
        let format = self.backend.memory_format().filter(|_| is_there);
        format.map(|format| format.bytes_of(place))
    }

    fn run(&mut self, batch: &ForwardBatch) -> Result<(), BackendError> {
        let Self {
            backend,
            prepared,
            tables,
            last_shape,
            ..
        } = self;
        let shape = backend.begin_step(batch)?;
        *last_shape = Some(shape);
        backend.run_step(shape, |backend, shape| prepared.run(backend, tables, &shape))
    }
}

impl<B: Backend> Executor for ModelExecutor<B> {
    fn limits(&self) -> &ExecutorLimits {
        &self.limits
    }

    fn steps_in_flight(&self) -> usize {
        if self.backend.works_apart() {
            MAX_IN_FLIGHT
        } else {
            1
        }
    }

    fn takes_late_masks(&self) -> bool {
        self.backend.takes_late_masks()
    }

    fn input_row_width(&self) -> Option<usize> {
        // Per-layer embeddings look tokens up a second time, and attention without pages sees no row twice.
        let is_plain = self.network.layer_embeddings.is_none()
            && self.network.alt_up.is_none()
            && self.limits.n_states == 0;
        (self.backend.takes_rows() && is_plain).then_some(self.network.input_row_width())
    }

    fn reads_hidden(&self) -> bool {
        self.network.nextn.is_some()
    }

    fn submit(&mut self, batch: &ForwardBatch) -> Result<Ticket, StepError> {
        if self.in_flight.len() == MAX_IN_FLIGHT {
            return Err(StepError::TooManyInFlight);
        }
        batch.validate(&self.limits, self.is_sampled.len())?;
        self.check_sampled_rows(batch)?;
        self.check_adapters(batch)?;
        let row_width = self.network.input_row_width();
        batch.validate_input_rows(row_width, self.input_row_width().is_some())?;
        batch.validate_hidden_inputs(self.network.token_embd.n_in, self.reads_hidden())?;
        self.is_sampled.clear();
        self.run(batch)?;
        self.is_sampled
            .extend((batch.outputs.iter()).map(|output| matches!(output, RowOutput::Sample(_))));
        let ticket = self.n_submitted;
        self.n_submitted += 1;
        self.in_flight.push_back(ticket);
        Ok(Ticket(ticket))
    }

    fn wait(&mut self, ticket: Ticket, output: &mut StepOutput) -> Result<(), StepError> {
        if self.in_flight.front() != Some(&ticket.0) {
            return Err(StepError::UnexpectedTicket { found: ticket.0 });
        }
        self.in_flight.pop_front();
        Ok(self.backend.read(output)?)
    }

    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), StepError> {
        let limits = self.limits.group(group);
        let (n_pages, n_host_pages) = limits.map_or(
            (0, 0),
            |GroupLimits {
                 n_pages,
                 n_host_pages,
                 ..
             }| { (n_pages, n_host_pages) },
        );
        for &copy in copies {
            let in_pool = |page: u32| (page as usize) < n_pages;
            let in_host = |page: u32| (page as usize) < n_host_pages;
            let is_in_range = match copy {
                PageCopy::Duplicate { from, to } => in_pool(from) && in_pool(to),
                PageCopy::Download { page, host_page } | PageCopy::Upload { host_page, page } => {
                    in_pool(page) && in_host(host_page)
                }
            };
            if !is_in_range {
                return Err(StepError::PageOutOfRange {
                    copy,
                    n_pages,
                    n_host_pages,
                });
            }
        }
        Ok(self.backend.copy_pages(group, copies)?)
    }

    fn prepare_adapter(
        &mut self,
        id: AdapterId,
        adapter: &Adapter,
        weight_idx: usize,
    ) -> Result<(), AdapterError> {
        self.install_weight(id, adapter, weight_idx)
    }

    fn add_adapter(&mut self, id: AdapterId, adapter: &Adapter, strength: f32) -> Result<(), AdapterError> {
        self.install_adapter(id, adapter, strength)
    }

    fn copy_adapter(&mut self, from: AdapterId, id: AdapterId, strength: f32) -> Result<(), AdapterError> {
        self.install_copy(from, id, strength)
    }

    fn remove_adapter(&mut self, id: AdapterId) {
        self.backend.remove_adapter(id);
        self.adapters.remove(&id);
        self.coming.remove(&id);
    }

    fn memory_format(&self) -> Option<MemoryFormat> {
        self.backend.memory_format()
    }

    fn read_memory(&mut self, places: &[MemoryPlace], take: &mut dyn FnMut(&[u8])) -> Result<(), StepError> {
        for &place in places {
            self.bytes_of(place).ok_or(StepError::PlaceOutOfRange { place })?;
        }
        Ok(self.backend.read_memory(places, take)?)
    }

    fn write_memory(&mut self, contents: &[(MemoryPlace, &[u8])]) -> Result<(), StepError> {
        for &(place, bytes) in contents {
            if self.bytes_of(place) != Some(bytes.len()) {
                return Err(StepError::PlaceOutOfRange { place });
            }
        }
        Ok(self.backend.write_memory(contents)?)
    }

    fn trace(&self) -> Option<StepTrace> {
        self.backend.trace()
    }
}
