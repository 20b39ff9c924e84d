//! [`NetworkShape`]: the widths of a network that determine a backend's working memory.
//!
//! A backend prepares for a network before it has any of its weights. Invariant: numbers only, so that a
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
    /// Whether each token needs the hidden state of the one before it
    /// ([`ForwardBatch::hidden_inputs`](crate::ForwardBatch::hidden_inputs)).
    pub reads_hidden: bool,
}

/// The widths of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerShape {
    /// Its attention, if it has one.
    pub attention: Option<AttentionShape>,
    /// The shape of its per-head matrices, if there are any.
    pub heads: Option<HeadsShape>,
    /// Width of the widest row, other than a hidden state, that one of its matrices reads.
    pub widest_input: usize,
    /// Whether its keys and values are latent rows.
    pub has_latent_rows: bool,
    /// The layer of the KV store that it reads, if it reads any.
    pub kv: Option<KvStoreOfLayer>,
    /// The shape of a sequence's state for it, if it is recurrent.
    pub state: Option<StateLayerShape>,
    /// Its experts, if it has any.
    pub experts: Option<ExpertsShape>,
}

/// The layer of the KV store that a layer of the network reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvStoreOfLayer {
    /// Its index in the store.
    pub idx: usize,
    /// Whether the layer writes it instead of only reading what another layer wrote.
    pub is_owner: bool,
}

/// The sizes of a layer's experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertsShape {
    /// Number of experts.
    pub n_experts: usize,
    /// Number of experts per row.
    pub n_used: usize,
    /// Inner width of each expert.
    pub n_ff: usize,
}

/// The sizes of per-head matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadsShape {
    /// Number of heads.
    pub n_heads: usize,
    /// Largest number of columns.
    pub widest_input: usize,
    /// Largest number of rows.
    pub widest_output: usize,
}

/// The widths of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads.
    pub n_kv_heads: usize,
    /// Width of a query and key head.
    pub head_dim_k: usize,
    /// Width of a value head.
    pub head_dim_v: usize,
}
