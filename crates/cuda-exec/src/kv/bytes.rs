//! Copies of a [`KvStore`]'s pages as bytes, to keep them outside of the device.
//!
//! They run on the streams for moves, so only a step that uses their pages waits for them. A page's bytes are those of its arrays, layer by
//! layer. Invariant: a page is read after the work and moves queued before that touch it, and written before those queued later.

use tokenmill_backend::KvType;

use super::{KvStore, moves::Way};
use crate::{Pinned, error::Result};

impl KvStore {
    /// Bytes of a page, all layers.
    pub fn bytes_of_page(&self) -> usize {
        self.page_bytes
    }

    /// Types of the stored keys and values.
    pub fn types(&self) -> [KvType; 2] {
        self.types
    }

    /// Queues copies of pages to the front of `staging`, one after the other. No copy to the device may use that memory at the time.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`](crate::CudaExecError::Bounds) for a page that does not exist, before
    /// anything is copied, and if `staging` has no room for all; or the driver's.
    pub fn read_pages(&mut self, pages: &[u32], staging: &mut Pinned<u8>) -> Result<()> {
        self.moves.stage(Way::ToHost, pages, staging)
    }

    /// Queues copies from the front of `staging` to pages, in the layout of [`Self::read_pages`]. No copy to the host may use that memory
    /// at the time.
    ///
    /// # Errors
    /// As [`Self::read_pages`].
    pub fn write_pages(&mut self, pages: &[u32], staging: &mut Pinned<u8>) -> Result<()> {
        self.moves.stage(Way::ToDevice, pages, staging)
    }
}

#[cfg(test)]
mod tests {
    use tokenmill_backend::PageCopy;
    use tokenmill_sim_driver::{SimOptions, Simulator};

    use super::*;
    use crate::{
        driver::simulated,
        kv::tests::{alike, fill, layout, read},
    };

    #[test]
    fn pages_are_the_same_after_a_way_through_bytes() {
        for types in [[KvType::F16; 2], [KvType::F32; 2]] {
            let device = simulated(&Simulator::new(&SimOptions::default()));
            let mut store = KvStore::new(&device, &layout(types, 6, 0)).unwrap();
            fill(&device, &mut store, 1, 7);
            fill(&device, &mut store, 3, 11);
            let mut staging = device.alloc_pinned(2 * store.bytes_of_page()).unwrap();
            store
                .copy_pages(&[PageCopy::Duplicate { from: 1, to: 2 }])
                .unwrap();
            store.read_pages(&[2, 3], &mut staging).unwrap();
            let expected = [1, 3].map(|page| read(&device, &mut store, page));
            assert_eq!(staging.host().unwrap(), expected.concat());
            store.write_pages(&[4, 1], &mut staging).unwrap();
            assert_eq!(read(&device, &mut store, 4), expected[0]);
            assert_eq!(read(&device, &mut store, 1), expected[1]);
            assert!(store.read_pages(&[1, 6], &mut staging).is_err());
            assert!(store.write_pages(&[6], &mut staging).is_err());
            assert!(
                store.read_pages(&[1, 2, 3], &mut staging).is_err(),
                "there is room for two"
            );
        }
    }

    #[test]
    fn bytes_of_a_page_of_layers_that_are_alike_are_one_copy_that_no_other_work_is_run_for() {
        for n_host_pages in [0, 4] {
            let simulator = Simulator::new(&SimOptions::default());
            let device = simulated(&simulator);
            let ops = crate::Ops::load(&device).unwrap();
            let floats = device.upload("x", &[1f32; 32]).unwrap();
            let mut rows = crate::QuantizedRows::new(&device, 1, 32).unwrap();
            let mut store = KvStore::new(&device, &alike(8, 6, n_host_pages)).unwrap();
            fill(&device, &mut store, 1, 7);
            fill(&device, &mut store, 2, 11);
            let expected = [1, 2].map(|page| read(&device, &mut store, page));
            let mut staging = device.alloc_pinned(2 * store.bytes_of_page()).unwrap();
            store.read_pages(&[2], &mut staging).unwrap();
            // This step uses other pages.
            store.await_pages(&[3]).unwrap();
            ops.quantize(1, 32, floats.view(), rows.view_mut()).unwrap();
            let (copies, events) = (simulator.copy_counts(), simulator.n_recorded());
            store.read_pages(&[1, 2], &mut staging).unwrap();
            assert_eq!(simulator.copy_counts(), (copies.0, copies.1 + 2));
            // One event after the copies, and the event of the host's memory.
            assert_eq!(simulator.n_recorded() - events, 2);
            assert_eq!(staging.host().unwrap(), expected.concat());
            assert!(simulator.counters().is_empty(), "the step was not waited for");
            store.write_pages(&[4, 5], &mut staging).unwrap();
            assert_eq!(simulator.copy_counts(), (copies.0 + 2, copies.1 + 2));
            assert_eq!(read(&device, &mut store, 5), expected[1]);
            assert_eq!(read(&device, &mut store, 4), expected[0]);
            assert_eq!(simulator.counters().len(), 1);
            // This step uses the page.
            store.await_pages(&[1]).unwrap();
            ops.quantize(1, 32, floats.view(), rows.view_mut()).unwrap();
            store.read_pages(&[1], &mut staging).unwrap();
            staging.host().unwrap();
            let n_run = simulator.counters().values().map(|(n, _)| n).sum::<u64>();
            assert_eq!(n_run, 2);
        }
    }
}
