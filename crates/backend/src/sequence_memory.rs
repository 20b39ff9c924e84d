//! [`SequenceMemory`]: transfers keys, values and states of sequences as bytes, to keep them outside of the
//! device.
//!
//! Page copies, in contrast, stay on the device. Invariant: bytes read from one backend and written to
//! another with an equal [`MemoryFormat`] are the same keys, values and states there, to the bit.

use crate::{BackendError, KvType, PageGroup};

/// A place in the memory of sequences on a device.
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

/// The memory layout of sequences in a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryFormat {
    /// A name for the order of numbers in a page and in a state. A backend that changes the order changes the
    /// name.
    pub arrangement: &'static str,
    /// Type of the keys in the KV cache.
    pub key_type: KvType,
    /// Type of the values in the KV cache.
    pub value_type: KvType,
    /// Bytes of a page of each group, in the order of [`PageGroup::ALL`]; 0 for a missing group.
    pub page_bytes: [usize; PageGroup::ALL.len()],
    /// Bytes of a state; 0 if the network has none.
    pub state_bytes: usize,
}

impl MemoryFormat {
    /// Returns the bytes of a place.
    pub fn bytes_of(&self, place: MemoryPlace) -> usize {
        match place {
            MemoryPlace::Page { group, .. } => self.page_bytes[group.index()],
            MemoryPlace::State { .. } => self.state_bytes,
        }
    }
}

/// Reads and writes the memory of sequences as bytes. A backend without it works as usual, but sessions
/// cannot be saved.
pub trait SequenceMemory {
    /// Returns the memory layout, once it is allocated; `None` if memory can be neither read nor written.
    fn memory_format(&self) -> Option<MemoryFormat> {
        None
    }

    /// Passes the bytes of places to `take`, in order, after the steps and copies begun before. The places
    /// are in range.
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

    /// Writes the bytes of places, between the steps and copies begun earlier and those begun later. The
    /// places are in range, and each has the number of bytes of [`MemoryFormat::bytes_of`].
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
