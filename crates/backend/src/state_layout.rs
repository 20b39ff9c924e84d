//! [`StateLayout`]: the memory of recurrent layers.
//!
//! Unlike the KV store, a state has one size for sequences of any length. A *state* is a sequence's recurrent
//! memory, all layers; it lives in a slot of a pool, and other slots hold snapshots of states. Invariant: all
//! slots are alike, so that a state and a snapshot are interchangeable.

/// The contents of the store of states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateLayout {
    /// Shape of each recurrent layer.
    pub layers: Vec<StateLayerShape>,
    /// Number of slots in the pool.
    pub n_states: usize,
}

/// One layer's part of a state, in f32 values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateLayerShape {
    /// The last inputs of its convolution: `[n_channels, n_taps - 1]`.
    pub conv_len: usize,
    /// The values of its recurrence: one matrix per head. 0 for a convolution alone.
    pub matrix_len: usize,
    /// Number of values per row of those matrices: the memory of one channel of the recurrence. 0 for a
    /// convolution alone.
    pub matrix_row: usize,
}

impl StateLayout {
    /// Returns the bytes of one state, all layers.
    pub fn state_bytes(&self) -> usize {
        let values = |layer: &StateLayerShape| layer.conv_len.saturating_add(layer.matrix_len);
        (self.layers.iter().map(values))
            .fold(0, usize::saturating_add)
            .saturating_mul(size_of::<f32>())
    }
}
