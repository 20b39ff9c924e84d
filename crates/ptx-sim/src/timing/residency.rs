//! [`Residency`]: the part of device memory that is still in the L2 cache when a launch begins.
//!
//! Separate from a launch because it outlives it. Kept by allocation: what was touched last stays, as far as what was touched
//! since leaves room. Invariant: an allocation that is larger than the cache is never in it.

use std::collections::HashMap;

use super::DeviceProfile;
use crate::DevicePtr;

/// The contents of the L2 cache after the launches so far.
#[derive(Clone, Debug, Default)]
pub struct Residency {
    /// Bytes brought into the cache so far.
    brought: u64,
    /// By address of the allocation: `brought` right after it was touched, and the bytes of it that are in the cache.
    touched: HashMap<DevicePtr, (u64, u64)>,
}

impl Residency {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of the allocation that starts at an address that are still in the cache.
    pub fn kept(&self, allocation: DevicePtr, device: &DeviceProfile) -> u64 {
        match self.touched.get(&allocation) {
            Some(&(when, kept)) if self.brought - when + kept <= device.l2_bytes => kept,
            _ => 0,
        }
    }

    /// Notes that a launch touched so many bytes of an allocation.
    pub fn touch(&mut self, allocation: DevicePtr, bytes: u64, device: &DeviceProfile) {
        let kept = self.kept(allocation, device);
        self.brought += bytes.saturating_sub(kept);
        let kept = if bytes <= device.l2_bytes {
            bytes.max(kept)
        } else {
            0
        };
        self.touched.insert(allocation, (self.brought, kept));
    }
}
