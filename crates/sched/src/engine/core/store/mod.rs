//! [`Outside`]: the engine's page store, and the requests that wait for pages from it.
//!
//! Plain data; `offload.rs` and `fetch.rs` use it. Invariant: a fetch is open until its request reaches
//! the scheduler.

mod fetch;
mod offload;

use tokenmill_backend::{MemoryFormat, MemoryPlace};

use crate::{
    pages::{
        key::PageKey,
        store::{KeptPage, PageStore},
    },
    plan::scheduler::held_prefix::HeldPrefix,
    queue::{mailbox::Mailbox, submission::Submission},
    sync,
};

/// A store, and the requests that wait for it.
pub(crate) struct Outside {
    pub(crate) store: std::sync::Arc<dyn PageStore>,
    pub(crate) mailbox: sync::Arc<Mailbox>,
    pub(crate) format: MemoryFormat,
    pub(crate) fetches: Fetches,
    /// Start of the period in which the store's writes are the only remaining work.
    pub(crate) alone_since_us: Option<u64>,
}

/// Requests that wait for stored pages.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    pub(crate) open: Vec<Fetch>,
    pub(crate) next: u64,
}

/// Pages being fetched.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) id: u64,
    pub(crate) submission: Submission,
    /// Requests that miss the same page first. They look it up again once it has arrived.
    pub(crate) followers: Vec<Submission>,
    pub(crate) stored: StoredPrefix,
    pub(crate) n_done: usize,
    pub(crate) last_news_us: u64,
}

/// A prefix with stored pages, and the places for them.
#[derive(Debug)]
pub(crate) struct StoredPrefix {
    pub(crate) prefix: HeldPrefix,
    /// For each requested page: its name and tokens, its index in the prefix, and its destination; in page
    /// order.
    pub(crate) wanted: Vec<KeptPage>,
    pub(crate) places: Vec<(usize, MemoryPlace)>,
}

impl StoredPrefix {
    /// Returns the number of pages that are complete once `n_done` of the requested ones have arrived.
    pub(crate) fn n_whole_pages(&self, n_done: usize) -> usize {
        (self.places.get(n_done)).map_or(self.prefix.reuse.n_pages, |&(page_idx, _)| page_idx)
    }

    pub(crate) fn wants(&self, key: PageKey) -> bool {
        self.wanted.iter().any(|wanted| wanted.name.key == key)
    }
}

impl Fetches {
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns the number of requests that are held back.
    pub(crate) fn n_waiting(&self) -> usize {
        self.open.iter().map(|fetch| 1 + fetch.followers.len()).sum()
    }

    pub(crate) fn take(&mut self, id: u64) -> Option<Fetch> {
        let at = self.open.iter().position(|fetch| fetch.id == id)?;
        Some(self.open.remove(at))
    }
}
