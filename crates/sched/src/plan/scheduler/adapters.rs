//! Adapters in the scheduler: which sequences use one, and the names of the pages computed with it.
//!
//! Part of [`Scheduler`]. Invariant: pages computed with an adapter are found only with that adapter, and are
//! dropped with it.

use tokenmill_backend::AdapterId;

use crate::{
    arena::SeqId,
    pages::key::AdapterContent,
    plan::{scheduler::Scheduler, sequence::Stage},
};

/// The adapters of unfinished requests, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdaptersInUse {
    /// Adapters of sequences that take part in steps.
    pub running: Vec<AdapterId>,
    /// Adapters of waiting sequences.
    pub waiting: Vec<AdapterId>,
}

impl Scheduler {
    /// Returns the adapter of a sequence.
    pub(crate) fn adapter_of(&self, id: SeqId) -> Option<AdapterId> {
        self.sequences.get(id)?.adapter
    }

    /// Returns whether a sequence uses an adapter.
    pub(crate) fn uses_adapter(&self, adapter: AdapterId) -> bool {
        (self.sequences.iter()).any(|(_, sequence)| sequence.adapter == Some(adapter))
    }

    /// Returns the adapters of all sequences.
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

    /// Drops the cached pages of an adapter, and the answers given with it.
    pub(crate) fn forget_adapter(&mut self, adapter: AdapterId) {
        self.answers.forget_adapter(adapter);
        for group in &mut self.groups {
            group.pool.forget_adapter(adapter);
        }
    }

    /// Separates the cached pages of an adapter from those of others, by its content.
    pub(crate) fn name_adapter(&mut self, adapter: AdapterId, content: AdapterContent) {
        self.hasher.set_adapter_content(adapter, content);
    }

    /// Does the same as [`Self::name_adapter`] for a copy of `from` with another strength.
    pub(crate) fn name_adapter_like(&mut self, adapter: AdapterId, from: AdapterId, strength: f32) {
        if let Some(content) = self.hasher.adapter_content(from) {
            let strength = strength.to_bits();
            self.hasher
                .set_adapter_content(adapter, AdapterContent { strength, ..content });
        }
    }

    /// Drops everything about an adapter that no sequence uses any more.
    pub(crate) fn release_adapter(&mut self, adapter: AdapterId) {
        self.forget_adapter(adapter);
        self.hasher.forget_adapter_content(adapter);
    }
}
