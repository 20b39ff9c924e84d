//! [`PagePool`]: tracks the holders of each KV page, and the whole pages that can be found again.
//!
//! One pool serves all sequences. It knows no sequence: only counts, keys and the copies that the executor
//! has to make. Every page of the pool is in exactly one state:
//!
//! | state | references | has a key | where |
//! |---|---|---|---|
//! | free | 0 | no | `free` |
//! | in use | 1 or more | perhaps | page tables of sequences |
//! | idle | 0 | yes | `idle`, oldest first |
//!
//! Pages that left a window count as oldest, the latest of them first.
//!
//! Idle pages are the prefix cache: they stay until their place is needed, then move to the host tier, if
//! there is one, or are dropped. Invariants: a page with a key is never written again; a key is in one place
//! only.

use std::collections::HashMap;

use tokenmill_backend::{AdapterId, PAGE_TOKENS, PageCopy, PageGroup};

mod leaving;

use self::leaving::Leaving;
pub(crate) use self::leaving::LeavingPage;
use crate::pages::{
    events::{Lineage, PageEvent, PageJournal, PageTier},
    ghosts::Ghosts,
    key::PageKey,
    lru::LruList,
    states::StatePool,
};

/// Counts pages, keeps the prefix cache and lists the copies to make.
#[derive(Debug)]
pub struct PagePool {
    pages: Vec<Page>,
    free: Vec<u32>,
    idle: LruList,
    host: HostTier,
    index: HashMap<PageKey, Cached>,
    evicted: Ghosts,
    copies: Vec<PageCopy>,
    counters: PoolCounters,
    /// Receives the changes of the prefix cache.
    journal: Option<Box<PageJournal>>,
    /// Pages to keep in a store, if there is one.
    leaving: Option<Box<Leaving>>,
    /// A snapshot is dropped with its page.
    pub(crate) states: StatePool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Page {
    n_refs: u32,
    key: Option<PageKey>,
    /// Its last holder released it because it had left the window, and no sequence has taken it since.
    has_left_window: bool,
    /// It has left the window, but a prompt that ends where its sequence's prompt did can see it.
    ends_prompt: bool,
}

impl Page {
    /// Returns whether a store should keep it.
    fn is_worth_keeping(self) -> bool {
        !self.has_left_window || self.ends_prompt
    }
}

#[derive(Debug)]
struct HostTier {
    keys: Vec<Option<PageKey>>,
    free: Vec<u32>,
    used: LruList,
}

/// A page of the prefix cache. Its tokens are kept for comparison, so that a hit never relies on a hash
/// alone.
#[derive(Clone, Copy, Debug)]
struct Cached {
    place: Place,
    adapter: Option<AdapterId>,
    tokens: [u32; PAGE_TOKENS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Pool(u32),
    Host(u32),
}

impl Place {
    fn tier(self) -> PageTier {
        match self {
            Self::Pool(_) => PageTier::Pool,
            Self::Host(_) => PageTier::Host,
        }
    }
}

/// The cost of reusing a cached page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hit {
    /// A sequence is using it now: another reference is enough.
    InUse,
    /// It is idle: reusing it leaves one page fewer to allocate.
    Idle,
    /// It is in the host tier: reusing it needs a page of the pool and an upload.
    Host,
}

/// Counters of the pool since its creation, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounters {
    /// Cached pages reused from the pool.
    pub hits: u64,
    /// Cached pages reused from the host tier.
    pub host_hits: u64,
    /// Whole pages that entered the prefix cache.
    pub cached: u64,
    /// Cached pages dropped to make room.
    pub evictions: u64,
    /// Cached pages moved to the host tier.
    pub downloads: u64,
    /// Shared pages copied before a write.
    pub duplicates: u64,
}

impl PagePool {
    /// Creates a pool of free pages, and of slots for recurrent states.
    pub fn new(n_pages: usize, n_host_pages: usize, n_states: usize) -> Self {
        Self {
            pages: vec![Page::default(); n_pages],
            free: (0..n_pages as u32).rev().collect(),
            idle: LruList::new(n_pages),
            host: HostTier {
                keys: vec![None; n_host_pages],
                free: (0..n_host_pages as u32).rev().collect(),
                used: LruList::new(n_host_pages),
            },
            // Steps add and remove keys. A table with room for twice as many never grows.
            index: HashMap::with_capacity(2 * n_pages),
            evicted: Ghosts::new(2 * (n_pages + n_host_pages)),
            copies: Vec::new(),
            counters: PoolCounters::default(),
            journal: None,
            leaving: None,
            states: StatePool::new(n_states),
        }
    }

    /// Records the changes of the prefix cache from now on, as those of `group`.
    pub(crate) fn keep_journal(&mut self, group: PageGroup) {
        self.journal = Some(Box::new(PageJournal::new(group)));
    }

    /// Replaces the recorded changes by the addition of all findable pages.
    pub(crate) fn restate_events(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.restate(|key| {
                let cached = &self.index[&key];
                (cached.tokens, cached.place.tier())
            });
        }
    }

    /// Moves the recorded changes to the end of `events`.
    pub(crate) fn take_events(&mut self, events: &mut Vec<PageEvent>) {
        if let Some(journal) = &mut self.journal {
            journal.take(events);
        }
    }

    /// Returns the number of pages in the pool.
    pub fn n_pages(&self) -> usize {
        self.pages.len()
    }

    /// Returns the number of pages that can be allocated: free ones and idle ones.
    pub fn n_available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// Returns the number of pages that sequences hold.
    pub fn n_in_use(&self) -> usize {
        self.n_pages() - self.n_available()
    }

    /// Returns the number of pages that only the prefix cache holds.
    pub fn n_idle(&self) -> usize {
        self.idle.len()
    }

    /// Returns the number of host tier pages that hold cached pages.
    pub fn n_host_used(&self) -> usize {
        self.host.used.len()
    }

    /// Returns the number of snapshots that prompts can continue from.
    pub fn n_snapshots(&self) -> usize {
        self.states.n_snapshots()
    }

    /// Returns the counters.
    pub fn counters(&self) -> PoolCounters {
        self.counters
    }

    /// Allocates a page with one reference, evicting the page idle longest if none is free.
    pub(crate) fn allocate(&mut self) -> Option<u32> {
        let page = match self.free.pop() {
            Some(page) => page,
            None => self.evict()?,
        };
        debug_assert_eq!(
            (self.pages[page as usize].n_refs, self.pages[page as usize].key),
            (0, None)
        );
        self.pages[page as usize] = Page {
            n_refs: 1,
            ..Page::default()
        };
        Some(page)
    }

    /// Adds a reference.
    pub(crate) fn retain(&mut self, page: u32) {
        self.idle.remove(page);
        self.pages[page as usize].n_refs += 1;
        self.pages[page as usize].has_left_window = false;
    }

    /// Removes a reference; the last one makes the page idle, or free if it has no key.
    pub(crate) fn release(&mut self, page: u32) {
        let entry = &mut self.pages[page as usize];
        entry.n_refs = entry.n_refs.checked_sub(1).expect("a released page was held");
        match (entry.n_refs, entry.key) {
            (0, Some(_)) => {
                self.idle.push(page);
                self.list_leaving(page);
            }
            (0, None) => self.free.push(page),
            _ => {}
        }
    }

    /// Does the same as [`Self::release`], for a page that the sequence's next token does not see. Only a prompt that
    /// diverges from this one nearby can use it again, so it is evicted before pages at the end of sequences.
    pub(crate) fn release_left(&mut self, page: u32, ends_prompt: bool) {
        self.release(page);
        if self.idle.remove(page) {
            self.idle.push_oldest(page);
            self.pages[page as usize].has_left_window = true;
            self.pages[page as usize].ends_prompt = ends_prompt;
        }
    }

    /// Returns whether a sequence that holds `page` may write to it: no other sequence holds it or can find
    /// it.
    pub(crate) fn is_exclusive(&self, page: u32) -> bool {
        let entry = self.pages[page as usize];
        entry.n_refs == 1 && entry.key.is_none()
    }

    /// Exchanges the caller's reference to a page that it must not write for a writable page with the same
    /// contents; `None` if no page is available for the copy.
    pub(crate) fn own(&mut self, from: u32) -> Option<u32> {
        if let Some(to) = self.allocate() {
            self.copies.push(PageCopy::Duplicate { from, to });
            self.counters.duplicates += 1;
            self.release(from);
            return Some(to);
        }
        // If no other sequence holds it, it can be taken without a copy, at the cost of the cached page.
        (self.pages[from as usize].n_refs == 1).then(|| {
            self.forget(from);
            from
        })
    }

    /// Makes a whole page that holds `tokens` findable by `key`, unless another page already is.
    pub(crate) fn register(&mut self, page: u32, key: PageKey, tokens: &[u32], lineage: Lineage) {
        if self.pages[page as usize].key.is_some() || self.index.contains_key(&key) {
            return;
        }
        let tokens = tokens.try_into().expect("a whole page of tokens");
        if let Some(journal) = &mut self.journal {
            journal.stored(key, tokens, lineage);
        }
        let place = Place::Pool(page);
        let adapter = lineage.adapter;
        self.index.insert(
            key,
            Cached {
                place,
                adapter,
                tokens,
            },
        );
        self.pages[page as usize].key = Some(key);
        self.evicted.remove(key);
        self.counters.cached += 1;
    }

    /// Looks up a page without taking a reference.
    pub(crate) fn find(&self, key: PageKey, tokens: &[u32]) -> Option<Hit> {
        let cached = self.index.get(&key).filter(|cached| cached.tokens == tokens)?;
        Some(match cached.place {
            Place::Pool(page) if self.idle.contains(page) => Hit::Idle,
            Place::Pool(_) => Hit::InUse,
            Place::Host(_) => Hit::Host,
        })
    }

    /// Returns whether a page with this key can be found.
    pub(crate) fn contains(&self, key: PageKey) -> bool {
        self.index.contains_key(&key)
    }

    /// Returns whether `key` was evicted recently.
    pub(crate) fn was_evicted(&self, key: PageKey) -> bool {
        self.evicted.contains(key)
    }

    /// Takes a reference to every page of `keys`, all of which [`Self::find`] has just found, and appends the
    /// pages to `table`. The caller has checked that a page can be allocated for each one in the host tier.
    pub(crate) fn take_cached(&mut self, keys: &[PageKey], table: &mut Vec<u32>) {
        // Retain pages in the pool first, so that they are not evicted to make room.
        for key in keys {
            match self.index[key].place {
                Place::Pool(page) => self.retain(page),
                Place::Host(host_page) => {
                    self.host.used.remove(host_page);
                }
            }
        }
        for key in keys {
            let page = match self.index[key].place {
                Place::Pool(page) => {
                    self.counters.hits += 1;
                    page
                }
                Place::Host(host_page) => self.upload(*key, host_page),
            };
            table.push(page);
        }
    }

    fn upload(&mut self, key: PageKey, host_page: u32) -> u32 {
        let page = self
            .allocate()
            .expect("the caller checked that a page is available");
        self.copies.push(PageCopy::Upload { host_page, page });
        self.host.keys[host_page as usize] = None;
        self.host.free.push(host_page);
        self.pages[page as usize].key = Some(key);
        self.settle(key, Place::Pool(page));
        self.counters.host_hits += 1;
        page
    }

    /// Makes a page unfindable, because its contents are invalid.
    pub(crate) fn forget(&mut self, page: u32) {
        if let Some(key) = self.pages[page as usize].key.take() {
            self.index.remove(&key);
            self.states.forget(key);
            self.tell_removed(key, PageTier::Pool);
            if self.idle.remove(page) {
                self.free.push(page);
            }
        }
    }

    /// Makes a cached page unfindable, unless a sequence uses it.
    pub(crate) fn forget_unused(&mut self, key: PageKey) {
        match self.index.get(&key).map(|cached| cached.place) {
            Some(Place::Pool(page)) if self.idle.contains(page) => self.forget(page),
            Some(Place::Host(host_page)) => self.forget_host(host_page),
            Some(Place::Pool(_)) | None => {}
        }
    }

    /// Makes a page of the host tier unfindable, because its contents are invalid.
    pub(crate) fn forget_host(&mut self, host_page: u32) {
        if let Some(key) = self.host.keys[host_page as usize].take() {
            self.host.used.remove(host_page);
            self.host.free.push(host_page);
            self.drop_key(key, PageTier::Host);
        }
    }

    /// Makes all pages computed with an adapter unfindable; those in use stay with their holders.
    pub(crate) fn forget_adapter(&mut self, adapter: AdapterId) {
        let of_adapter = self
            .index
            .values()
            .filter(|cached| cached.adapter == Some(adapter));
        let places: Vec<Place> = of_adapter.map(|cached| cached.place).collect();
        for place in places {
            match place {
                Place::Pool(page) => self.forget(page),
                Place::Host(host_page) => self.forget_host(host_page),
            }
        }
    }

    /// Empties the prefix cache, including the host tier; pages in use stay with their holders. The caller
    /// reports the change.
    pub(crate) fn forget_all(&mut self) {
        let mut journal = self.journal.take();
        for page in 0..self.pages.len() as u32 {
            self.forget(page);
        }
        while let Some(host_page) = self.host.used.pop() {
            self.host.keys[host_page as usize] = None;
            self.host.free.push(host_page);
        }
        self.index.clear();
        self.states.forget_all();
        if let Some(leaving) = &mut self.leaving {
            leaving.clear();
        }
        if let Some(journal) = &mut journal {
            journal.forget_lineages();
        }
        self.journal = journal;
    }

    /// Moves the copies that the executor has to make before the next step into `copies`, in order.
    pub(crate) fn take_copies(&mut self, copies: &mut Vec<PageCopy>) {
        copies.append(&mut self.copies);
    }

    /// Evicts the oldest idle page: to the host tier if it has room, otherwise its contents are lost.
    fn evict(&mut self) -> Option<u32> {
        let page = self.idle.pop()?;
        let key = self.pages[page as usize]
            .key
            .take()
            .expect("an idle page has a key");
        let is_worth_keeping = self.pages[page as usize].is_worth_keeping();
        let has_left_window = std::mem::take(&mut self.pages[page as usize].has_left_window);
        let is_taken = self.leaving.is_some() && is_worth_keeping;
        let leaving_page = is_taken.then(|| self.leaving_page(page, key));
        if let Some((leaving, page)) = self.leaving.as_mut().zip(leaving_page) {
            leaving.evicted.push(page);
        }
        // A page that left its window must not evict one from the host tier.
        let host_page = if has_left_window {
            self.host.free.pop()
        } else {
            self.host_page()
        };
        match host_page {
            Some(host_page) => {
                self.copies.push(PageCopy::Download { page, host_page });
                self.host.keys[host_page as usize] = Some(key);
                if has_left_window {
                    self.host.used.push_oldest(host_page);
                } else {
                    self.host.used.push(host_page);
                }
                self.settle(key, Place::Host(host_page));
                self.counters.downloads += 1;
            }
            None => self.drop_key(key, PageTier::Pool),
        }
        Some(page)
    }

    /// Returns a free page of the host tier, dropping its oldest page if necessary.
    fn host_page(&mut self) -> Option<u32> {
        if let Some(host_page) = self.host.free.pop() {
            return Some(host_page);
        }
        let host_page = self.host.used.pop()?;
        let key = self.host.keys[host_page as usize]
            .take()
            .expect("a used host page has a key");
        self.drop_key(key, PageTier::Host);
        Some(host_page)
    }

    /// Records that a cached page has moved to the other tier.
    fn settle(&mut self, key: PageKey, place: Place) {
        let Some(cached) = self.index.get_mut(&key) else {
            return;
        };
        cached.place = place;
        if let Some(journal) = &mut self.journal {
            journal.moved(key, cached.tokens, place.tier());
        }
    }

    fn tell_removed(&mut self, key: PageKey, tier: PageTier) {
        if let Some(journal) = &mut self.journal {
            journal.removed(key, tier);
        }
    }

    fn drop_key(&mut self, key: PageKey, tier: PageTier) {
        self.index.remove(&key);
        self.states.forget(key);
        self.tell_removed(key, tier);
        self.evicted.insert(key);
        self.counters.evictions += 1;
    }

    /// Returns the pages that can be found.
    #[cfg(test)]
    pub(crate) fn cached(&self) -> impl Iterator<Item = (PageKey, PageTier)> {
        let cached = self.index.iter();
        cached.map(|(&key, cached)| (key, cached.place.tier()))
    }

    /// Checks every invariant against the page tables of all sequences.
    ///
    /// # Panics
    /// If a page is lost, held twice by mistake, or cached in two states at once.
    pub fn assert_consistent<'a>(&self, tables: impl IntoIterator<Item = &'a [u32]>) {
        let mut n_refs = vec![0; self.pages.len()];
        for &page in tables.into_iter().flatten() {
            if let Some(count) = n_refs.get_mut(page as usize) {
                *count += 1;
            }
        }
        let mut is_free = vec![false; self.pages.len()];
        for &page in &self.free {
            assert!(
                !std::mem::replace(&mut is_free[page as usize], true),
                "page {page} is free twice"
            );
        }
        for (page, entry) in (0..).zip(&self.pages) {
            assert_eq!(entry.n_refs, n_refs[page as usize], "references to page {page}");
            let is_idle = entry.n_refs == 0 && entry.key.is_some();
            assert_eq!(self.idle.contains(page), is_idle, "page {page} idle");
            assert_eq!(
                is_free[page as usize],
                entry.n_refs == 0 && !is_idle,
                "page {page} free"
            );
            if let Some(key) = entry.key {
                assert_eq!(self.index[&key].place, Place::Pool(page), "key of page {page}");
            }
        }
        for (host_page, key) in (0..).zip(&self.host.keys) {
            assert_eq!(
                self.host.used.contains(host_page),
                key.is_some(),
                "host page {host_page}"
            );
            if let Some(key) = key {
                assert_eq!(
                    self.index[key].place,
                    Place::Host(host_page),
                    "key of host page {host_page}"
                );
            }
        }
        let n_keys = self.pages.iter().filter(|entry| entry.key.is_some()).count() + self.n_host_used();
        assert_eq!(self.index.len(), n_keys, "keys in the index");
        assert_eq!(
            self.host.free.len() + self.n_host_used(),
            self.host.keys.len(),
            "host pages"
        );
    }
}
