//! [`NetworkPart`]: the parts of a network that a backend may keep in different memories.
//!
//! Separate because a load and a step name them alike: [`Memory::enter`](crate::Memory::enter) says which part the next
//! allocations, or the next operations, belong to. Invariant: a part lies as a whole in one memory, or as a whole in both.

/// A part of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NetworkPart {
    /// What several parts use: frequencies of ropes, rows of tokens.
    Common,
    /// What makes rows of tokens: the token embedding and what stands next to it.
    Input,
    /// The mixer of a layer, its norms included.
    Mixer(usize),
    /// The feed-forward network of a layer, its norms and its router included, without the matrices of experts.
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
    /// The host's. Of a backend that is not split, nothing is there.
    Host,
    /// The device's. Of a backend that is not split, everything is there, also where that is the host.
    Device,
}

impl Side {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Host, Self::Device];

    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Host => Self::Device,
            Self::Device => Self::Host,
        }
    }
}
