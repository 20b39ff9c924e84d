//! Adapters in the engine: added, lent once more with another strength, and removed while requests run.
//!
//! Separate from the loop because most engines never have one. Invariants: an id is given once; a request whose adapter was there
//! when it was submitted ends with it, for the executor forgets an adapter only when no sequence has it; pages computed with an
//! adapter are found by no other, and go when it goes.

use std::num::NonZeroU32;

use tokenmill_backend::{Adapter, AdapterError, AdapterId};

use crate::{
    arena::SeqId,
    core::Core,
    engine::Engine,
    error::EngineError,
    mailbox::Command,
    scheduler::Scheduler,
    sequence::Stage,
    sync::{Arc, mpsc},
};

/// What a caller wants done with adapters.
#[derive(Debug)]
pub(crate) enum AdapterCommand {
    Add {
        id: AdapterId,
        adapter: Arc<Adapter>,
        strength: f32,
        reply: Reply,
    },
    Copy {
        from: AdapterId,
        id: AdapterId,
        strength: f32,
        reply: Reply,
    },
    /// No later request has it.
    Remove(AdapterId),
}

type Reply = mpsc::Sender<Result<(), AdapterError>>;

/// The adapters of requests that did not end yet, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdaptersInUse {
    /// Those of sequences that take part in steps.
    pub running: Vec<AdapterId>,
    /// Those of sequences that wait.
    pub waiting: Vec<AdapterId>,
}

impl Engine {
    /// Loads an adapter, whose changes are multiplied by `strength`, and waits until requests can have it:
    /// [`GenerateParams::adapter`](crate::GenerateParams::adapter). Requests that run continue.
    ///
    /// # Errors
    /// [`EngineError::Adapter`] where it does not fit the model or the device, or that the engine ends.
    pub fn add_adapter(&self, adapter: Arc<Adapter>, strength: f32) -> Result<AdapterId, EngineError> {
        self.order_adapter(|id, reply| AdapterCommand::Add {
            id,
            adapter,
            strength,
            reply,
        })
    }

    /// Makes another adapter of the matrices of `from`, with a strength of its own.
    ///
    /// # Errors
    /// As [`Self::add_adapter`]; [`EngineError::UnknownAdapter`].
    pub fn copy_adapter(&self, from: AdapterId, strength: f32) -> Result<AdapterId, EngineError> {
        self.order_adapter(|id, reply| AdapterCommand::Copy {
            from,
            id,
            strength,
            reply,
        })
    }

    /// Takes no more requests with an adapter. Those that have it end with it; then its memory and its cached pages are given back.
    ///
    /// # Errors
    /// [`EngineError::UnknownAdapter`].
    pub fn remove_adapter(&self, id: AdapterId) -> Result<(), EngineError> {
        if self.mailbox().withdraw_adapter(id) {
            Ok(())
        } else {
            Err(EngineError::UnknownAdapter { id })
        }
    }

    /// The adapters of requests that did not end yet.
    pub fn adapters_in_use(&self) -> AdaptersInUse {
        self.board().adapters_in_use()
    }

    fn order_adapter(
        &self,
        command: impl FnOnce(AdapterId, Reply) -> AdapterCommand,
    ) -> Result<AdapterId, EngineError> {
        let (reply, done) = mpsc::channel();
        let id = AdapterId::new(self.mailbox().next_adapter());
        self.mailbox().post(Command::Adapter(command(id, reply)));
        // Without an answer the engine has ended.
        done.recv().map_err(|_| EngineError::Stopped)??;
        self.mailbox().offer_adapter(id);
        Ok(id)
    }
}

impl Scheduler {
    /// The adapter of a sequence.
    pub(crate) fn adapter_of(&self, id: SeqId) -> Option<AdapterId> {
        self.sequences.get(id)?.adapter
    }

    /// Whether a sequence has an adapter.
    pub(crate) fn uses_adapter(&self, adapter: AdapterId) -> bool {
        (self.sequences.iter()).any(|(_, sequence)| sequence.adapter == Some(adapter))
    }

    /// The adapters of all sequences.
    pub(crate) fn adapters_in_use(&self) -> AdaptersInUse {
        let mut in_use = AdaptersInUse::default();
        for (_, sequence) in self.sequences.iter() {
            let ids = match sequence.stage {
                Stage::Waiting => &mut in_use.waiting,
                Stage::Running | Stage::Paused => &mut in_use.running,
            };
            ids.extend(sequence.adapter);
        }
        for ids in [&mut in_use.running, &mut in_use.waiting] {
            ids.sort_unstable();
            ids.dedup();
        }
        in_use
    }

    /// Drops the cached pages of an adapter.
    pub(crate) fn forget_adapter(&mut self, adapter: AdapterId) {
        for group in &mut self.groups {
            group.pool.forget_adapter(adapter);
        }
    }
}

/// The adapters that the engine's thread knows of.
#[derive(Debug, Default)]
pub(crate) struct CoreAdapters {
    /// Removed, but some sequence may still have it.
    leaving: Vec<AdapterId>,
    n_loaded: usize,
}

impl Core {
    pub(crate) fn obey_adapter(&mut self, command: AdapterCommand) {
        let (done, reply) = match command {
            AdapterCommand::Add {
                id,
                adapter,
                strength,
                reply,
            } => (self.executor.add_adapter(id, &adapter, strength), reply),
            AdapterCommand::Copy {
                from,
                id,
                strength,
                reply,
            } => (self.executor.copy_adapter(from, id, strength), reply),
            AdapterCommand::Remove(id) => {
                self.scheduler.forget_adapter(id);
                self.adapters.leaving.push(id);
                return self.let_adapters_go();
            }
        };
        self.adapters.n_loaded += usize::from(done.is_ok());
        // Whoever asked may wait no more.
        let _ = reply.send(done);
    }

    /// Gives back what belongs to adapters that no sequence has any more.
    pub(crate) fn let_adapters_go(&mut self) {
        if self.adapters.leaving.is_empty() || self.has_step_in_flight() {
            return;
        }
        let (scheduler, executor) = (&mut self.scheduler, &mut self.executor);
        let n_before = self.adapters.leaving.len();
        self.adapters.leaving.retain(|&id| {
            let is_used = scheduler.uses_adapter(id);
            if !is_used {
                scheduler.forget_adapter(id);
                executor.remove_adapter(id);
            }
            is_used
        });
        self.adapters.n_loaded -= n_before - self.adapters.leaving.len();
        self.board.publish_adapters(self.scheduler.adapters_in_use());
    }

    /// Lets others see which adapters are in use, where there are any.
    pub(crate) fn publish_adapters(&self) {
        if self.adapters.n_loaded > 0 {
            self.board.publish_adapters(self.scheduler.adapters_in_use());
        }
    }
}

/// Counts ids from 1.
#[derive(Debug)]
pub(crate) struct AdapterNumbers(NonZeroU32);

impl AdapterNumbers {
    pub(crate) fn new() -> Self {
        Self(NonZeroU32::MIN)
    }

    pub(crate) fn take(&mut self) -> NonZeroU32 {
        let number = self.0;
        self.0 = number
            .checked_add(1)
            .expect("fewer adapters than 2^32 are loaded in an engine's life");
        number
    }
}
