//! [`NetworkPart`]: the parts of a network that a device may keep in different memories.
//!
//! A load enters a part before its weights ([`WeightStore::enter`](crate::program::WeightStore::enter)), and each operation of a
//! program is stamped with its part. Invariant: a part is entirely in one memory, or entirely in both.

/// A part of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NetworkPart {
    /// Shared data: frequencies of ropes, rows of tokens.
    Common,
    /// The input: the token embedding and related weights.
    Input,
    /// The mixer of a layer, including its norms.
    Mixer(usize),
    /// The feed-forward network of a layer, including its norms and its router, without the matrices of
    /// experts.
    Ffn(usize),
    /// The matrices of a layer's experts.
    Experts(usize),
    /// The output norm, the head, the pooler, and sampling.
    Output,
    /// A layer of the KV store.
    Kv(usize),
    /// A layer of the store of recurrent states.
    State(usize),
}

/// One of the two memories that a network can be split over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The host. A device that is not split has nothing there.
    Host,
    /// The device. One that is not split has everything there, even if it is the host.
    Device,
}

impl Side {
    /// Both sides.
    pub const ALL: [Self; 2] = [Self::Host, Self::Device];

    /// Returns the other side.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Host => Self::Device,
            Self::Device => Self::Host,
        }
    }
}
