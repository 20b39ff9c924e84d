//! [`StatePool`]: tracks the holders of each slot of recurrent state, and the snapshots that can be found
//! again.
//!
//! Unlike pages, a state has a fixed size and one writer: a sequence owns the slot that it writes, and
//! continues from a snapshot by reading another. Every slot is in exactly one state:
//!
//! | state | references | has a key | where |
//! |---|---|---|---|
//! | free | 0 | no | `free` |
//! | owned, or being filled | 1 | no | its sequence |
//! | snapshot that is read | 1 or more | perhaps | sequences that begin from it |
//! | snapshot | 0 | yes | `idle`, oldest first |
//!
//! A snapshot has the key of the page that ends where it was taken; it is dropped with the page. Invariant: a
//! slot with references is never allocated again, so no snapshot is overwritten while it is read.

use std::collections::{HashMap, hash_map::Entry};

use crate::pages::{key::PageKey, lru::LruList};

/// Tokens between snapshots of a long prompt.
pub(crate) const SNAPSHOT_INTERVAL: usize = 512;

/// Counts slots and keeps snapshots.
#[derive(Debug)]
pub(crate) struct StatePool {
    slots: Vec<Slot>,
    free: Vec<u32>,
    idle: LruList,
    index: HashMap<PageKey, u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    n_refs: u32,
    key: Option<PageKey>,
}

impl StatePool {
    /// Creates a pool of free slots; none for a model without recurrent layers.
    pub(crate) fn new(n_states: usize) -> Self {
        Self {
            slots: vec![Slot::default(); n_states],
            free: (0..n_states as u32).rev().collect(),
            idle: LruList::new(n_states),
            index: HashMap::new(),
        }
    }

    /// Returns whether the model has recurrent layers.
    pub(crate) fn is_used(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Returns the number of slots that can be allocated: free ones, and snapshots that no sequence reads.
    pub(crate) fn n_available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    /// Returns the number of snapshots that can be found.
    pub(crate) fn n_snapshots(&self) -> usize {
        self.index.len()
    }

    /// Allocates a slot with one reference, evicting the least recently used snapshot if none is free.
    pub(crate) fn allocate(&mut self) -> Option<u32> {
        let slot = self.free.pop().or_else(|| {
            let slot = self.idle.pop()?;
            let key = self.slots[slot as usize].key.take();
            self.index.remove(&key.expect("an idle slot is a snapshot"));
            Some(slot)
        })?;
        self.slots[slot as usize].n_refs = 1;
        Some(slot)
    }

    /// Removes a reference; the last one leaves a findable snapshot or a free slot.
    pub(crate) fn release(&mut self, slot: u32) {
        let entry = &mut self.slots[slot as usize];
        entry.n_refs = entry.n_refs.checked_sub(1).expect("a released slot was held");
        match (entry.n_refs, entry.key) {
            (0, Some(_)) => self.idle.push(slot),
            (0, None) => self.free.push(slot),
            _ => {}
        }
    }

    /// Makes a slot that a step has filled a findable snapshot, and takes over its sequence's reference.
    pub(crate) fn register(&mut self, slot: u32, key: PageKey) {
        if let Entry::Vacant(vacant) = self.index.entry(key) {
            vacant.insert(slot);
            self.slots[slot as usize].key = Some(key);
        }
        self.release(slot);
    }

    /// Returns whether there is a snapshot at the end of the page with this key.
    pub(crate) fn contains(&self, key: PageKey) -> bool {
        self.index.contains_key(&key)
    }

    /// Returns the slot of the snapshot at the end of the page with this key.
    pub(crate) fn slot_of(&self, key: PageKey) -> Option<u32> {
        self.index.get(&key).copied()
    }

    /// Returns whether reading the snapshot leaves one slot fewer to allocate.
    pub(crate) fn is_idle(&self, key: PageKey) -> bool {
        (self.index.get(&key)).is_some_and(|&slot| self.idle.contains(slot))
    }

    /// Takes a reference to a snapshot, which [`Self::contains`] has just found.
    pub(crate) fn retain(&mut self, key: PageKey) -> u32 {
        let slot = self.index[&key];
        self.idle.remove(slot);
        self.slots[slot as usize].n_refs += 1;
        slot
    }

    /// Makes a snapshot unfindable, because its page is gone or its contents are invalid.
    pub(crate) fn forget(&mut self, key: PageKey) {
        let Some(slot) = self.index.remove(&key) else {
            return;
        };
        self.slots[slot as usize].key = None;
        if self.idle.remove(slot) {
            self.free.push(slot);
        }
    }

    /// Makes all snapshots unfindable.
    pub(crate) fn forget_all(&mut self) {
        let keys: Vec<PageKey> = self.index.keys().copied().collect();
        for key in keys {
            self.forget(key);
        }
    }

    /// Checks every invariant against the slots that sequences hold.
    ///
    /// # Panics
    /// If a slot is lost, held twice by mistake, or both held and free.
    pub(crate) fn assert_consistent(&self, held: impl IntoIterator<Item = u32>) {
        let mut n_refs = vec![0; self.slots.len()];
        for slot in held {
            n_refs[slot as usize] += 1;
        }
        let mut is_free = vec![false; self.slots.len()];
        for &slot in &self.free {
            assert!(
                !std::mem::replace(&mut is_free[slot as usize], true),
                "state {slot} is free twice"
            );
        }
        for (slot, entry) in (0..).zip(&self.slots) {
            assert_eq!(entry.n_refs, n_refs[slot as usize], "references to state {slot}");
            let is_idle = entry.n_refs == 0 && entry.key.is_some();
            assert_eq!(self.idle.contains(slot), is_idle, "state {slot} idle");
            assert_eq!(
                is_free[slot as usize],
                entry.n_refs == 0 && !is_idle,
                "state {slot} free"
            );
            if let Some(key) = entry.key {
                assert_eq!(self.index[&key], slot, "key of state {slot}");
            }
        }
        let n_keys = self.slots.iter().filter(|entry| entry.key.is_some()).count();
        assert_eq!(self.index.len(), n_keys, "snapshots in the index");
    }
}
