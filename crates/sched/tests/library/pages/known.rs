//! [`KnownPages`]: a reader of page events, and its knowledge of the prefix cache.

use std::collections::{BTreeSet, HashMap};

use crate::{
    engine::core::Core,
    pages::{
        events::{PageEvent, PageEvents, PageTier},
        key::PageKey,
    },
};

/// The knowledge of a reader of page events.
#[derive(Debug, Default)]
pub(crate) struct KnownPages {
    pages: BTreeSet<(usize, u64, PageTier)>,
    /// All keys of any event so far.
    keys: HashMap<u64, PageKey>,
    n_times_behind: u64,
}

impl KnownPages {
    /// Returns how often it had fallen behind.
    pub(crate) fn n_times_behind(&self) -> u64 {
        self.n_times_behind
    }

    /// Takes all waiting events and compares the result with the pools.
    pub(crate) fn check(&mut self, events: &mut PageEvents, core: &Core) {
        let waiting: Vec<PageEvent> = std::iter::from_fn(|| events.try_next()).flatten().collect();
        for event in &waiting {
            match *event {
                PageEvent::Stored(page) => {
                    let hasher = core.scheduler().hasher();
                    let parent = match page.parent {
                        Some(parent) => self.keys.get(&parent).copied(),
                        None => Some(hasher.root(page.salt, page.adapter)),
                    };
                    // The key of a page cannot be computed if its parent was never reported.
                    if let Some(parent) = parent {
                        let key = hasher.next_with_media(parent, &page.tokens, 0, &[]);
                        assert_eq!(page.key, key.low_bits(), "{page:?}");
                        self.keys.insert(page.key, key);
                    }
                    let is_new = self.pages.insert((page.group.index(), page.key, page.tier));
                    assert!(is_new, "{page:?} is stored once");
                }
                PageEvent::Removed { key, group, tier } => {
                    assert!(
                        self.pages.remove(&(group.index(), key, tier)),
                        "{key:?} was there"
                    );
                }
                PageEvent::Cleared => self.pages.clear(),
            }
        }
        // It fell behind, and is told all pages after the next step.
        if waiting.last() == Some(&PageEvent::Cleared) {
            self.n_times_behind += 1;
            return;
        }
        let pools = [Some(core.scheduler().pool()), core.scheduler().window_pool()];
        let pools = pools.into_iter().flatten().enumerate();
        let cached = pools.flat_map(|(group, pool)| {
            pool.cached()
                .map(move |(key, tier)| (group, key.low_bits(), tier))
        });
        assert_eq!(
            self.pages,
            cached.collect(),
            "a reader knows the pages that can be found"
        );
    }
}
