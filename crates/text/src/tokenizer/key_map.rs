//! [`KeyMap`]: token bytes to token id.
//!
//! Every model looks tokens up by stretches of text, millions of times a second. Invariant: all keys are in one
//! buffer, a look-up allocates nothing, and the hash is seeded per process, so that no vocabulary file can force
//! collisions.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// Token bytes to token id.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyMap {
    bytes: Vec<u8>,
    entries: HashTable<Entry>,
    hasher: RandomState,
    /// Length of the longest key.
    max_len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: u32,
    n_bytes: u32,
    id: u32,
}

impl KeyMap {
    pub(crate) fn with_capacity(n_keys: usize) -> Self {
        Self {
            entries: HashTable::with_capacity(n_keys),
            ..Self::default()
        }
    }

    /// Adds a key; returns the id it already has, if it has one.
    pub(crate) fn insert(&mut self, key: &[u8], id: u32) -> Option<u32> {
        if let Some(known) = self.get(key) {
            return Some(known);
        }
        let entry = Entry {
            start: self.bytes.len() as u32,
            n_bytes: key.len() as u32,
            id,
        };
        self.bytes.extend_from_slice(key);
        self.max_len = self.max_len.max(key.len());
        let Self { bytes, hasher, .. } = self;
        self.entries.insert_unique(hasher.hash_one(key), entry, |entry| {
            hasher.hash_one(entry.key(bytes))
        });
        None
    }

    /// Returns the id of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Option<u32> {
        if key.len() > self.max_len {
            return None;
        }
        self.entries
            .find(self.hasher.hash_one(key), |entry| entry.key(&self.bytes) == key)
            .map(|entry| entry.id)
    }

    /// Returns the length of the longest key in bytes.
    pub(crate) fn max_len(&self) -> usize {
        self.max_len
    }

    /// Lists all keys with their ids, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], u32)> {
        self.entries
            .iter()
            .map(|entry| (entry.key(&self.bytes), entry.id))
    }
}

impl Entry {
    fn key(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start as usize..][..self.n_bytes as usize]
    }
}
