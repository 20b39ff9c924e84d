//! [`Recast`]: how the tensors of a folder differ from those of the GGUF file that a converter makes of it.
//!
//! Separate from the changes of a folder's layout, which every use of the folder needs. Invariant: data only; what a row does not
//! name is the same in both.

/// A change of a tensor, or of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recast {
    /// Another end of the name.
    Rename(&'static str),
    /// Another end of the name, where each half of a layer reads the layer's input through a norm of its own.
    RenameOfTwoNorms(&'static str),
    /// There only where the network has a classification head.
    OfClassifier,
    /// A number that becomes an entry of a list in the metadata, which has one for each layer.
    IntoKey(&'static str),
    /// `x + 1`.
    AddOne,
    /// Dimensions of 1 vanish.
    Squeeze,
    /// A vector becomes a matrix with rows of one number.
    Column,
    /// Dimensions of 1 are added until there are four.
    FourDims,
    /// The values that rope turns together become neighbours: rows of the queries.
    NeighbouringQueries,
    /// As [`Self::NeighbouringQueries`], of the keys.
    NeighbouringKeys,
    /// The first and the second half of the rows of each matrix become tensors of their own.
    Halves([&'static str; 2]),
    /// As [`Self::Halves`], of the dense network next to the experts, or of a layer that has no experts.
    SharedGateAndUp,
    /// The last matrix of such a network.
    SharedDown,
    /// The rows of each head that make keys, and those that make values, become tensors of their own; the former transposed.
    LatentKeysAndValues,
    /// The inputs of a delta net, which come by key head: queries, keys and values, and the gate.
    DeltaInputs,
    /// Value heads that share a key head lie apart, not next to each other: rows, of which those of the queries and keys come first
    /// where there are more than values.
    TiledRows,
    /// As [`Self::TiledRows`], of columns.
    TiledColumns,
    /// Multiplied by the scale of embeddings, which files of the architecture have no key for.
    EmbeddingScale,
    /// Multiplied by the scale of logits.
    LogitScale,
    /// Multiplied by what scores are scaled with besides the width of a head.
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

/// The changes of an architecture's tensors, by the end of their names.
pub(crate) fn recasts_of(arch: &str) -> Recasts {
    match arch {
        "apertus" => &[
            ("ffn_act.alpha_n", IntoKey("xielu.alpha_n")),
            ("ffn_act.alpha_p", IntoKey("xielu.alpha_p")),
            ("ffn_act.beta", IntoKey("xielu.beta")),
            ("ffn_act.eps", IntoKey("xielu.eps")),
        ],
        // BERT's pooler is called `cls`, and RoBERTa's, which its classifiers do not have, `pooler`.
        "bert" => &[
            ("cls.weight", OfClassifier),
            ("cls.bias", OfClassifier),
            ("pooler.weight", OfClassifier),
            ("pooler.bias", OfClassifier),
        ],
        // What the training of the encoder left behind.
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

/// The end of the GGUF name of a tensor that only layers have which predict further tokens, by its end in a folder.
pub(super) const DRAFT_NAMES: &[(&str, &str)] = &[
    ("eh_proj", "nextn.eh_proj"),
    ("embed_tokens", "nextn.embed_tokens"),
    ("enorm", "nextn.enorm"),
    ("hnorm", "nextn.hnorm"),
    ("shared_head.head", "nextn.shared_head_head"),
    ("shared_head.norm", "nextn.shared_head_norm"),
];

/// As [`DRAFT_NAMES`], where these layers are a network of their own, `mtp`.
pub(super) const MTP_NAMES: &[(&str, &str)] = &[
    ("fc", "nextn.eh_proj"),
    ("embed_tokens", "nextn.embed_tokens"),
    ("pre_fc_norm_embedding", "nextn.enorm"),
    ("pre_fc_norm_hidden", "nextn.hnorm"),
    ("norm", "nextn.shared_head_norm"),
];
