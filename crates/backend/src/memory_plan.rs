//! [`MemoryPlan`]: the memory that a load will take, by purpose.
//!
//! It is known before anything is allocated, so it can be printed, and refused.

/// The memory that a load will take, on the device if there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights, in the form the backend holds them.
    pub weights_bytes: usize,
    /// The KV store.
    pub kv_bytes: usize,
    /// One page of the main group.
    pub kv_page_bytes: usize,
    /// Number of pages of the main group, including the host tier.
    pub n_pages: usize,
    /// One page of the separate group of layers with a window; 0 if there is none.
    pub window_page_bytes: usize,
    /// Number of pages of that group, including the host tier.
    pub n_window_pages: usize,
    /// The host tier's part of `kv_bytes`, which is always host memory.
    pub host_tier_bytes: usize,
    /// The recurrent states, including snapshots.
    pub states_bytes: usize,
    /// One recurrent state.
    pub state_bytes: usize,
    /// Number of slots for states and snapshots.
    pub n_states: usize,
    /// Activation buffers, including logits.
    pub activations_bytes: usize,
    /// The backend's other needs.
    pub workspace_bytes: usize,
    /// Adapters that are loaded afterwards, in separate allocations.
    pub adapters_bytes: usize,
    /// The host memory of a split network, which the other fields do not count.
    pub on_host: Option<Box<MemoryPlan>>,
}

impl MemoryPlan {
    /// Returns the part in the computing device's memory: everything except the host tier.
    pub fn device_bytes(&self) -> usize {
        self.total_bytes().saturating_sub(self.host_tier_bytes)
    }

    /// Returns the total; `usize::MAX` on overflow.
    pub fn total_bytes(&self) -> usize {
        [
            self.weights_bytes,
            self.kv_bytes,
            self.states_bytes,
            self.activations_bytes,
            self.workspace_bytes,
            self.adapters_bytes,
        ]
        .into_iter()
        .fold(0, usize::saturating_add)
    }
}
