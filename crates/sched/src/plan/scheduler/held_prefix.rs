//! [`HeldPrefix`]: pages of a prefix, and its snapshots, pinned for reading or writing outside of steps.
//!
//! Part of [`Scheduler`]; no sequence is involved. A prefix computed elsewhere enters the cache, or a cached
//! one is copied out. Invariants: a held page is not given to anyone else; a prefix written from outside can
//! be found only when it is complete.

use tokenmill_backend::{AdapterId, MemoryPlace, PAGE_TOKENS, PageGroup};

use crate::{
    pages::{
        events::Lineage,
        key::{PageKey, PageNaming, Reuse, first_visible_page, longest_reuse},
        pool::Hit,
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
    pub(crate) keys: Vec<PageKey>,
    pub(crate) reuse: Reuse,
    /// For each group, the pages from the first visible one on.
    pub(crate) tables: [Vec<u32>; PageGroup::ALL.len()],
    /// Snapshots, each with the number of pages before it.
    pub(crate) states: Vec<(usize, u32)>,
}

/// Maximum number of snapshots of a held prefix: the one at its end, and the one before it, for a
/// conversation that continues from the start of the answer.
const MAX_SNAPSHOTS: usize = 2;

/// The reason why a prefix cannot be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldError {
    /// Too few pages or state slots are free of sequences.
    NoRoom { needed: usize, n_available: usize },
    /// The snapshots do not fit a prefix of this model.
    BadSnapshots,
}

impl HeldPrefix {
    /// Returns the number of tokens whose memory is held.
    pub(crate) fn n_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the numbers of tokens that its snapshots have seen, ascending.
    pub(crate) fn snapshots(&self) -> Vec<u32> {
        let tokens_of = |&(n_pages, _): &(usize, u32)| (n_pages * PAGE_TOKENS) as u32;
        self.states.iter().map(tokens_of).collect()
    }

    /// Returns the places of its memory: the pages of each group in order, then the snapshots.
    pub(crate) fn places(&self) -> Vec<MemoryPlace> {
        let pages = (PageGroup::ALL.into_iter().zip(&self.tables))
            .flat_map(|(group, pages)| pages.iter().map(move |&page| MemoryPlace::Page { group, page }));
        let states = self.states.iter().map(|&(_, slot)| MemoryPlace::State { slot });
        pages.chain(states).collect()
    }
}

impl Scheduler {
    /// Holds the longest cached prefix of `tokens`, possibly an empty one. Pages of the host tier move back
    /// to the pool, which needs copies. One page per running sequence stays available.
    pub(crate) fn hold_prefix(&mut self, tokens: &[u32], salt: u64) -> Result<HeldPrefix, HoldError> {
        let keys = self.keys_of(tokens, salt);
        let reuse = self.longest_cached(&keys, tokens);
        let mut held = HeldPrefix {
            tokens: tokens[..reuse.n_pages * PAGE_TOKENS].to_vec(),
            salt,
            adapter: None,
            keys,
            reuse,
            tables: Default::default(),
            states: Vec::new(),
        };
        held.keys.truncate(reuse.n_pages);
        for (group_idx, group) in self.groups.iter().enumerate() {
            let takes_page = |page_idx: &usize| {
                let tokens = &tokens[page_idx * PAGE_TOKENS..(page_idx + 1) * PAGE_TOKENS];
                let hit = group.pool.find(held.keys[*page_idx], tokens);
                matches!(hit, Some(Hit::Idle | Hit::Host))
            };
            let needed = (reuse.first_pages[group_idx]..reuse.n_pages)
                .filter(takes_page)
                .count();
            let n_available = group.pool.n_available();
            if needed + self.running.len() > n_available && needed > 0 {
                return Err(HoldError::NoRoom { needed, n_available });
            }
        }
        let groups = self
            .groups
            .iter_mut()
            .zip(&mut held.tables)
            .zip(reuse.first_pages);
        for ((group, pages), first_page) in groups {
            group.pool.take_cached(&held.keys[first_page..], pages);
        }
        // A snapshot before the end is useful only if all pages are present, that is, if none has left a
        // window.
        let has_windows = self.groups.iter().any(|group| group.limits.window.is_some());
        let n_snapshots = if has_windows { 1 } else { MAX_SNAPSHOTS };
        let states = &mut self.groups[0].pool.states;
        let found = (1..=reuse.n_pages)
            .rev()
            .filter(|n_pages| states.contains(held.keys[n_pages - 1]));
        let mut n_pages_of: Vec<usize> = found.take(n_snapshots).collect();
        n_pages_of.reverse();
        held.states = n_pages_of
            .into_iter()
            .map(|n_pages| (n_pages, states.retain(held.keys[n_pages - 1])))
            .collect();
        Ok(held)
    }

    /// Reserves pages and snapshot slots to write the memory of the whole pages of `tokens`, evicting the
    /// pages idle longest. One page per running sequence stays available.
    pub(crate) fn reserve_prefix(
        &mut self,
        tokens: &[u32],
        snapshots: &[u32],
        salt: u64,
    ) -> Result<HeldPrefix, HoldError> {
        let n_pages = tokens.len() / PAGE_TOKENS;
        let tokens = tokens[..n_pages * PAGE_TOKENS].to_vec();
        let is_placed = snapshots
            .iter()
            .all(|&at| at > 0 && (at as usize).is_multiple_of(PAGE_TOKENS));
        // A prefix of a model with states is found only if it ends with a snapshot.
        let end = if self.pool().states.is_used() {
            tokens.len()
        } else {
            0
        };
        if !is_placed
            || !snapshots.is_sorted_by(|a, b| a < b)
            || snapshots.last().map_or(0, |&last| last as usize) != end
        {
            return Err(HoldError::BadSnapshots);
        }
        let mut first_pages = [0; PageGroup::ALL.len()];
        for (first_page, group) in first_pages.iter_mut().zip(&self.groups) {
            *first_page = first_visible_page(n_pages * PAGE_TOKENS, group.limits.window);
            let (needed, n_available) = (n_pages - *first_page, group.pool.n_available());
            if needed + self.running.len() > n_available {
                return Err(HoldError::NoRoom { needed, n_available });
            }
        }
        let states = &mut self.groups[0].pool.states;
        let (needed, n_available) = (snapshots.len(), states.n_available());
        if needed > n_available {
            return Err(HoldError::NoRoom { needed, n_available });
        }
        let available = "as many are available";
        let states = (snapshots.iter())
            .map(|&at| (at as usize / PAGE_TOKENS, states.allocate().expect(available)))
            .collect();
        let mut tables: [Vec<u32>; PageGroup::ALL.len()] = Default::default();
        for ((group, pages), first_page) in self.groups.iter_mut().zip(&mut tables).zip(first_pages) {
            pages.extend((first_page..n_pages).map(|_| group.pool.allocate().expect(available)));
        }
        Ok(HeldPrefix {
            keys: self.keys_of(&tokens, salt),
            tokens,
            salt,
            adapter: None,
            reuse: Reuse { n_pages, first_pages },
            tables,
            states,
        })
    }

    /// Publishes a written prefix in the prefix cache.
    pub(crate) fn publish_prefix(&mut self, mut held: HeldPrefix) {
        let tables = self
            .groups
            .iter_mut()
            .zip(&held.tables)
            .zip(held.reuse.first_pages);
        for ((group, pages), first_page) in tables {
            for (page_idx, &page) in (first_page..).zip(pages) {
                let lineage = Lineage {
                    parent: page_idx.checked_sub(1).map(|idx| held.keys[idx]),
                    salt: held.salt,
                    adapter: held.adapter,
                    // Sessions end before the first medium.
                    media: None,
                };
                let tokens = &held.tokens[page_idx * PAGE_TOKENS..(page_idx + 1) * PAGE_TOKENS];
                group.pool.register(page, held.keys[page_idx], tokens, lineage);
            }
        }
        for (n_pages, slot) in held.states.drain(..) {
            let (pool, key) = (&mut self.groups[0].pool, held.keys[n_pages - 1]);
            // A snapshot is dropped with its page, so there is none without a page.
            if pool.contains(key) {
                pool.states.register(slot, key);
            } else {
                pool.states.release(slot);
            }
        }
        self.let_prefix_go(held);
    }

    /// Releases what was held. A reserved prefix that was not published is lost.
    pub(crate) fn let_prefix_go(&mut self, mut held: HeldPrefix) {
        for (_, slot) in held.states.drain(..) {
            self.groups[0].pool.states.release(slot);
        }
        // Release the last page first, so that the end of a prefix is evicted before its beginning.
        for (group, pages) in self.groups.iter_mut().zip(&mut held.tables) {
            while let Some(page) = pages.pop() {
                group.pool.release(page);
            }
        }
    }

    /// Drops the unused pages of a prefix, and the answers to prompts with its first page.
    pub(crate) fn forget_prefix(&mut self, tokens: &[u32], salt: u64) {
        let keys = self.keys_of(tokens, salt);
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
        let states = &self.pool().states;
        let mut windows = [None; PageGroup::ALL.len()];
        for (window, group) in windows.iter_mut().zip(&self.groups) {
            *window = group.limits.window;
        }
        longest_reuse(
            keys.len(),
            &windows[..self.groups.len()],
            |group_idx, page_idx| {
                let tokens = &tokens[page_idx * PAGE_TOKENS..(page_idx + 1) * PAGE_TOKENS];
                self.groups[group_idx].pool.find(keys[page_idx], tokens).is_some()
            },
            |page_idx| !states.is_used() || states.contains(keys[page_idx]),
        )
    }

    /// Returns the keys of the whole pages of `tokens`.
    fn keys_of(&self, tokens: &[u32], salt: u64) -> Vec<PageKey> {
        let naming = PageNaming {
            tokens,
            media: &[],
            salt,
            // Pages computed with adapters are not stored.
            adapter: None,
        };
        let mut keys = Vec::new();
        self.hasher.extend(&mut keys, &naming, tokens.len() / PAGE_TOKENS);
        keys
    }
}
