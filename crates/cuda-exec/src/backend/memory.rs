//! The memory of sequences as bytes.
//!
//! Pages are copied on the streams for moves, in groups that fit one of two buffers: while the device fills one, the host copies the
//! other. States are written by every step, so they are copied on the compute stream. Invariant: a reader has waited for the copies, and
//! a buffer is reused only after its copies are done.

use tokenmill_backend::{
    BackendError, KvStores, KvType, MemoryFormat, MemoryPlace, PageGroup, SequenceMemory,
};

use super::CudaBackend;
use crate::{Pinned, error::Result};

/// Names the layout of pages and states, from [`crate::KvStore`] and [`crate::StateSlots`].
const ARRANGEMENT: &str = "cuda-1";

const KV_ALLOCATED: &str = "the KV store was allocated at load";
const STATES_ALLOCATED: &str = "a state in range is allocated";
const STAGING_MADE: &str = "it was just made";

/// Bytes of a page buffer, unless a single page is larger.
const BUFFER_BYTES: usize = 1 << 20;

/// Pinned memory for pages and for one state.
pub(super) struct Staging {
    pages: [Pinned<u8>; 2],
    /// The buffer that is filled next.
    turn: usize,
    state: Pinned<f32>,
}

impl Staging {
    /// Returns the next buffer, after waiting for the copies that use it.
    fn free_buffer(&mut self) -> Result<&mut Pinned<u8>> {
        let buffer = &mut self.pages[self.turn];
        self.turn = 1 - self.turn;
        buffer.host()?;
        Ok(buffer)
    }

    /// Returns the pages in a buffer after their copies are done.
    fn give(
        &mut self,
        place: usize,
        page_bytes: usize,
        n_pages: usize,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let bytes = &self.pages[place].host()?[..n_pages * page_bytes];
        bytes.chunks_exact(page_bytes).for_each(take);
        Ok(())
    }
}

/// Returns the pages of places that all belong to one group.
fn pages_of(places: impl Iterator<Item = MemoryPlace>) -> Vec<u32> {
    places
        .filter_map(|place| match place {
            MemoryPlace::Page { page, .. } => Some(page),
            MemoryPlace::State { .. } => None,
        })
        .collect()
}

/// Returns whether two places are in one store.
fn are_alike(a: MemoryPlace, b: MemoryPlace) -> bool {
    match (a, b) {
        (MemoryPlace::Page { group: a, .. }, MemoryPlace::Page { group: b, .. }) => a == b,
        _ => false,
    }
}

impl CudaBackend {
    fn prepare_staging(&mut self) -> Result<()> {
        if self.staging.is_none() {
            let stores = self.kv.iter().flat_map(KvStores::iter);
            let page_bytes = stores.map(|(_, store)| store.bytes_of_page()).max();
            let state_len = self.states.as_ref().map_or(0, crate::StateSlots::len_of_slot);
            let buffer = || {
                self.device
                    .alloc_pinned(page_bytes.unwrap_or(0).max(BUFFER_BYTES))
            };
            self.staging = Some(Staging {
                pages: [buffer()?, buffer()?],
                turn: 0,
                state: self.device.alloc_pinned(state_len)?,
            });
        }
        Ok(())
    }

    fn read_pages(&mut self, group: PageGroup, pages: &[u32], take: &mut dyn FnMut(&[u8])) -> Result<()> {
        let store = (self.kv.as_mut().expect(KV_ALLOCATED)).group_mut(group);
        let staging = self.staging.as_mut().expect(STAGING_MADE);
        let page_bytes = store.bytes_of_page();
        // This copy is still running in the other buffer.
        let mut earlier: Option<(usize, usize)> = None;
        for run in pages.chunks((BUFFER_BYTES / page_bytes).max(1)) {
            let place = staging.turn;
            store.read_pages(run, staging.free_buffer()?)?;
            if let Some((place, n_pages)) = earlier.replace((place, run.len())) {
                staging.give(place, page_bytes, n_pages, take)?;
            }
        }
        match earlier {
            Some((place, n_pages)) => staging.give(place, page_bytes, n_pages, take),
            None => Ok(()),
        }
    }

    fn write_pages(&mut self, group: PageGroup, contents: &[(MemoryPlace, &[u8])]) -> Result<()> {
        let store = (self.kv.as_mut().expect(KV_ALLOCATED)).group_mut(group);
        let staging = self.staging.as_mut().expect(STAGING_MADE);
        let page_bytes = store.bytes_of_page();
        for run in contents.chunks((BUFFER_BYTES / page_bytes).max(1)) {
            let buffer = staging.free_buffer()?;
            for (place, (_, bytes)) in buffer.host()?.chunks_exact_mut(page_bytes).zip(run) {
                place.copy_from_slice(bytes);
            }
            store.write_pages(&pages_of(run.iter().map(|&(place, _)| place)), buffer)?;
        }
        Ok(())
    }
}

impl SequenceMemory for CudaBackend {
    fn memory_format(&self) -> Option<MemoryFormat> {
        let stores = self.kv.as_ref()?;
        let mut page_bytes = [0; PageGroup::ALL.len()];
        let mut types = [KvType::default(); 2];
        for (group, store) in stores.iter() {
            page_bytes[group.index()] = store.bytes_of_page();
            types = store.types();
        }
        let state_len = self.states.as_ref().map_or(0, crate::StateSlots::len_of_slot);
        Some(MemoryFormat {
            arrangement: ARRANGEMENT,
            key_type: types[0],
            value_type: types[1],
            page_bytes,
            state_bytes: state_len * size_of::<f32>(),
        })
    }

    fn read_memory(
        &mut self,
        places: &[MemoryPlace],
        take: &mut dyn FnMut(&[u8]),
    ) -> std::result::Result<(), BackendError> {
        self.prepare_staging()?;
        for run in places.chunk_by(|&a, &b| are_alike(a, b)) {
            match run[0] {
                MemoryPlace::Page { group, .. } => {
                    self.read_pages(group, &pages_of(run.iter().copied()), take)?;
                }
                MemoryPlace::State { slot } => {
                    let staging = self.staging.as_mut().expect(STAGING_MADE);
                    let states = self.states.as_mut().expect(STATES_ALLOCATED);
                    states.read_slot(slot, &mut staging.state)?;
                    let values = staging.state.host()?.iter();
                    let bytes: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
                    take(&bytes);
                }
            }
        }
        Ok(())
    }

    fn write_memory(&mut self, contents: &[(MemoryPlace, &[u8])]) -> std::result::Result<(), BackendError> {
        self.prepare_staging()?;
        for run in contents.chunk_by(|&(a, _), &(b, _)| are_alike(a, b)) {
            match run[0] {
                (MemoryPlace::Page { group, .. }, _) => self.write_pages(group, run)?,
                (MemoryPlace::State { slot }, bytes) => {
                    let staging = self.staging.as_mut().expect(STAGING_MADE);
                    let (words, _) = bytes.as_chunks::<4>();
                    for (value, word) in staging.state.host()?.iter_mut().zip(words) {
                        *value = f32::from_le_bytes(*word);
                    }
                    let states = self.states.as_mut().expect(STATES_ALLOCATED);
                    states.write_slot(slot, &mut staging.state)?;
                }
            }
        }
        Ok(())
    }
}
