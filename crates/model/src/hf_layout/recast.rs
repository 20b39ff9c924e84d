//! [`Recast`]: a difference between the tensors of a folder and those of the GGUF file made from it.
//!
//! `Change`, in contrast, applies on every use of a folder. Invariant: data only; a tensor without a row is
//! the same in both.

/// A change of a tensor, or of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recast {
    /// Replaces the end of the name.
    Rename(&'static str),
    /// Replaces the end of the name in layers whose two halves read the layer's input through separate norms.
    RenameOfTwoNorms(&'static str),
    /// Keeps the tensor only in networks with a classification head.
    OfClassifier,
    /// Moves a number into a metadata list with one entry per layer.
    IntoKey(&'static str),
    /// `x + 1`.
    AddOne,
    /// Removes dimensions of 1.
    Squeeze,
    /// Turns a vector into a matrix with one column.
    Column,
    /// Adds dimensions of 1 until there are four.
    FourDims,
    /// Reorders the rows of the queries so that rope pairs are adjacent.
    NeighbouringQueries,
    /// Like [`Self::NeighbouringQueries`], for keys.
    NeighbouringKeys,
    /// Splits each matrix: the first and the second half of its rows become separate tensors.
    Halves([&'static str; 2]),
    /// Like [`Self::Halves`], for the shared network, or for the dense network of a layer without experts.
    SharedGateAndUp,
    /// Names the down matrix of such a network.
    SharedDown,
    /// Splits the rows of each head into a tensor for keys, transposed, and a tensor for values.
    LatentKeysAndValues,
    /// Splits the inputs of a delta net, grouped by key head, into queries, keys and values, and the gate.
    DeltaInputs,
    /// Reorders rows so that value heads sharing a key head are no longer adjacent. If there are rows beyond
    /// those of the values, the rows of queries and keys come first and stay.
    TiledRows,
    /// Like [`Self::TiledRows`], for columns.
    TiledColumns,
    /// Multiplies by the embedding scale, for which files of the architecture have no key.
    EmbeddingScale,
    /// Multiplies by the logit scale.
    LogitScale,
    /// Multiplies by the part of the score scale that does not depend on the head width.
    ScoreScale,
}

/// Pairs of a suffix of a tensor's name and a change of it, in the order in which they apply.
pub(crate) type Recasts = &'static [(&'static str, Recast)];

impl Recast {
    /// Splits the matrices of experts that hold gate and up.
    pub(crate) const GATE_AND_UP: Self = Self::Halves(["ffn_gate_exps.weight", "ffn_up_exps.weight"]);
    /// Renames the norm before the feed-forward network, which some files name by its place after the mixer.
    pub(crate) const POST_ATTENTION: (&'static str, Self) =
        ("ffn_norm.weight", Self::Rename("post_attention_norm.weight"));
    /// The changes of networks whose files have adjacent rope pairs.
    pub(crate) const NEIGHBOURS: Recasts = &[
        ("attn_q.weight", Self::NeighbouringQueries),
        ("attn_q.bias", Self::NeighbouringQueries),
        ("attn_k.weight", Self::NeighbouringKeys),
        ("attn_k.bias", Self::NeighbouringKeys),
        ("ffn_gate_up_exps.weight", Self::GATE_AND_UP),
    ];
    /// The changes of networks with Mamba 2 layers.
    pub(crate) const SSM: Recasts = &[
        ("ssm_conv1d.weight", Self::Squeeze),
        ("ssm_a", Self::Column),
        ("ssm_d", Self::Column),
        ("attn_q.weight", Self::NeighbouringQueries),
        ("attn_k.weight", Self::NeighbouringKeys),
    ];
}

/// The MTP layers of a folder, as files have them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Drafts {
    /// Files leave them out.
    Left,
    /// Their numbers follow the decoder's layers, as in files.
    Layers,
    /// They are a network of their own, `mtp`.
    Network,
}

/// GGUF name suffixes of tensors that only MTP layers have, by their suffix in a folder.
pub(crate) const DRAFT_NAMES: &[(&str, &str)] = &[
    ("eh_proj", "nextn.eh_proj"),
    ("embed_tokens", "nextn.embed_tokens"),
    ("enorm", "nextn.enorm"),
    ("hnorm", "nextn.hnorm"),
    ("shared_head.head", "nextn.shared_head_head"),
    ("shared_head.norm", "nextn.shared_head_norm"),
];

/// Like [`DRAFT_NAMES`], for folders that store the MTP layers as a separate network, `mtp`.
pub(crate) const MTP_NAMES: &[(&str, &str)] = &[
    ("fc", "nextn.eh_proj"),
    ("embed_tokens", "nextn.embed_tokens"),
    ("pre_fc_norm_embedding", "nextn.enorm"),
    ("pre_fc_norm_hidden", "nextn.hnorm"),
    ("norm", "nextn.shared_head_norm"),
];
