//! [`Ghosts`]: the keys of evicted pages.
//!
//! The pool no longer holds these pages; their keys only explain why a prompt was not found. Invariant: the
//! number of keys is bounded.

use std::collections::{HashSet, VecDeque};

use crate::pages::key::PageKey;

/// Recently evicted keys, which distinguish a cache that is too small from a prompt never seen.
#[derive(Debug)]
pub(crate) struct Ghosts {
    keys: HashSet<PageKey>,
    order: VecDeque<PageKey>,
    capacity: usize,
}

impl Ghosts {
    /// Creates an empty set of at most `capacity` keys.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            // One key more than `capacity` exists until the oldest is removed, and removed keys take up as
            // much room again. With this capacity nothing grows during a step.
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
