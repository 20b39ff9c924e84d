//! [`Outside`]: the store of an engine, and the requests that wait for pages from there.
//!
//! Plain data, separate from what the engine does with it, which is in `keeping.rs` and `fetching.rs`. Invariant: a fetch is open until its request is
//! told to the scheduler.

use tokenmill_backend::{MemoryFormat, MemoryPlace};

use crate::{
    held_prefix::HeldPrefix,
    mailbox::Mailbox,
    page_store::{KeptPage, PageStore},
    prefix::PageKey,
    submission::Submission,
    sync,
};

/// A store, and who waits for it.
pub(crate) struct Outside {
    pub(crate) store: std::sync::Arc<dyn PageStore>,
    pub(crate) mailbox: sync::Arc<Mailbox>,
    pub(crate) format: MemoryFormat,
    pub(crate) fetches: Fetches,
    /// Since when nothing but writing is left to do.
    pub(crate) alone_since_us: Option<u64>,
}

/// The requests that wait for their pages.
#[derive(Debug, Default)]
pub(crate) struct Fetches {
    pub(crate) open: Vec<Fetch>,
    pub(crate) next: u64,
}

/// Pages that are being fetched.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) id: u64,
    pub(crate) submission: Submission,
    /// Requests that begin with the same page, and look again once it is there.
    pub(crate) followers: Vec<Submission>,
    pub(crate) stored: StoredPrefix,
    pub(crate) n_done: usize,
    pub(crate) last_news_us: u64,
}

/// A prefix of which some pages are kept outside, with the places to put them.
#[derive(Debug)]
pub(crate) struct StoredPrefix {
    pub(crate) prefix: HeldPrefix,
    /// What is wanted, and of which page of the prefix it is and where it goes; in the order of the pages.
    pub(crate) wanted: Vec<KeptPage>,
    pub(crate) places: Vec<(usize, MemoryPlace)>,
}

impl StoredPrefix {
    /// Pages that are whole once so many of the wanted are there.
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

    /// Requests that are kept back.
    pub(crate) fn n_waiting(&self) -> usize {
        self.open.iter().map(|fetch| 1 + fetch.followers.len()).sum()
    }

    pub(crate) fn take(&mut self, id: u64) -> Option<Fetch> {
        let at = self.open.iter().position(|fetch| fetch.id == id)?;
        Some(self.open.remove(at))
    }
}
