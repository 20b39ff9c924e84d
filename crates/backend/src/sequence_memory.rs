//! [`SequenceMemory`]: keys, values and states of sequences as bytes, to keep them outside of the device.
//!
//! Separate from the copies of pages, which stay on the device. Invariant: bytes that were read from one backend and are written to
//! another of an equal [`MemoryFormat`] are the same keys, values and states there, to the bit.

use crate::{BackendError, KvType, PageGroup};

/// A place in the memory that sequences have on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryPlace {
    /// A page of the pool of keys and values, all layers of its group.
    Page {
        /// The group.
        group: PageGroup,
        /// The page.
        page: u32,
    },
    /// A slot of recurrent state, all layers.
    State {
        /// The slot.
        slot: u32,
    },
}

/// How a backend arranges the memory of sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryFormat {
    /// A name for the order of the numbers in a page and in a state. A backend that changes the order changes the name.
    pub arrangement: &'static str,
    /// Type of the stored keys.
    pub key_type: KvType,
    /// Type of the stored values.
    pub value_type: KvType,
    /// Bytes of a page of each group, in the order of [`PageGroup::ALL`]; 0 for a group that there is not.
    pub page_bytes: [usize; PageGroup::ALL.len()],
    /// Bytes of a state; 0 where the network has none.
    pub state_bytes: usize,
}

impl MemoryFormat {
    /// Bytes of a place.
    pub fn bytes_of(&self, place: MemoryPlace) -> usize {
        match place {
            MemoryPlace::Page { group, .. } => self.page_bytes[group.index()],
            MemoryPlace::State { .. } => self.state_bytes,
        }
    }
}

/// Reads and writes the memory of sequences as bytes. A backend that does not is used as ever, but sessions cannot be kept.
pub trait SequenceMemory {
    /// How the memory is arranged, once it is allocated; `None` where it can be neither read nor written.
    fn memory_format(&self) -> Option<MemoryFormat> {
        None
    }

    /// Gives the bytes of places to `take`, in their order, as the steps and copies begun before leave them. The places are in range.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`], or a device error.
    fn read_memory(
        &mut self,
        places: &[MemoryPlace],
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<(), BackendError> {
        let _ = (places, take);
        Err(unsupported())
    }

    /// Writes the bytes of places, after the steps and copies begun before and ahead of those begun later. The places are in range,
    /// and the bytes of each are as many as [`MemoryFormat::bytes_of`] says.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`], or a device error.
    fn write_memory(&mut self, contents: &[(MemoryPlace, &[u8])]) -> Result<(), BackendError> {
        let _ = contents;
        Err(unsupported())
    }
}

fn unsupported() -> BackendError {
    BackendError::Unsupported {
        feature: "memory of sequences as bytes".to_owned(),
        device: "this backend",
    }
}
