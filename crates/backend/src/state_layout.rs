//! [`StateLayout`]: what the memory of recurrent layers must hold.
//!
//! Separate from the KV layout because a state has one size whatever the length of its sequence. A *state* is a sequence's
//! recurrent memory, all layers; it lives in a slot of a pool, and other slots hold snapshots of states. Invariant: slots
//! are all alike, so that a state and a snapshot may take each other's place.

/// What the store of states must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateLayout {
    /// Shape of each recurrent layer.
    pub layers: Vec<StateLayerShape>,
    /// Slots of the pool.
    pub n_states: usize,
}

/// One layer's part of a state, in f32 values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateLayerShape {
    /// The last inputs of its convolution: `[n_channels, n_taps - 1]`.
    pub conv_len: usize,
    /// What its recurrence carries on: one matrix for each head. 0 for a convolution alone.
    pub matrix_len: usize,
    /// Values of a row of those matrices: what a channel of the recurrence keeps. 0 for a convolution alone.
    pub matrix_row: usize,
}

impl StateLayout {
    /// Bytes of one state, all layers.
    pub fn state_bytes(&self) -> usize {
        let values = |layer: &StateLayerShape| layer.conv_len.saturating_add(layer.matrix_len);
        (self.layers.iter().map(values))
            .fold(0, usize::saturating_add)
            .saturating_mul(size_of::<f32>())
    }
}
