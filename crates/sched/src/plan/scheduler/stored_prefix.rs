//! [`StoredPrefix`]: a prefix of which a store outside of the engine has pages, and the places for them.
//!
//! Part of [`Scheduler`]; no sequence is involved. Invariant: fetched pages can be found only when they are
//! complete.

use tokenmill_backend::{MemoryPlace, PAGE_TOKENS, PageGroup};

use crate::{
    arena::SeqId,
    pages::{
        key::{PageKey, PageNaming, PrefixHasher, Reuse, longest_reuse},
        pool::{Hit, LeavingPage},
        store::{KeptKind, KeptName, KeptPage},
    },
    plan::{
        scheduler::{Scheduler, held_prefix::HeldPrefix},
        sequence::SeqSpec,
    },
};

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

impl Scheduler {
    /// Derives page names from these numbers from now on, and records pages that no sequence uses. There must
    /// be no pages yet.
    pub(crate) fn name_pages_with(&mut self, secret: [u64; 4]) {
        self.hasher = PrefixHasher::with_secret(secret, self.config.model_salt);
        for group in &mut self.groups {
            group.pool.note_leaving();
        }
    }

    /// Returns the keys of the longest prefix of a sequence's tokens that cache and store hold together, and
    /// the first key missing from the cache; `None` if the store has nothing to add.
    pub(crate) fn stored_prefix_keys(
        &self,
        spec: &SeqSpec,
        is_cached: bool,
        contains: &dyn Fn(KeptName) -> bool,
    ) -> Option<(Vec<PageKey>, PageKey)> {
        if !is_cached {
            return None;
        }
        let naming = PageNaming {
            tokens: &spec.tokens,
            media: &spec.media,
            salt: spec.salt,
            adapter: spec.adapter,
        };
        let n_pages = spec.work.n_reusable(spec.tokens.len()) / PAGE_TOKENS;
        let mut keys = Vec::with_capacity(n_pages);
        self.hasher.extend(&mut keys, &naming, n_pages);
        let cached = self.longest_cached(&keys, &spec.tokens);
        let reuse = self.longest_stored(&keys, &spec.tokens, contains);
        if reuse.n_pages <= cached.n_pages {
            return None;
        }
        keys.truncate(reuse.n_pages);
        let first_missing = keys[cached.n_pages];
        Some((keys, first_missing))
    }

    fn longest_stored(&self, keys: &[PageKey], tokens: &[u32], contains: &dyn Fn(KeptName) -> bool) -> Reuse {
        let states = &self.pool().states;
        let windows: Vec<_> = self.groups.iter().map(|group| group.limits.window).collect();
        longest_reuse(
            keys.len(),
            &windows,
            |group_idx, page_idx| {
                let (key, kind) = (keys[page_idx], KeptKind::Page(PageGroup::ALL[group_idx]));
                let tokens = &tokens[page_idx * PAGE_TOKENS..(page_idx + 1) * PAGE_TOKENS];
                self.groups[group_idx].pool.find(key, tokens).is_some() || contains(KeptName { key, kind })
            },
            |page_idx| {
                let (key, kind) = (keys[page_idx], KeptKind::State);
                !states.is_used() || states.contains(key) || contains(KeptName { key, kind })
            },
        )
    }

    /// Pins the cached part of a prefix with these keys, and reserves memory for the rest by evicting the
    /// pages idle longest; `None` if there is no room. One page per running sequence stays available.
    pub(crate) fn reserve_stored(
        &mut self,
        spec: &SeqSpec,
        keys: Vec<PageKey>,
        contains: &dyn Fn(KeptName) -> bool,
    ) -> Option<StoredPrefix> {
        let reuse = self.longest_stored(&keys, &spec.tokens, contains);
        let tokens_of = |page_idx: usize| {
            let tokens = &spec.tokens[page_idx * PAGE_TOKENS..(page_idx + 1) * PAGE_TOKENS];
            <[u32; PAGE_TOKENS]>::try_from(tokens).expect("a whole page")
        };
        let last = reuse.n_pages.checked_sub(1)?;
        let lacks_state = {
            let states = &self.pool().states;
            let lacks = states.is_used() && !states.contains(keys[last]);
            if lacks && states.n_available() == 0 {
                return None;
            }
            lacks
        };
        for (group, first_page) in self.groups.iter().zip(reuse.first_pages) {
            let is_free =
                |&page_idx: &usize| group.pool.find(keys[page_idx], &tokens_of(page_idx)) == Some(Hit::InUse);
            let n_needed = (first_page..reuse.n_pages)
                .filter(|page_idx| !is_free(page_idx))
                .count();
            if n_needed + self.running.len() > group.pool.n_available() {
                return None;
            }
        }
        let mut wanted_at = Vec::new();
        let mut tables: [Vec<u32>; PageGroup::ALL.len()] = Default::default();
        let groups = PageGroup::ALL.into_iter().zip(&mut self.groups).zip(&mut tables);
        for (((group, pool), pages), first_page) in groups
            .map(|((group, of_group), pages)| ((group, &mut of_group.pool), pages))
            .zip(reuse.first_pages)
        {
            let is_found: Vec<bool> = (first_page..reuse.n_pages)
                .map(|page_idx| pool.find(keys[page_idx], &tokens_of(page_idx)).is_some())
                .collect();
            // Pin the cached pages first, so that they are not evicted to make room.
            let found: Vec<PageKey> = (keys[first_page..].iter().zip(&is_found))
                .filter_map(|(&key, &is_found)| is_found.then_some(key))
                .collect();
            let mut held = Vec::new();
            pool.take_cached(&found, &mut held);
            let mut held = held.into_iter();
            for (page_idx, is_found) in (first_page..reuse.n_pages).zip(is_found) {
                let page = if is_found { held.next() } else { pool.allocate() };
                let page = page.expect("the pages were counted before");
                pages.push(page);
                if !is_found {
                    wanted_at.push((page_idx, KeptKind::Page(group), MemoryPlace::Page { group, page }));
                }
            }
        }
        wanted_at.sort_by_key(|&(page_idx, ..)| page_idx);
        let mut states = Vec::new();
        if lacks_state {
            let slot = (self.groups[0].pool.states.allocate()).expect("a slot was available");
            states.push((reuse.n_pages, slot));
            wanted_at.push((last, KeptKind::State, MemoryPlace::State { slot }));
        }
        let wanted = (wanted_at.iter()).map(|&(page_idx, kind, _)| KeptPage {
            name: KeptName {
                key: keys[page_idx],
                kind,
            },
            tokens: tokens_of(page_idx),
            bytes: Vec::new(),
        });
        Some(StoredPrefix {
            wanted: wanted.collect(),
            places: (wanted_at.iter())
                .map(|&(page_idx, _, place)| (page_idx, place))
                .collect(),
            prefix: HeldPrefix {
                tokens: spec.tokens[..reuse.n_pages * PAGE_TOKENS].to_vec(),
                salt: spec.salt,
                adapter: spec.adapter,
                keys,
                reuse,
                tables,
                states,
            },
        })
    }

    /// Publishes the first `n_pages` pages of a prefix, and releases the others.
    pub(crate) fn publish_part(&mut self, mut held: HeldPrefix, n_pages: usize) {
        if n_pages < held.reuse.n_pages {
            let first_pages = held.reuse.first_pages;
            for ((group, pages), first_page) in self.groups.iter_mut().zip(&mut held.tables).zip(first_pages)
            {
                let n_kept = n_pages.saturating_sub(first_page).min(pages.len());
                for page in pages.drain(n_kept..).rev() {
                    group.pool.release(page);
                }
            }
            for (_, slot) in held.states.drain(..) {
                self.groups[0].pool.states.release(slot);
            }
        }
        self.publish_prefix(held);
    }

    /// Lists the pages of an ending sequence that have left its window but would be visible to a prompt that
    /// continues after its last whole page.
    pub(crate) fn list_left_pages(&mut self, id: SeqId) {
        let sequence = &self.sequences[id];
        for group in &mut self.groups {
            let n_whole = sequence.n_registered;
            let first_left = group.first_visible_page(n_whole * PAGE_TOKENS);
            let n_left = group.first_visible_page(sequence.n_committed).min(n_whole);
            for &key in sequence.page_keys.get(first_left..n_left).unwrap_or_default() {
                group.pool.list_left(key);
            }
        }
    }

    /// Returns whether [`Self::next_leaving`] may have a page.
    pub(crate) fn has_leaving(&self) -> bool {
        self.groups.iter().any(|group| group.pool.has_leaving())
    }

    /// Returns a page of a group that no sequence uses.
    pub(crate) fn next_leaving(&mut self, group: PageGroup) -> Option<LeavingPage> {
        self.groups.get_mut(group.index())?.pool.next_leaving()
    }

    /// Lists a page again.
    pub(crate) fn list_leaving(&mut self, group: PageGroup, page: u32) {
        self.groups[group.index()].pool.list_leaving(page);
    }

    /// Returns the evicted pages of a group.
    pub(crate) fn take_evicted(&mut self, group: PageGroup) -> Vec<LeavingPage> {
        let group = self.groups.get_mut(group.index());
        group.map_or_else(Vec::new, |group| group.pool.take_evicted())
    }
}
