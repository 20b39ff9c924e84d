//! How [`Core`] hands pages to a [`PageStore`] before they are gone.
//!
//! A part of [`Core`] that stands apart because most engines have no store. Pages that no sequence uses are copied between two steps, a
//! few MiB at a time; those that lose their place are copied before it is written again, where that was not done yet. Invariants: no
//! page is held for it, and no step waits for more than the copy.

use std::time::Duration;

use tokenmill_backend::{MemoryPlace, PAGE_TOKENS, PageGroup};

use crate::{
    core::Core,
    mailbox::Mailbox,
    outside::{Fetches, Outside},
    page_store::{KeptKind, KeptName, KeptPage, Offer, PageStore},
    pool::LeavingPage,
    sync,
};

/// Bytes that are copied between two steps at most, unless one page has more.
const PORTION_BYTES: usize = 4 << 20;

/// How long an engine without work waits until it looks again whether its store takes more.
const STORE_PAUSE: Duration = Duration::from_millis(5);

/// How long an engine that ends waits for what its store has to write, microseconds.
const STORE_PATIENCE_US: u64 = 10_000_000;

impl Core {
    /// Keeps pages in a store from now on, and looks there for what prompts begin with. Without effect where the executor's memory
    /// cannot be read.
    pub(crate) fn set_page_store(
        &mut self,
        store: std::sync::Arc<dyn PageStore>,
        mailbox: sync::Arc<Mailbox>,
    ) {
        let Some(format) = self.executor.memory_format() else {
            return;
        };
        self.scheduler.name_pages_with(store.secret());
        self.outside = Some(Box::new(Outside {
            store,
            mailbox,
            format,
            fetches: Fetches::default(),
            alone_since_us: None,
        }));
    }

    /// Whether an engine that ends should wait for its store.
    pub(crate) fn is_keeping(&mut self, now_us: u64) -> bool {
        let has_leaving = self.scheduler.has_leaving();
        let Some(outside) = &mut self.outside else {
            return false;
        };
        if !outside.fetches.is_empty() {
            return true;
        }
        let since_us = *outside.alone_since_us.get_or_insert(now_us);
        (has_leaving || outside.store.is_writing()) && now_us.saturating_sub(since_us) < STORE_PATIENCE_US
    }

    /// How long an engine without work may sleep; nothing wakes it where its store takes more.
    pub(crate) fn longest_sleep(&self, usual: Duration) -> Duration {
        let waits_for_store = self.outside.is_some() && self.scheduler.has_leaving();
        if waits_for_store {
            STORE_PAUSE.min(usual)
        } else {
            usual
        }
    }

    /// Copies some pages that no sequence uses. Returns whether there were any.
    pub(crate) fn keep_idle_pages(&mut self) -> bool {
        // A step on its way would have to be waited for.
        if self.has_step_in_flight() || !self.scheduler.has_leaving() {
            return false;
        }
        let Some(outside) = self.outside.take() else {
            return false;
        };
        let mut portion = Portion::default();
        for group in PageGroup::ALL {
            while portion.n_bytes < PORTION_BYTES
                && let Some(page) = self.scheduler.next_leaving(group)
            {
                if !portion.add(&outside, group, &page) {
                    self.scheduler.list_leaving(group, page.page);
                    break;
                }
            }
        }
        let n_bytes = self.keep(&outside, portion);
        self.outside = Some(outside);
        n_bytes > 0
    }

    /// Copies the pages that have lost their place, before it is written again.
    pub(crate) fn keep_evicted_pages(&mut self) {
        let Some(outside) = self.outside.take() else {
            return;
        };
        let mut portion = Portion::default();
        for group in PageGroup::ALL {
            for page in self.scheduler.take_evicted(group) {
                // What finds no room is computed again, should it be needed.
                portion.add(&outside, group, &page);
                // The store counts what it was given, so it is given no more at once.
                if portion.n_bytes >= PORTION_BYTES {
                    self.keep(&outside, std::mem::take(&mut portion));
                }
            }
        }
        self.keep(&outside, portion);
        self.outside = Some(outside);
    }

    /// Copies a portion and gives it to the store. Returns its bytes, 0 where they cannot be read: it is computed again, should it be needed.
    fn keep(&mut self, outside: &Outside, portion: Portion) -> usize {
        let mut contents = Vec::with_capacity(portion.places.len());
        let mut take = |bytes: &[u8]| contents.push(bytes.to_vec());
        if self.executor.read_memory(&portion.places, &mut take).is_err() {
            return 0;
        }
        for ((name, tokens), bytes) in portion.names.into_iter().zip(contents) {
            outside.store.keep(KeptPage { name, tokens, bytes });
        }
        portion.n_bytes
    }
}

/// Pages and states that a store takes, to be copied together.
#[derive(Debug, Default)]
struct Portion {
    /// With the tokens of the page.
    names: Vec<(KeptName, [u32; PAGE_TOKENS])>,
    /// Where they are, in the same order.
    places: Vec<MemoryPlace>,
    n_bytes: usize,
}

impl Portion {
    /// Adds what the store wants of a page. Returns `false` where the store has too much to write for all of it.
    fn add(&mut self, outside: &Outside, group: PageGroup, page: &LeavingPage) -> bool {
        let of_page = MemoryPlace::Page {
            group,
            page: page.page,
        };
        let of_state = page
            .state
            .map(|slot| (KeptKind::State, MemoryPlace::State { slot }));
        for (kind, place) in [Some((KeptKind::Page(group), of_page)), of_state]
            .into_iter()
            .flatten()
        {
            let name = KeptName { key: page.key, kind };
            let n_bytes = outside.format.bytes_of(place);
            match outside.store.offer(name, n_bytes) {
                Offer::Leave => continue,
                Offer::Later => return false,
                Offer::Take => {}
            }
            self.names.push((name, page.tokens));
            self.places.push(place);
            self.n_bytes += n_bytes;
        }
        true
    }
}
