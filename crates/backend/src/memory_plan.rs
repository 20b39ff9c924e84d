//! [`MemoryPlan`]: the memory that a load will take, by what it is for.
//!
//! Separate because it is known before anything is allocated: it can be printed, and refused.

/// The memory a load will take, on the device where there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights, in the form the backend holds them.
    pub weights_bytes: usize,
    /// The KV store.
    pub kv_bytes: usize,
    /// Of it, one page of the main group.
    pub kv_page_bytes: usize,
    /// Pages of the main group, the host tier's included.
    pub n_pages: usize,
    /// Of it, one page of the layers with a window, where these are a group of their own; else 0.
    pub window_page_bytes: usize,
    /// Pages of theirs, the host tier's included.
    pub n_window_pages: usize,
    /// Of `kv_bytes`, the host tier's pages: the machine's memory wherever the others are.
    pub host_tier_bytes: usize,
    /// The recurrent states, snapshots included.
    pub states_bytes: usize,
    /// Of it, one state.
    pub state_bytes: usize,
    /// Slots for states and snapshots.
    pub n_states: usize,
    /// Activation buffers, logits included.
    pub activations_bytes: usize,
    /// What the backend needs besides these.
    pub workspace_bytes: usize,
    /// Adapters that are loaded when the rest is there, in pieces of their own.
    pub adapters_bytes: usize,
    /// Of a backend made of two, the host's memory, which none of these counts.
    pub on_host: Option<Box<MemoryPlan>>,
}

impl MemoryPlan {
    /// What of it is the memory of the device that computes: all but the host tier.
    pub fn device_bytes(&self) -> usize {
        self.total_bytes().saturating_sub(self.host_tier_bytes)
    }

    /// All of it; `usize::MAX` where the sum is beyond it.
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
