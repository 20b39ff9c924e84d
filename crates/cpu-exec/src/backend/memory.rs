//! The memory of sequences as bytes.

use tokenmill_backend::{BackendError, KvType, MemoryFormat, MemoryPlace, PageGroup, SequenceMemory};

use super::{CpuBackend, KV_ALLOCATED};

/// Returns a name for the arrangement of pages and states, which [`crate::KvStore`] and [`crate::StateStore`]
/// describe. The name `cpu-1` had another layout of byte pages.
fn arrangement(types: (KvType, KvType)) -> &'static str {
    if [types.0, types.1].contains(&KvType::Q8_0) {
        "cpu-2"
    } else {
        "cpu-1"
    }
}

impl SequenceMemory for CpuBackend {
    fn memory_format(&self) -> Option<MemoryFormat> {
        let stores = self.kv.as_ref()?;
        let (key_type, value_type) = self.kv_types;
        let mut page_bytes = [0; PageGroup::ALL.len()];
        for (group, store) in stores.iter() {
            page_bytes[group.index()] = store.pool.bytes_of_page();
        }
        Some(MemoryFormat {
            arrangement: arrangement(self.kv_types),
            key_type,
            value_type,
            page_bytes,
            state_bytes: self.states.as_ref().map_or(0, crate::StateStore::bytes_of_slot),
        })
    }

    fn read_memory(
        &mut self,
        places: &[MemoryPlace],
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<(), BackendError> {
        let mut bytes = Vec::new();
        for &place in places {
            bytes.clear();
            match place {
                MemoryPlace::Page { group, page } => {
                    let stores = self.kv.as_ref().expect(KV_ALLOCATED);
                    stores.group(group).pool.read_page(page, &mut bytes);
                }
                MemoryPlace::State { slot } => {
                    let states = self.states.as_ref().expect("a state in range is allocated");
                    states.read_slot(slot, &mut bytes);
                }
            }
            take(&bytes);
        }
        Ok(())
    }

    fn write_memory(&mut self, contents: &[(MemoryPlace, &[u8])]) -> Result<(), BackendError> {
        for &(place, bytes) in contents {
            match place {
                MemoryPlace::Page { group, page } => {
                    let stores = self.kv.as_mut().expect(KV_ALLOCATED);
                    stores.group_mut(group).pool.write_page(page, bytes);
                }
                MemoryPlace::State { slot } => {
                    let states = self.states.as_mut().expect("a state in range is allocated");
                    states.write_slot(slot, bytes);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_with_bytes_have_another_arrangement_than_older_versions_wrote() {
        assert_eq!(arrangement((KvType::F16, KvType::Q4_0)), "cpu-1");
        assert_eq!(arrangement((KvType::Q8_0, KvType::F16)), "cpu-2");
        assert_eq!(arrangement((KvType::F32, KvType::Q8_0)), "cpu-2");
    }
}
