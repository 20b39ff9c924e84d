//! [`Extents`]: the addresses of a device's buffers.
//!
//! The arena allocates several buffers as one allocation of the driver; only tools need to know to which buffer an address belongs, so a device
//! that records nothing has no table. Invariant: an extent is in the table for as long as its memory is allocated, and its number is never
//! reused.

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
    /// Distinguishes it from earlier buffers at the same address.
    number: u64,
}

/// The extents of a device, by address.
#[derive(Debug, Default)]
pub(super) struct Extents(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    by_address: BTreeMap<u64, Extent>,
    n_added: u64,
}

impl Extents {
    pub(super) fn add(&self, address: u64, n_bytes: usize, element: &'static str) {
        let mut table = self.table();
        table.n_added += 1;
        let extent = Extent {
            address,
            n_bytes,
            element,
            number: table.n_added,
        };
        table.by_address.insert(address, extent);
    }

    /// Removes the extents in memory that is freed.
    pub(super) fn remove(&self, address: u64, n_bytes: usize) {
        let freed = address..address + n_bytes as u64;
        let mut table = self.table();
        let starts: Vec<u64> = (table.by_address.range(freed)).map(|(&start, _)| start).collect();
        for start in starts {
            table.by_address.remove(&start);
        }
    }

    /// Finds the extent that contains an address.
    pub(super) fn at(&self, address: u64) -> Option<Extent> {
        let table = self.table();
        let (_, extent) = table.by_address.range(..=address).next_back()?;
        (address - extent.address < extent.n_bytes as u64).then_some(*extent)
    }

    /// Returns whether the memory of an extent is still allocated.
    pub(super) fn has(&self, extent: &Extent) -> bool {
        self.table().by_address.get(&extent.address) == Some(extent)
    }

    /// Lists the extents by address.
    pub(super) fn all(&self) -> Vec<Extent> {
        self.table().by_address.values().copied().collect()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
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
        let first = extents.at(0x1000).unwrap();
        extents.remove(0x1000, 0x100);
        assert_eq!([0x1000, 0x1107].map(found), [None, Some("u8")]);
        assert_eq!(extents.all().len(), 1);
        // Another buffer at the same address is not the one that was freed.
        extents.add(0x1000, 16, "f32");
        assert!(!extents.has(&first) && extents.has(&extents.at(0x1000).unwrap()));
    }
}
