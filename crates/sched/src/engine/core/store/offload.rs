//! Hands pages of [`Core`] to a [`PageStore`] before they are evicted.
//!
//! Most engines have no store. Pages that no sequence uses are copied between two steps, a few MiB at a time.
//! Evicted pages that were not copied yet are copied before they are overwritten. Invariants: no page is
//! pinned for it, and no step waits for more than the copy.

use std::time::Duration;

use tokenmill_backend::{MemoryPlace, PAGE_TOKENS, PageGroup};

use crate::{
    engine::core::{Core, store::StoreLink},
    pages::{
        pool::LeavingPage,
        store::{KeptKind, KeptName, KeptPage, Offer, PORTION_BYTES, PageStore},
    },
    queue::mailbox::Mailbox,
    sync,
};

/// Polling interval of an idle engine whose store was busy.
const STORE_PAUSE: Duration = Duration::from_millis(5);

/// How long an ending engine waits for its store to write, in microseconds.
const STORE_PATIENCE_US: u64 = 10_000_000;

impl Core {
    /// Sets the store that keeps pages from now on and is searched for the prefixes of prompts. Has no effect
    /// if the executor's memory cannot be read.
    pub(crate) fn set_page_store(
        &mut self,
        store: std::sync::Arc<dyn PageStore>,
        mailbox: sync::Arc<Mailbox>,
    ) {
        let Some(format) = self.executor.memory_format() else {
            return;
        };
        self.scheduler.name_pages_with(store.secret());
        self.store = Some(Box::new(StoreLink {
            store,
            mailbox,
            format,
            fetches: Vec::new(),
            alone_since_us: None,
        }));
    }

    /// Returns whether an ending engine should wait for its store.
    pub(crate) fn is_keeping(&mut self, now_us: u64) -> bool {
        let has_leaving = self.scheduler.has_leaving();
        let Some(link) = &mut self.store else {
            return false;
        };
        let since_us = *link.alone_since_us.get_or_insert(now_us);
        (has_leaving || link.store.is_writing()) && now_us.saturating_sub(since_us) < STORE_PATIENCE_US
    }

    /// Returns how long an idle engine may sleep; nothing wakes it when its store has room again.
    pub(crate) fn longest_sleep(&self, usual: Duration) -> Duration {
        let waits_for_store = self.store.is_some() && self.scheduler.has_leaving();
        if waits_for_store {
            STORE_PAUSE.min(usual)
        } else {
            usual
        }
    }

    /// Copies some pages that no sequence uses. Returns whether there were any.
    pub(crate) fn keep_idle_pages(&mut self) -> bool {
        // Copying would have to wait for a step in flight.
        if self.has_step_in_flight() || !self.scheduler.has_leaving() {
            return false;
        }
        let Some(link) = self.store.take() else {
            return false;
        };
        let mut portion = Portion::default();
        for group in PageGroup::ALL {
            while portion.n_bytes < PORTION_BYTES
                && let Some(page) = self.scheduler.next_leaving(group)
            {
                if !portion.add(&link, group, &page) {
                    self.scheduler.list_leaving(group, page.page);
                    break;
                }
            }
        }
        let n_bytes = self.keep(&link, portion);
        self.store = Some(link);
        n_bytes > 0
    }

    /// Copies evicted pages before they are overwritten.
    pub(in crate::engine::core) fn keep_evicted_pages(&mut self) {
        let Some(link) = self.store.take() else {
            return;
        };
        let mut portion = Portion::default();
        for group in PageGroup::ALL {
            for page in self.scheduler.take_evicted(group) {
                // A page without room is computed again if it is needed.
                portion.add(&link, group, &page);
                // The store counts pages only once it has received them, so portions stay small.
                if portion.n_bytes >= PORTION_BYTES {
                    self.keep(&link, std::mem::take(&mut portion));
                }
            }
        }
        self.keep(&link, portion);
        self.store = Some(link);
    }

    /// Copies a portion and gives it to the store. Returns its bytes, or 0 if they cannot be read; the pages
    /// are then computed again if needed.
    fn keep(&mut self, link: &StoreLink, portion: Portion) -> usize {
        let Ok(contents) = self.read_places(&portion.places) else {
            return 0;
        };
        for ((name, tokens), bytes) in portion.names.into_iter().zip(contents) {
            link.store.keep(KeptPage { name, tokens, bytes });
        }
        portion.n_bytes
    }
}

/// Pages and states for a store, copied together.
#[derive(Debug, Default)]
struct Portion {
    /// Names, each with the tokens of the page.
    names: Vec<(KeptName, [u32; PAGE_TOKENS])>,
    /// Their places, in the same order.
    places: Vec<MemoryPlace>,
    n_bytes: usize,
}

impl Portion {
    /// Adds the parts of a page that the store wants. Returns `false` if the store is too busy for all of it.
    fn add(&mut self, link: &StoreLink, group: PageGroup, page: &LeavingPage) -> bool {
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
            match link.store.offer(name) {
                Offer::Leave => continue,
                Offer::Later => return false,
                Offer::Take => {}
            }
            self.names.push((name, page.tokens));
            self.places.push(place);
            self.n_bytes += link.format.bytes_of(place);
        }
        true
    }
}
