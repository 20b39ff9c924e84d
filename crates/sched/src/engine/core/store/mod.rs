//! [`StoreLink`]: the engine's page store, and the requests that wait for pages from it.
//!
//! Owned by [`Core`](super::Core). `offload.rs` gives pages to the store, `fetch.rs` gets them back. Invariant: a fetch is open until its request reaches
//! the scheduler.

mod fetch;
mod offload;

use tokenmill_backend::MemoryFormat;

use crate::{
    pages::store::PageStore,
    queue::{mailbox::Mailbox, submission::Submission},
    sync,
};

/// A store, and the requests that wait for it.
pub(super) struct StoreLink {
    store: std::sync::Arc<dyn PageStore>,
    mailbox: sync::Arc<Mailbox>,
    format: MemoryFormat,
    fetches: Vec<Fetch>,
    /// Start of the period in which the store's writes are the only remaining work.
    alone_since_us: Option<u64>,
}

/// A request that waits for stored pages.
#[derive(Debug)]
pub(super) struct Fetch {
    /// The number of the held prefix that they are written to.
    hold: u64,
    n_bytes: u64,
    pub(super) submission: Submission,
    /// Requests that miss the same page first. They look it up again once it has arrived.
    pub(super) followers: Vec<Submission>,
    last_news_us: u64,
}

impl StoreLink {
    pub(super) fn take_fetch(&mut self, hold: u64) -> Option<Fetch> {
        let at = self.fetches.iter().position(|fetch| fetch.hold == hold)?;
        Some(self.fetches.remove(at))
    }
}
