//! [`NetworkShape`]: the widths of a network that a backend's working memory depends on.
//!
//! Separate because a backend prepares for a network before it has any weight of it. Invariant: numbers only, so that a
//! backend knows no architecture.

/// The widths of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkShape {
    /// Width of a hidden state.
    pub n_embd: usize,
    /// The layers, first to last.
    pub layers: Vec<LayerShape>,
    /// The operations it needs that a backend may lack.
    pub needs: Vec<LayerOperation>,
}

/// The widths of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerShape {
    /// Its attention, if it has one.
    pub attention: Option<AttentionShape>,
    /// The matrices that each head has for itself, if there are any.
    pub heads: Option<HeadsShape>,
    /// Width of the widest row, other than a hidden state, that one of its matrices reads.
    pub widest_input: usize,
    /// Values of a row of its recurrent matrices: what a channel keeps. 0 where it has none.
    pub state_row: usize,
    /// Its experts, if it has any.
    pub experts: Option<ExpertsShape>,
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

/// An operation of [`LayerOperations`](crate::LayerOperations), or a variant of another, as a network's need of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerOperation {
    /// [`LayerOperations::take_columns`](crate::LayerOperations::take_columns).
    TakeColumns,
    /// [`LayerOperations::xielu`](crate::LayerOperations::xielu).
    Xielu,
    /// [`LayerOperations::weigh_choices`](crate::LayerOperations::weigh_choices).
    WeighChoices,
    /// [`Attention::is_chunked`](crate::Attention::is_chunked).
    Chunks,
    /// [`LayerOperations::cut_below`](crate::LayerOperations::cut_below).
    CutBelow,
    /// [`StreamOperations`](crate::StreamOperations).
    Streams,
}

impl LayerOperation {
    /// What has it, for messages.
    pub fn feature(self) -> &'static str {
        match self {
            Self::TakeColumns => "networks with embeddings of each layer",
            Self::Xielu => "the activation xIELU",
            Self::WeighChoices => "experts whose input is weighed",
            Self::Chunks => "attention in chunks",
            Self::CutBelow => "activations that are sparse by their spread",
            Self::Streams => "several streams of hidden states",
        }
    }
}
