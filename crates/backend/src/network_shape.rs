//! [`NetworkShape`]: the widths of a network that a backend's working memory depends on.
//!
//! Separate because a backend prepares for a network before it has any weight of it. Invariant: numbers only, so that a
//! backend knows no architecture.

use crate::StateLayerShape;

/// The widths of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkShape {
    /// Width of a hidden state.
    pub n_embd: usize,
    /// The layers, first to last.
    pub layers: Vec<LayerShape>,
    /// Whether it needs [`StreamOperations`](crate::StreamOperations).
    pub has_streams: bool,
    /// Whether each token comes with the hidden state of the one before it
    /// ([`ForwardBatch::hidden_inputs`](crate::ForwardBatch::hidden_inputs)).
    pub reads_hidden: bool,
}

/// The widths of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerShape {
    /// Its attention, if it has one.
    pub attention: Option<AttentionShape>,
    /// The matrices that each head has for itself, if there are any.
    pub heads: Option<HeadsShape>,
    /// Width of the widest row, other than a hidden state, that one of its matrices reads.
    pub widest_input: usize,
    /// Whether its keys and values are latent rows.
    pub has_latent_rows: bool,
    /// The layer of the KV store that it reads, if it reads any.
    pub kv: Option<KvStoreOfLayer>,
    /// What a sequence's state holds for it, where it is recurrent.
    pub state: Option<StateLayerShape>,
    /// Its experts, if it has any.
    pub experts: Option<ExpertsShape>,
}

/// Which layer of the KV store a layer of the network reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvStoreOfLayer {
    /// Its index in the store.
    pub idx: usize,
    /// Whether the layer writes it, and does not only read what another one wrote.
    pub is_owner: bool,
}

/// The sizes of a layer's experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertsShape {
    /// Experts there are.
    pub n_experts: usize,
    /// Experts that a row goes to.
    pub n_used: usize,
    /// Width inside each.
    pub n_ff: usize,
}

/// The sizes of matrices that each head has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadsShape {
    /// Heads.
    pub n_heads: usize,
    /// Columns of the widest.
    pub widest_input: usize,
    /// Rows of the highest.
    pub widest_output: usize,
}

/// The widths of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Width of a query and key head.
    pub head_dim_k: usize,
    /// Width of a value head.
    pub head_dim_v: usize,
}
