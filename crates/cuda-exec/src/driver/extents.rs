//! [`Extents`]: where the buffers of a device lie in its memory.
//!
//! Separate from the arena, which hands out memory of several buffers as one allocation of the driver, because only tools ask to which buffer
//! an address belongs. Invariant: an extent is in the table for as long as its memory is allocated.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// A buffer in the device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) address: u64,
    pub(super) n_bytes: usize,
    /// Type of its elements.
    pub(super) element: &'static str,
}

/// The extents of a device, by address.
#[derive(Debug, Default)]
pub(super) struct Extents(Mutex<BTreeMap<u64, Extent>>);

impl Extents {
    pub(super) fn add(&self, address: u64, n_bytes: usize, element: &'static str) {
        let extent = Extent {
            address,
            n_bytes,
            element,
        };
        self.table().insert(address, extent);
    }

    /// Removes the extents in memory that is freed.
    pub(super) fn remove(&self, address: u64, n_bytes: usize) {
        let freed = address..address + n_bytes as u64;
        let mut table = self.table();
        let starts: Vec<u64> = table.range(freed).map(|(&start, _)| start).collect();
        for start in starts {
            table.remove(&start);
        }
    }

    /// Finds the extent in which an address lies.
    pub(super) fn at(&self, address: u64) -> Option<Extent> {
        let table = self.table();
        let (_, extent) = table.range(..=address).next_back()?;
        (address - extent.address < extent.n_bytes as u64).then_some(*extent)
    }

    /// Lists the extents by address.
    pub(super) fn all(&self) -> Vec<Extent> {
        self.table().values().copied().collect()
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<u64, Extent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_buffer_around_it_until_that_is_freed() {
        let extents = Extents::default();
        extents.add(0x1000, 16, "f32");
        extents.add(0x1100, 8, "u8");
        let found = |address| extents.at(address).map(|extent| extent.element);
        assert_eq!(
            [0xfff, 0x1000, 0x100f, 0x1010].map(found),
            [None, Some("f32"), Some("f32"), None]
        );
        extents.remove(0x1000, 0x100);
        assert_eq!([0x1000, 0x1107].map(found), [None, Some("u8")]);
        assert_eq!(extents.all().len(), 1);
    }
}
