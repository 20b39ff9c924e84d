//! [`Ghosts`]: the names of pages that are gone.
//!
//! Separate from the pool, which holds none of them: they only tell why a prompt was not found. Invariant: a bounded number of keys is
//! kept.

use std::collections::{HashSet, VecDeque};

use crate::prefix::PageKey;

/// Keys that were evicted not long ago, to tell a cache that is too small from a prompt never seen.
#[derive(Debug)]
pub(crate) struct Ghosts {
    keys: HashSet<PageKey>,
    order: VecDeque<PageKey>,
    capacity: usize,
}

impl Ghosts {
    /// Nothing yet, of at most `capacity` keys.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            // One key more than `capacity` stays until the oldest is removed, and removed keys take as much room again. Nothing grows in a
            // step.
            keys: HashSet::with_capacity(2 * (capacity + 1)),
            order: VecDeque::with_capacity(capacity + 1),
            capacity,
        }
    }

    pub(crate) fn contains(&self, key: PageKey) -> bool {
        self.keys.contains(&key)
    }

    pub(crate) fn insert(&mut self, key: PageKey) {
        if self.keys.insert(key) {
            self.order.push_back(key);
        }
        while self.order.len() > self.capacity {
            if let Some(oldest) = self.order.pop_front() {
                self.keys.remove(&oldest);
            }
        }
    }

    pub(crate) fn remove(&mut self, key: PageKey) {
        // Its entry in `order` ages out; at worst a later ghost of the same key is forgotten early.
        self.keys.remove(&key);
    }
}
