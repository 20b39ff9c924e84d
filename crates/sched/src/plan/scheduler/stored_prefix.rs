//! The prefix that a page store has of a prompt, and the pages that it could keep.
//!
//! Part of [`Scheduler`]; only integers, while the engine's core moves the bytes. Invariant: keys are made with
//! the store's secret from before the first page on.

use tokenmill_backend::{PAGE_TOKENS, PageGroup};

use crate::{
    arena::SeqId,
    pages::{
        key::{PageKey, PrefixHasher},
        pool::LeavingPage,
    },
    plan::{
        scheduler::{Scheduler, held_prefix::IsStored},
        sequence::SeqSpec,
    },
};

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
        is_stored: IsStored<'_>,
    ) -> Option<(Vec<PageKey>, PageKey)> {
        let n_pages = spec.work.n_reusable(spec.tokens.len()) / PAGE_TOKENS;
        let mut keys = Vec::with_capacity(n_pages);
        self.hasher.extend(&mut keys, &spec.naming(), n_pages);
        let cached = self.longest_cached(&keys, &spec.tokens);
        let reuse = self.longest_prefix(&keys, &spec.tokens, is_stored);
        if reuse.n_pages <= cached.n_pages {
            return None;
        }
        keys.truncate(reuse.n_pages);
        let first_missing = keys[cached.n_pages];
        Some((keys, first_missing))
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
