//! [`StoreLink`]: the engine's page store, and the requests that wait for pages from it.
//!
//! Owned by [`Core`](super::Core). `offload.rs` gives pages to the store, `fetch.rs` gets them back. Invariant: a fetch is open until its request reaches
//! the scheduler.

mod fetch;
mod offload;

use tokenmill_backend::MemoryFormat;

use crate::{
    pages::store::PageStore,
    plan::scheduler::stored_prefix::StoredPrefix,
    queue::{mailbox::Mailbox, submission::Submission},
    sync,
};

/// A store, and the requests that wait for it.
pub(super) struct StoreLink {
    store: std::sync::Arc<dyn PageStore>,
    mailbox: sync::Arc<Mailbox>,
    format: MemoryFormat,
    fetches: Fetches,
    /// Start of the period in which the store's writes are the only remaining work.
    alone_since_us: Option<u64>,
}

/// Requests that wait for stored pages.
#[derive(Debug, Default)]
struct Fetches {
    open: Vec<Fetch>,
    next: u64,
}

/// Pages being fetched.
#[derive(Debug)]
struct Fetch {
    id: u64,
    submission: Submission,
    /// Requests that miss the same page first. They look it up again once it has arrived.
    followers: Vec<Submission>,
    stored: StoredPrefix,
    n_done: usize,
    last_news_us: u64,
}

impl Fetches {
    fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns the number of requests that are held back.
    fn n_waiting(&self) -> usize {
        self.open.iter().map(|fetch| 1 + fetch.followers.len()).sum()
    }

    fn take(&mut self, id: u64) -> Option<Fetch> {
        let at = self.open.iter().position(|fetch| fetch.id == id)?;
        Some(self.open.remove(at))
    }
}
