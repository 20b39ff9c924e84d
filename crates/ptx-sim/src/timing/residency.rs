//! [`Residency`]: the device memory in the L2 cache when a launch begins, and the code in a multiprocessor's cache.
//!
//! It outlives launches. Device memory is tracked by allocation, code by kernel, the most recent first. Invariant: an allocation or a
//! kernel that is larger than its cache is never in it.

use std::{collections::HashMap, hash::Hash};

use super::{Assembled, DeviceProfile};
use crate::{DevicePtr, Kernel};

/// The contents of L2 and of a cache of code after the launches so far.
#[derive(Clone, Debug, Default)]
pub struct Residency {
    /// By address of the allocation.
    memory: Recent<DevicePtr>,
    code: Recent<u64>,
}

/// Tracks the contents of a cache.
#[derive(Clone, Debug)]
struct Recent<K> {
    /// Bytes brought into the cache so far.
    brought: u64,
    /// For each allocation or kernel, `brought` right after it was used, and the bytes of it that are in the cache.
    touched: HashMap<K, (u64, u64)>,
}

impl<K> Default for Recent<K> {
    fn default() -> Self {
        Self {
            brought: 0,
            touched: HashMap::new(),
        }
    }
}

impl<K: Copy + Eq + Hash> Recent<K> {
    fn kept(&self, key: K, capacity: u64) -> u64 {
        match self.touched.get(&key) {
            Some(&(when, kept)) if self.brought - when + kept <= capacity => kept,
            _ => 0,
        }
    }

    fn touch(&mut self, key: K, bytes: u64, capacity: u64) {
        let kept = self.kept(key, capacity);
        self.brought += bytes.saturating_sub(kept);
        let kept = if bytes <= capacity { bytes.max(kept) } else { 0 };
        self.touched.insert(key, (self.brought, kept));
    }
}

impl Residency {
    /// Creates empty caches.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of the allocation that starts at an address that are still in the cache.
    pub fn kept(&self, allocation: DevicePtr, device: &DeviceProfile) -> u64 {
        self.memory.kept(allocation, device.l2_bytes)
    }

    /// Notes that a launch touched so many bytes of an allocation.
    pub fn touch(&mut self, allocation: DevicePtr, bytes: u64, device: &DeviceProfile) {
        self.memory.touch(allocation, bytes, device.l2_bytes);
    }

    /// Returns the bytes of a kernel's code that are not in a multiprocessor's cache: all or none.
    pub fn cold_code_bytes(&self, kernel: &Kernel, assembled: &Assembled, device: &DeviceProfile) -> u32 {
        let key = assembled.key(kernel);
        match self.code.kept(key, device.code_cache_bytes) {
            0 => assembled.code_bytes,
            _ => 0,
        }
    }

    /// Notes that a kernel ran.
    pub fn run(&mut self, kernel: &Kernel, assembled: &Assembled, device: &DeviceProfile) {
        let key = assembled.key(kernel);
        (self.code).touch(key, assembled.code_bytes.into(), device.code_cache_bytes);
    }
}
