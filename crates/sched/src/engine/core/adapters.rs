//! The engine thread's side of adapters: uploading them to the executor, and releasing them when no sequence
//! uses them.
//!
//! Part of [`Core`]. Invariant: the executor releases an adapter only when no sequence uses it, no request
//! waiting for stored pages uses it, and no step is in flight.

use std::collections::VecDeque;

use tokenmill_backend::{Adapter, AdapterError, AdapterId};

use crate::{
    engine::core::Core,
    pages::key::AdapterContent,
    plan::scheduler::adapters::AdaptersInUse,
    queue::adapters::{AdapterCommand, Reply},
    sync::Arc,
};

/// Time for uploading adapter weights between two steps, in microseconds. The last upload may exceed it.
const SHARE_US: u64 = 2000;

/// The adapters known to the engine's thread.
#[derive(Debug, Default)]
pub(super) struct CoreAdapters {
    /// Adapters being uploaded; the first may be partly uploaded.
    coming: VecDeque<ComingAdapter>,
    /// Removed adapters that some sequence may still use.
    leaving: Vec<AdapterId>,
    n_loaded: usize,
}

/// An adapter with some weights uploaded.
#[derive(Debug)]
struct ComingAdapter {
    id: AdapterId,
    adapter: Arc<Adapter>,
    strength: f32,
    /// Number of uploaded weights.
    n_done: usize,
    reply: Reply,
}

impl Core {
    pub(super) fn obey_adapter(&mut self, command: AdapterCommand) {
        let (done, reply) = match command {
            AdapterCommand::Add {
                id,
                adapter,
                strength,
                matrices,
                reply,
            } => {
                if let Some(matrices) = matrices {
                    let strength = strength.to_bits();
                    let content = AdapterContent { matrices, strength };
                    self.scheduler.name_adapter(id, content);
                }
                return self.adapters.coming.push_back(ComingAdapter {
                    id,
                    adapter,
                    strength,
                    n_done: 0,
                    reply,
                });
            }
            AdapterCommand::Copy {
                from,
                id,
                strength,
                reply,
            } => {
                self.scheduler.name_adapter_like(id, from, strength);
                (self.executor.copy_adapter(from, id, strength), reply)
            }
            AdapterCommand::Remove(id) => {
                self.scheduler.forget_adapter(id);
                self.adapters.leaving.push(id);
                return self.let_adapters_go();
            }
        };
        self.answer(&reply, done);
    }

    fn answer(&mut self, reply: &Reply, done: Result<(), AdapterError>) {
        self.adapters.n_loaded += usize::from(done.is_ok());
        // The caller may have stopped waiting.
        let _ = reply.send(done);
    }

    /// Uploads some weights of an adapter: between two steps for about [`SHARE_US`], so that running
    /// sequences continue. Returns whether an adapter was being uploaded.
    pub(super) fn bring_adapters(&mut self, clock: &dyn Fn() -> u64) -> bool {
        let Some(mut coming) = self.adapters.coming.pop_front() else {
            return false;
        };
        let began_us = clock();
        let done = loop {
            if coming.n_done == coming.adapter.weights.len() {
                break self
                    .executor
                    .add_adapter(coming.id, &coming.adapter, coming.strength);
            }
            if coming.n_done > 0 && clock().saturating_sub(began_us) >= SHARE_US {
                self.adapters.coming.push_front(coming);
                return true;
            }
            let prepared = self
                .executor
                .prepare_adapter(coming.id, &coming.adapter, coming.n_done);
            if let Err(error) = prepared {
                self.executor.remove_adapter(coming.id);
                break Err(error);
            }
            coming.n_done += 1;
        };
        self.answer(&coming.reply, done);
        true
    }

    /// Releases adapters that no request uses any more.
    pub(super) fn let_adapters_go(&mut self) {
        if self.adapters.leaving.is_empty() || self.has_step_in_flight() {
            return;
        }
        let kept_back = self.kept_back_adapters();
        let (scheduler, executor) = (&mut self.scheduler, &mut self.executor);
        let n_before = self.adapters.leaving.len();
        self.adapters.leaving.retain(|&id| {
            let is_used = scheduler.uses_adapter(id) || kept_back.contains(&id);
            if !is_used {
                scheduler.release_adapter(id);
                executor.remove_adapter(id);
            }
            is_used
        });
        self.adapters.n_loaded -= n_before - self.adapters.leaving.len();
        self.board.publish_adapters(self.adapters_in_use());
    }

    /// Publishes which adapters are in use, if there are any.
    pub(super) fn publish_adapters(&self) {
        if self.adapters.n_loaded > 0 {
            self.board.publish_adapters(self.adapters_in_use());
        }
    }

    /// Returns the adapters of all requests.
    fn adapters_in_use(&self) -> AdaptersInUse {
        let mut in_use = self.scheduler.adapters_in_use();
        in_use.waiting.extend(self.kept_back_adapters());
        in_use.waiting.sort_unstable();
        in_use.waiting.dedup();
        in_use
    }
}
