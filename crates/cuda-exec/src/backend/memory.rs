//! The memory of sequences as bytes.
//!
//! Separate because it is no part of a step. Invariant: copies go by the stream that steps are computed on, so that they keep its
//! order; whoever reads waits for them.

use tokenmill_backend::{
    BackendError, KvStores, KvType, MemoryFormat, MemoryPlace, PageGroup, SequenceMemory,
};

use super::CudaBackend;
use crate::{Pinned, error::Result};

/// A name for how pages and states lie: [`crate::KvStore`] and [`crate::StateSlots`] say it.
const ARRANGEMENT: &str = "cuda-1";

/// Pinned memory for one page and one state.
pub(super) struct Staging {
    page: Pinned<u8>,
    state: Pinned<f32>,
}

impl CudaBackend {
    fn staging(&mut self) -> Result<&mut Staging> {
        if self.staging.is_none() {
            let stores = self.kv.iter().flat_map(KvStores::iter);
            let page_bytes = stores.map(|(_, store)| store.bytes_of_page()).max();
            let state_len = self.states.as_ref().map_or(0, crate::StateSlots::len_of_slot);
            self.staging = Some(Staging {
                page: self.device.alloc_pinned(page_bytes.unwrap_or(0))?,
                state: self.device.alloc_pinned(state_len)?,
            });
        }
        Ok(self.staging.as_mut().expect("it was just made"))
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
        place: MemoryPlace,
        bytes: &mut Vec<u8>,
    ) -> std::result::Result<(), BackendError> {
        self.staging()?;
        let staging = self.staging.as_mut().expect("it was just made");
        match place {
            MemoryPlace::Page { group, page } => {
                let stores = self.kv.as_mut().expect("the KV store was allocated at load");
                let store = stores.group_mut(group);
                store.read_page(page, &mut staging.page)?;
                bytes.extend_from_slice(&staging.page.host()?[..store.bytes_of_page()]);
            }
            MemoryPlace::State { slot } => {
                let states = self.states.as_mut().expect("a state in range is allocated");
                states.read_slot(slot, &mut staging.state)?;
                let values = staging.state.host()?.iter();
                bytes.extend(values.flat_map(|value| value.to_le_bytes()));
            }
        }
        Ok(())
    }

    fn write_memory(&mut self, place: MemoryPlace, bytes: &[u8]) -> std::result::Result<(), BackendError> {
        self.staging()?;
        let staging = self.staging.as_mut().expect("it was just made");
        match place {
            MemoryPlace::Page { group, page } => {
                staging.page.host()?[..bytes.len()].copy_from_slice(bytes);
                let stores = self.kv.as_mut().expect("the KV store was allocated at load");
                stores.group_mut(group).write_page(page, &mut staging.page)?;
            }
            MemoryPlace::State { slot } => {
                let (words, _) = bytes.as_chunks::<4>();
                for (value, word) in staging.state.host()?.iter_mut().zip(words) {
                    *value = f32::from_le_bytes(*word);
                }
                let states = self.states.as_mut().expect("a state in range is allocated");
                states.write_slot(slot, &mut staging.state)?;
            }
        }
        Ok(())
    }
}
