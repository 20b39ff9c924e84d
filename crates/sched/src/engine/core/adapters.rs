//! The engine thread's side of adapters: uploading them to the executor, and releasing them when no sequence
//! uses them.
//!
//! Part of [`Core`] and [`Scheduler`]. Invariant: the executor releases an adapter only when no sequence uses
//! it, no request waiting for stored pages uses it, and no step is in flight.

use tokenmill_backend::{AdapterError, AdapterId};

use crate::{
    arena::SeqId,
    engine::core::{Core, store::Fetch},
    pages::key::AdapterContent,
    plan::{scheduler::Scheduler, sequence::Stage},
    queue::adapters::{AdapterCommand, AdaptersInUse, ComingAdapter, Reply},
};

/// Time for uploading adapter weights between two steps, in microseconds. The last upload may exceed it.
const SHARE_US: u64 = 2000;

impl Core {
    pub(crate) fn obey_adapter(&mut self, command: AdapterCommand) {
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
                    self.scheduler.hasher.set_adapter_content(id, content);
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
                let hasher = &mut self.scheduler.hasher;
                if let Some(content) = hasher.adapter_content(from) {
                    let strength = strength.to_bits();
                    hasher.set_adapter_content(id, AdapterContent { strength, ..content });
                }
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
    pub(crate) fn bring_adapters(&mut self, clock: &dyn Fn() -> u64) -> bool {
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
    pub(crate) fn let_adapters_go(&mut self) {
        if self.adapters.leaving.is_empty() || self.has_step_in_flight() {
            return;
        }
        let kept_back = self.kept_back_adapters();
        let (scheduler, executor) = (&mut self.scheduler, &mut self.executor);
        let n_before = self.adapters.leaving.len();
        self.adapters.leaving.retain(|&id| {
            let is_used = scheduler.uses_adapter(id) || kept_back.contains(&id);
            if !is_used {
                scheduler.forget_adapter(id);
                scheduler.hasher.forget_adapter_content(id);
                executor.remove_adapter(id);
            }
            is_used
        });
        self.adapters.n_loaded -= n_before - self.adapters.leaving.len();
        self.board.publish_adapters(self.adapters_in_use());
    }

    /// Publishes which adapters are in use, if there are any.
    pub(crate) fn publish_adapters(&self) {
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

    /// Returns the adapters of requests waiting for stored pages, and of pages being fetched.
    fn kept_back_adapters(&self) -> Vec<AdapterId> {
        let open = (self.outside.iter()).flat_map(|outside| &outside.fetches.open);
        let of_fetch = |fetch: &Fetch| {
            let of_requests = fetch
                .submissions()
                .filter_map(|submission| submission.job.adapter());
            let mut ids: Vec<AdapterId> = of_requests.collect();
            // The request that started the fetch may have been cancelled.
            ids.extend(fetch.stored.prefix.adapter);
            ids
        };
        open.flat_map(of_fetch).collect()
    }
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
}
