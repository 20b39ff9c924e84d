//! [`ModelExecutor`]: a network on a device, as an [`Executor`].
//!
//! The order of a step (check, upload, run, read) stands here once for all devices. Invariant: a batch is
//! validated before it reaches the device, so a device checks nothing.

use std::{any::Any, collections::VecDeque};

use tokenmill_backend::{
    Adapter, AdapterError, AdapterId, BatchError, Executor, ExecutorLimits, ForwardBatch, GroupLimits,
    MemoryFormat, MemoryPlace, PageCopy, PageGroup, RowOutput, StepError, StepOutput, StepTrace, Ticket,
    TokenSource, program::ProgramDevice,
};

use crate::network::Network;

/// Maximum number of steps in flight.
const MAX_IN_FLIGHT: usize = 2;

/// Runs a network on a device.
pub struct ModelExecutor {
    pub(crate) device: Box<dyn ProgramDevice>,
    pub(crate) network: Network,
    limits: ExecutorLimits,
    in_flight: VecDeque<u64>,
    n_submitted: u64,
    /// Whether each logit row of the previous step has a sampled token.
    is_sampled: Vec<bool>,
}

impl ModelExecutor {
    /// Creates an executor from a network on a device that has allocated everything.
    pub(crate) fn new(device: Box<dyn ProgramDevice>, network: Network, limits: ExecutorLimits) -> Self {
        Self {
            device,
            network,
            limits,
            in_flight: VecDeque::with_capacity(MAX_IN_FLIGHT),
            n_submitted: 0,
            is_sampled: Vec::new(),
        }
    }

    /// Returns the backend, for example for its counters.
    ///
    /// # Panics
    /// If the network was loaded on a device of another type.
    pub fn backend<B: Any>(&self) -> &B {
        self.device.backend().downcast_ref().expect(OF_TYPE)
    }

    /// Returns the backend mutably, for settings between steps.
    ///
    /// # Panics
    /// If the network was loaded on a device of another type.
    pub fn backend_mut<B: Any>(&mut self) -> &mut B {
        self.device.backend_mut().downcast_mut().expect(OF_TYPE)
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
                && !self.device.has_adapter(adapter)
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
        let format = self.memory_format().filter(|_| is_there);
        format.map(|format| format.bytes_of(place))
    }
}

impl Executor for ModelExecutor {
    fn limits(&self) -> &ExecutorLimits {
        &self.limits
    }

    fn steps_in_flight(&self) -> usize {
        if self.device.weigh().works_apart() {
            MAX_IN_FLIGHT
        } else {
            1
        }
    }

    fn takes_late_masks(&self) -> bool {
        self.device.takes_late_masks()
    }

    fn input_row_width(&self) -> Option<usize> {
        // Per-layer embeddings look tokens up a second time, and attention without pages sees no row twice.
        let is_plain = self.network.layer_embeddings.is_none()
            && self.network.alt_up.is_none()
            && self.limits.n_states == 0;
        (self.device.takes_rows() && is_plain).then_some(self.network.input_row_width())
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
        self.device.run_step(batch)?;
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
        Ok(self.device.read(output)?)
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
        Ok(self.device.copy_pages(group, copies)?)
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
        self.adapters()?.copy(from, id, strength)
    }

    fn remove_adapter(&mut self, id: AdapterId) {
        if let Some(adapters) = self.device.adapters() {
            adapters.remove(id);
        }
    }

    fn memory_format(&self) -> Option<MemoryFormat> {
        self.device.sequences().memory_format()
    }

    fn read_memory(&mut self, places: &[MemoryPlace], take: &mut dyn FnMut(&[u8])) -> Result<(), StepError> {
        for &place in places {
            self.bytes_of(place).ok_or(StepError::PlaceOutOfRange { place })?;
        }
        Ok(self.device.sequences_mut().read_memory(places, take)?)
    }

    fn write_memory(&mut self, contents: &[(MemoryPlace, &[u8])]) -> Result<(), StepError> {
        for &(place, bytes) in contents {
            if self.bytes_of(place) != Some(bytes.len()) {
                return Err(StepError::PlaceOutOfRange { place });
            }
        }
        Ok(self.device.sequences_mut().write_memory(contents)?)
    }

    fn trace(&self) -> Option<StepTrace> {
        self.device.trace()
    }
}

/// The reason why an executor has a backend of the type that its caller names.
const OF_TYPE: &str = "the caller names the type of the backend on which it loaded the network";
