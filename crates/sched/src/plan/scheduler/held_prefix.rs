//! [`HeldPrefix`]: pages of a prefix, and its snapshots, pinned for reading or writing outside of steps.
//!
//! Part of [`Scheduler`]; no sequence is involved. A prefix kept elsewhere, in a session or a page store, enters
//! the cache, or a cached one is copied out. Invariants: a held page is not given to anyone else; a page written
//! from outside can be found only when it and all pages before it are complete.

use tokenmill_backend::{AdapterId, MemoryPlace, PAGE_TOKENS, PageGroup};

use crate::{
    pages::{
        events::Lineage,
        key::{PageKey, PageNaming, Reuse, longest_reuse},
        pool::{Hit, PagePool},
        store::{KeptKind, KeptName, KeptPage, PrefixPart},
    },
    plan::scheduler::Scheduler,
};

/// Pinned pages and snapshots.
#[derive(Debug)]
pub(crate) struct HeldPrefix {
    /// Tokens of the whole pages.
    pub(crate) tokens: Vec<u32>,
    pub(crate) salt: u64,
    pub(crate) adapter: Option<AdapterId>,
    /// One for each page.
    pub(crate) keys: Vec<PageKey>,
    /// For each group the pages from the first visible one on, and the snapshots; in the order of pages, a snapshot
    /// after its page.
    pub(crate) parts: Vec<HeldPart>,
}

/// A part of a held prefix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldPart {
    pub(crate) part: PrefixPart,
    pub(crate) place: MemoryPlace,
    /// Whether its memory was cached. Otherwise it is missing, and is to be written.
    pub(crate) is_cached: bool,
}

/// Maximum number of snapshots of a held prefix: the one at its end, and the one before it, for a
/// conversation that continues from the start of the answer.
const MAX_SNAPSHOTS: usize = 2;

/// Too few pages or state slots are free of sequences to hold a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    pub(crate) needed: usize,
    pub(crate) n_available: usize,
}

/// Returns whether memory outside of the engine has a part of a prefix, given the index of its page and its
/// name.
pub(crate) type IsStored<'a> = &'a dyn Fn(usize, KeptName) -> bool;

impl HeldPrefix {
    /// Returns the parts to be written.
    pub(crate) fn missing(&self) -> impl Iterator<Item = &HeldPart> {
        self.parts.iter().filter(|part| !part.is_cached)
    }

    /// Returns whether a page with this key is to be written.
    pub(crate) fn wants(&self, key: PageKey) -> bool {
        self.missing().any(|part| self.keys[part.part.page_idx] == key)
    }

    /// Returns the requests to a store for the missing parts.
    pub(crate) fn wanted(&self) -> Vec<KeptPage> {
        let wanted = self.missing().map(|held| KeptPage {
            name: KeptName {
                key: self.keys[held.part.page_idx],
                kind: held.part.kind,
            },
            tokens: (page_of(&self.tokens, held.part.page_idx).try_into()).expect("a whole page"),
            bytes: Vec::new(),
        });
        wanted.collect()
    }

    /// Returns the number of pages that are complete once `n_written` of the missing parts are written.
    fn n_whole_pages(&self, n_written: usize) -> usize {
        let first_missing = self.missing().nth(n_written);
        first_missing.map_or(self.keys.len(), |held| held.part.page_idx)
    }
}

/// Returns the tokens of a page.
fn page_of(tokens: &[u32], page_idx: usize) -> &[u32] {
    &tokens[page_idx * PAGE_TOKENS..(page_idx + 1) * PAGE_TOKENS]
}

impl Scheduler {
    /// Holds the longest prefix of `tokens` that the cache and `stored` have together, possibly an empty one; see
    /// [`Self::hold_keys`]. Stored parts are in the order of [`HeldPrefix::parts`].
    pub(crate) fn hold_prefix(
        &mut self,
        tokens: &[u32],
        salt: u64,
        stored: &[PrefixPart],
    ) -> Result<HeldPrefix, NoRoom> {
        // A snapshot before the end is useful only if all pages are present, that is, if none has left a
        // window.
        let has_windows = self.groups.iter().any(|group| group.limits.window.is_some());
        let n_snapshots = if has_windows { 1 } else { MAX_SNAPSHOTS };
        let naming = whole_pages(tokens, salt);
        let keys = self.keys_of(&naming);
        let order = |page_idx: usize, kind: KeptKind| (page_idx, kind.index());
        self.hold_keys(&naming, keys, n_snapshots, &|page_idx, name| {
            let of_part = |part: &PrefixPart| order(part.page_idx, part.kind);
            (stored.binary_search_by_key(&order(page_idx, name.kind), of_part)).is_ok()
        })
    }

    /// Holds the longest prefix with these keys that the cache and the memory outside have together, with its last
    /// `n_snapshots` snapshots. Cached parts are pinned; pages of the host tier move back to the pool, which
    /// needs copies. Memory for the others is reserved by evicting the pages idle longest. One page per running
    /// sequence stays available.
    pub(crate) fn hold_keys(
        &mut self,
        naming: &PageNaming<'_>,
        mut keys: Vec<PageKey>,
        n_snapshots: usize,
        is_stored: IsStored<'_>,
    ) -> Result<HeldPrefix, NoRoom> {
        let Reuse { n_pages, first_pages } = self.longest_prefix(&keys, naming.tokens, is_stored);
        keys.truncate(n_pages);
        for (group, first_page) in self.groups.iter().zip(first_pages) {
            let takes_page = |&page_idx: &usize| {
                group.pool.find(keys[page_idx], page_of(naming.tokens, page_idx)) != Some(Hit::InUse)
            };
            let needed = (first_page..n_pages).filter(takes_page).count();
            let n_available = group.pool.n_available();
            if needed > 0 && needed + self.running.len() > n_available {
                return Err(NoRoom { needed, n_available });
            }
        }
        let states = &self.pool().states;
        let has_snapshot = |&page_idx: &usize| {
            let (key, kind) = (keys[page_idx], KeptKind::State);
            states.contains(key) || is_stored(page_idx, KeptName { key, kind })
        };
        let mut snapshots = Vec::new();
        if states.is_used() {
            snapshots.extend((0..n_pages).rev().filter(has_snapshot).take(n_snapshots));
        }
        let takes_slot =
            |&&page_idx: &&usize| !states.contains(keys[page_idx]) || states.is_idle(keys[page_idx]);
        let (needed, n_available) = (snapshots.iter().filter(takes_slot).count(), states.n_available());
        if needed > n_available {
            return Err(NoRoom { needed, n_available });
        }

        let mut parts = Vec::new();
        let groups = PageGroup::ALL.into_iter().zip(&mut self.groups);
        for ((group, of_group), first_page) in groups.zip(first_pages) {
            let pages = take_pages(&mut of_group.pool, &keys, naming.tokens, first_page);
            parts.extend(
                (first_page..)
                    .zip(pages)
                    .map(|(page_idx, (page, is_cached))| HeldPart {
                        part: PrefixPart {
                            page_idx,
                            kind: KeptKind::Page(group),
                        },
                        place: MemoryPlace::Page { group, page },
                        is_cached,
                    }),
            );
        }
        let states = &mut self.groups[0].pool.states;
        // Cached ones first, as with pages.
        snapshots.sort_by_key(|&page_idx| !states.contains(keys[page_idx]));
        for page_idx in snapshots {
            let is_cached = states.contains(keys[page_idx]);
            let slot = if is_cached {
                Some(states.retain(keys[page_idx]))
            } else {
                states.allocate()
            };
            parts.push(HeldPart {
                part: PrefixPart {
                    page_idx,
                    kind: KeptKind::State,
                },
                place: MemoryPlace::State {
                    slot: slot.expect("the slots were counted before"),
                },
                is_cached,
            });
        }
        // The sort is stable: the parts of a page stay in the order of their kinds.
        parts.sort_by_key(|held| held.part.page_idx);
        Ok(HeldPrefix {
            tokens: naming.tokens[..n_pages * PAGE_TOKENS].to_vec(),
            salt: naming.salt,
            adapter: naming.adapter,
            keys,
            parts,
        })
    }

    /// Publishes the pages that are complete once `n_written` of the missing parts are written, and releases the
    /// prefix.
    pub(crate) fn publish_prefix(&mut self, mut held: HeldPrefix, n_written: usize) {
        let n_pages = held.n_whole_pages(n_written);
        let HeldPrefix {
            tokens,
            salt,
            adapter,
            keys,
            parts,
        } = &mut held;
        parts.retain(|held| {
            let page_idx = held.part.page_idx;
            if held.is_cached || page_idx >= n_pages {
                return true;
            }
            match held.place {
                MemoryPlace::Page { group, page } => {
                    let lineage = Lineage {
                        parent: page_idx.checked_sub(1).map(|idx| keys[idx]),
                        salt: *salt,
                        adapter: *adapter,
                        // Sessions end before the first medium.
                        media: None,
                    };
                    let pool = &mut self.groups[group.index()].pool;
                    pool.register(page, keys[page_idx], page_of(tokens, page_idx), lineage);
                    true
                }
                MemoryPlace::State { slot } => {
                    // A snapshot is dropped with its page, so there is none without a page.
                    let pool = &mut self.groups[0].pool;
                    let has_page = pool.contains(keys[page_idx]);
                    if has_page {
                        pool.states.register(slot, keys[page_idx]);
                    }
                    !has_page
                }
            }
        });
        self.let_prefix_go(held);
    }

    /// Releases a prefix. Missing parts that were written are lost.
    pub(crate) fn let_prefix_go(&mut self, held: HeldPrefix) {
        // Release the last page first, so that the end of a prefix is evicted before its beginning.
        for held in held.parts.into_iter().rev() {
            match held.place {
                MemoryPlace::Page { group, page } => self.groups[group.index()].pool.release(page),
                MemoryPlace::State { slot } => self.groups[0].pool.states.release(slot),
            }
        }
    }

    /// Drops the unused pages of a prefix, and the answers to prompts with its first page.
    pub(crate) fn forget_prefix(&mut self, tokens: &[u32], salt: u64) {
        let keys = self.keys_of(&whole_pages(tokens, salt));
        if let Some(&first_page) = keys.first() {
            self.answers.forget_first_page(first_page);
        }
        for key in keys.into_iter().rev() {
            for group in &mut self.groups {
                group.pool.forget_unused(key);
            }
        }
    }

    /// Returns the longest cached prefix of `tokens`, given the keys of their whole pages.
    pub(crate) fn longest_cached(&self, keys: &[PageKey], tokens: &[u32]) -> Reuse {
        self.longest_prefix(keys, tokens, &|_, _| false)
    }

    /// Returns the longest prefix of `tokens` that the cache and the memory outside have together.
    pub(crate) fn longest_prefix(&self, keys: &[PageKey], tokens: &[u32], is_stored: IsStored<'_>) -> Reuse {
        let states = &self.pool().states;
        let mut windows = [None; PageGroup::ALL.len()];
        for (window, group) in windows.iter_mut().zip(&self.groups) {
            *window = group.limits.window;
        }
        longest_reuse(
            keys.len(),
            &windows[..self.groups.len()],
            |group_idx, page_idx| {
                let (key, kind) = (keys[page_idx], KeptKind::Page(PageGroup::ALL[group_idx]));
                let hit = self.groups[group_idx].pool.find(key, page_of(tokens, page_idx));
                hit.is_some() || is_stored(page_idx, KeptName { key, kind })
            },
            |page_idx| {
                let (key, kind) = (keys[page_idx], KeptKind::State);
                !states.is_used() || states.contains(key) || is_stored(page_idx, KeptName { key, kind })
            },
        )
    }

    /// Returns the keys of whole pages.
    fn keys_of(&self, naming: &PageNaming<'_>) -> Vec<PageKey> {
        let mut keys = Vec::new();
        self.hasher
            .extend(&mut keys, naming, naming.tokens.len() / PAGE_TOKENS);
        keys
    }
}

/// Takes the pages of a group from `first_page` on, and returns for each whether it is cached. Cached pages are pinned
/// first, so that they are not evicted to make room for the others.
fn take_pages(pool: &mut PagePool, keys: &[PageKey], tokens: &[u32], first_page: usize) -> Vec<(u32, bool)> {
    let is_cached: Vec<bool> = (first_page..keys.len())
        .map(|page_idx| pool.find(keys[page_idx], page_of(tokens, page_idx)).is_some())
        .collect();
    let cached_keys: Vec<PageKey> = (keys[first_page..].iter().zip(&is_cached))
        .filter_map(|(&key, &is_cached)| is_cached.then_some(key))
        .collect();
    let mut cached = Vec::new();
    pool.take_cached(&cached_keys, &mut cached);
    let mut cached = cached.into_iter();
    let pages = is_cached.into_iter().map(|is_cached| {
        let page = if is_cached { cached.next() } else { pool.allocate() };
        (page.expect("the pages were counted before"), is_cached)
    });
    pages.collect()
}

/// Returns the naming of pages of `tokens` alone. Pages computed with media or adapters are not in sessions.
fn whole_pages(tokens: &[u32], salt: u64) -> PageNaming<'_> {
    PageNaming {
        tokens,
        media: &[],
        salt,
        adapter: None,
    }
}
