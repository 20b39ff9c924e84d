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

use Recast::{
    AddOne, Column, DeltaInputs, EmbeddingScale, FourDims, Halves, IntoKey, LatentKeysAndValues, LogitScale,
    NeighbouringKeys, NeighbouringQueries, OfClassifier, Rename, RenameOfTwoNorms, ScoreScale, SharedDown,
    SharedGateAndUp, Squeeze, TiledColumns, TiledRows,
};

type Recasts = &'static [(&'static str, Recast)];

const NEIGHBOURS: Recasts = &[
    ("attn_q.weight", NeighbouringQueries),
    ("attn_q.bias", NeighbouringQueries),
    ("attn_k.weight", NeighbouringKeys),
    ("attn_k.bias", NeighbouringKeys),
    ("ffn_gate_up_exps.weight", GATE_AND_UP),
];
const GATE_AND_UP: Recast = Halves(["ffn_gate_exps.weight", "ffn_up_exps.weight"]);
const POST_ATTENTION: (&str, Recast) = ("ffn_norm.weight", Rename("post_attention_norm.weight"));
const SSM: Recasts = &[
    ("ssm_conv1d.weight", Squeeze),
    ("ssm_a", Column),
    ("ssm_d", Column),
    ("attn_q.weight", NeighbouringQueries),
    ("attn_k.weight", NeighbouringKeys),
];

/// Returns the changes of an architecture's tensors, by suffix of their names.
pub(crate) fn recasts_of(arch: &str) -> Recasts {
    match arch {
        "apertus" => &[
            ("ffn_act.alpha_n", IntoKey("xielu.alpha_n")),
            ("ffn_act.alpha_p", IntoKey("xielu.alpha_p")),
            ("ffn_act.beta", IntoKey("xielu.beta")),
            ("ffn_act.eps", IntoKey("xielu.eps")),
        ],
        // BERT's pooler is called `cls`; RoBERTa's is called `pooler`, and its classifiers have none.
        "bert" => &[
            ("cls.weight", OfClassifier),
            ("cls.bias", OfClassifier),
            ("pooler.weight", OfClassifier),
            ("pooler.bias", OfClassifier),
        ],
        // A leftover of the encoder's training.
        "jina-bert-v3" => &[("pooler.weight", OfClassifier), ("pooler.bias", OfClassifier)],
        "deepseek2" => &[("attn_kv_b.weight", LatentKeysAndValues)],
        "falcon" => &[
            ("attn_norm.weight", RenameOfTwoNorms("attn_norm_2.weight")),
            ("attn_norm.bias", RenameOfTwoNorms("attn_norm_2.bias")),
            ("ffn_norm.weight", RenameOfTwoNorms("attn_norm.weight")),
            ("ffn_norm.bias", RenameOfTwoNorms("attn_norm.bias")),
        ],
        "falcon-h1" => &[
            ("token_embd.weight", EmbeddingScale),
            ("output.weight", LogitScale),
            ("attn_k.weight", ScoreScale),
            ("ssm_conv1d.weight", Squeeze),
            ("ssm_a", Column),
            ("ssm_d", Column),
            ("ffn_norm.weight", Rename("ffn_norm")),
        ],
        "glm4moe" | "seed_oss" => &[POST_ATTENTION],
        "gpt-oss" => &[
            ("ffn_gate_up_exps.weight", GATE_AND_UP),
            (
                "ffn_gate_up_exps.bias",
                Halves(["ffn_gate_exps.bias", "ffn_up_exps.bias"]),
            ),
            POST_ATTENTION,
        ],
        "granite" | "granitemoe" | "granitehybrid" => GRANITE,
        "kimi-linear" => &[
            ("attn_kv_b.weight", LatentKeysAndValues),
            ("ssm_conv1d_q.weight", FourDims),
            ("ssm_conv1d_k.weight", FourDims),
            ("ssm_conv1d_v.weight", FourDims),
        ],
        "lfm2" | "lfm2moe" => &[
            ("output_norm.weight", Rename("token_embd_norm.weight")),
            ("shortconv.conv.weight", Squeeze),
        ],
        "arcee" | "llama" | "minicpm" | "mistral3" | "muse-glimmer" | "smollm3" => NEIGHBOURS,
        "hy_v3" => &[("exp_probs_b.bias", Rename("exp_probs_b"))],
        "llama4" | "qwen3vlmoe" => &[("ffn_gate_up_exps.weight", GATE_AND_UP)],
        "mamba" => &[("ssm_conv1d.weight", Squeeze)],
        "mamba2" | "nemotron_h" | "nemotron_h_moe" => SSM,
        "qwen35" | "qwen35moe" => &[
            POST_ATTENTION,
            ("ssm_conv1d.weight", Squeeze),
            ("ssm_conv1d.weight", TiledRows),
            ("ssm_a", TiledRows),
            ("ssm_dt.bias", TiledRows),
            ("ssm_alpha.weight", TiledRows),
            ("ssm_beta.weight", TiledRows),
            ("attn_qkv.weight", TiledRows),
            ("attn_gate.weight", TiledRows),
            ("ssm_out.weight", TiledColumns),
            ("nextn.enorm.weight", AddOne),
            ("nextn.hnorm.weight", AddOne),
            ("nextn.shared_head_norm.weight", AddOne),
        ],
        "qwen3next" => &[
            POST_ATTENTION,
            ("ssm_conv1d.weight", Squeeze),
            ("ssm_in.weight", DeltaInputs),
        ],
        _ => &[],
    }
}

const GRANITE: Recasts = &[
    ("ssm_conv1d.weight", Squeeze),
    ("ssm_a", Column),
    ("ssm_d", Column),
    ("attn_q.weight", NeighbouringQueries),
    ("attn_q.bias", NeighbouringQueries),
    ("attn_k.weight", NeighbouringKeys),
    ("attn_k.bias", NeighbouringKeys),
    ("ffn_gate_up_exps.weight", GATE_AND_UP),
    ("ffn_up_shexp.weight", SharedGateAndUp),
    ("ffn_down_shexp.weight", SharedDown),
];

/// GGUF name suffixes of tensors that only MTP layers have, by their suffix in a folder.
pub(super) const DRAFT_NAMES: &[(&str, &str)] = &[
    ("eh_proj", "nextn.eh_proj"),
    ("embed_tokens", "nextn.embed_tokens"),
    ("enorm", "nextn.enorm"),
    ("hnorm", "nextn.hnorm"),
    ("shared_head.head", "nextn.shared_head_head"),
    ("shared_head.norm", "nextn.shared_head_norm"),
];

/// Like [`DRAFT_NAMES`], for folders that store the MTP layers as a separate network, `mtp`.
pub(super) const MTP_NAMES: &[(&str, &str)] = &[
    ("fc", "nextn.eh_proj"),
    ("embed_tokens", "nextn.embed_tokens"),
    ("pre_fc_norm_embedding", "nextn.enorm"),
    ("pre_fc_norm_hidden", "nextn.hnorm"),
    ("norm", "nextn.shared_head_norm"),
];
