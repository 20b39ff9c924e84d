//! [`HfLayout`]: the names of tensors in a Hugging Face folder, and how their numbers differ from a GGUF
//! file's.
//!
//! The configuration describes the network, and the folder reads tensors. Invariant: data only. With a
//! layout, a folder offers the same tensors under the same names as a GGUF file of the network.

mod recast;

pub(crate) use recast::{DRAFT_NAMES, Drafts, MTP_NAMES, Recast, Recasts};

/// The layout of an architecture's folders. Tensors without a row have the names of Llama's folders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HfLayout {
    /// Prefixes of names, the most specific first. Names are also tried without removing a prefix.
    pub(crate) prefixes: &'static [&'static str],
    /// Prefix of a layer's index.
    pub(crate) layers: &'static str,
    /// Names of a layer's tensors. A name is matched whole, or without its last part (`weight`, `bias`), which stays.
    /// A `*` matches a number: the tensors are joined in its order, along a new outermost dimension.
    pub(crate) layer: Names,
    /// Names of a layer's tensors that several architectures have.
    pub(crate) shared: &'static [Names],
    /// Names of other tensors, matched like those of layers.
    pub(crate) network: Names,
    /// Prefixes of tensors that belong to other networks in the folder, such as a vision encoder.
    pub(crate) ignored: &'static [&'static str],
    /// Changes of numbers, by suffix of the GGUF name.
    pub(crate) changes: &'static [(&'static str, Change)],
    /// Changes of tensors for the GGUF file made from the folder.
    pub(crate) recasts: Recasts,
    /// Whether the file has weights for the query and key norms that have none in the folder.
    pub(crate) has_plain_norms: bool,
    /// The MTP layers of the folder, as the file has them.
    pub(crate) drafts: Drafts,
    /// The architecture of the file made from a folder with experts, if it is another.
    pub(crate) arch_with_experts: Option<&'static str>,
    /// The name of the activation that is the architecture's own.
    pub(crate) own_activation: Option<&'static str>,
}

/// How the rows of queries and keys in an architecture's GGUF files differ from those in its folders.
/// Descriptors of both forms account for it. An adapter trained on one form and used with the other must be
/// converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GgufRows {
    /// They are the same.
    Same,
    /// Rope pairs are adjacent; in folders they are half a head apart.
    Neighbours,
    /// They are multiplied by numbers from the configuration.
    Scaled,
}

/// Pairs of a Hugging Face name and a GGUF name.
pub(crate) type Names = &'static [(&'static str, &'static str)];

/// A conversion of a tensor's numbers to the GGUF form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// `x + 1`: norms whose weights are stored as distances from 1.
    AddOne,
    /// `-exp(x)`: decays of recurrent layers, stored as logarithms.
    NegExp,
    /// Splits a vector over all channels into one vector per group of heads.
    SplitGroups,
    /// Repeats the first row of a table until it has a row for each token of the vocabulary.
    FillVocabulary,
    /// Drops this many leading rows.
    SkipRows(usize),
    /// Transposes a matrix from `[n_in, n_out]` to `[n_out, n_in]`.
    Transpose,
    /// Reorders the rows of a fused QKV tensor. They are grouped by KV head, each with its queries, its key
    /// and its value; they become all queries, all keys, all values.
    UngroupQkv,
    /// Transposes the matrices of experts, which have inputs as rows unless they are quantized; outputs
    /// become the rows.
    TransposeExperts,
    /// Like [`Self::TransposeExperts`], if the matrices have that orientation: published folders and folders
    /// saved by transformers differ.
    TransposeExpertsIfNeeded,
    /// Separates the rows of each expert's gate and up, which alternate; all rows of the gate come first.
    SplitPairs,
}

/// The share of a GGUF tensor that a folder's tensor supplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Share {
    /// The whole tensor.
    Whole,
    /// One slice of its outermost dimension.
    Slice(usize),
    /// The 4-bit numbers of an MXFP4 tensor with separate scales: names that end with `_blocks`.
    Blocks,
    /// The scales of such a tensor: names that end with `_scales`.
    Scales,
}

/// The GGUF name of tensors that hold redundant data, such as masks.
pub(crate) const UNUSED: &str = "(unused)";

/// The changes of fused QKV tensors that are grouped by KV head.
pub(crate) const GROUPED_QKV: &[(&str, Change)] = &[
    ("attn_qkv.weight", Change::UngroupQkv),
    ("attn_qkv.bias", Change::UngroupQkv),
];

/// Names of norms after each half of a layer that has none before.
pub(crate) const POST_NORMS: Names = &[
    ("post_attention_layernorm", "post_attention_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];

/// Name prefixes of vision encoders.
pub(crate) const VISION: &[&str] = &[
    "image_newline",
    "model.image_newline",
    "model.vision_model.",
    "model.connector.",
    "visual.",
    "model.visual.",
    "vision_tower.",
    "model.vision_tower.",
    "model.vision_adapter.",
    "model.vision_projection.",
    "multi_modal_projector.",
    "model.multi_modal_projector.",
];

impl HfLayout {
    /// The layout of Llama's folders.
    pub(crate) const LLAMA: Self = Self {
        prefixes: &[
            "model.language_model.",
            "language_model.model.",
            "language_model.",
            "model.text_model.",
            "model.",
        ],
        layers: "layers.",
        layer: &[],
        shared: &[],
        network: &[],
        ignored: &[],
        changes: &[],
        recasts: &[],
        has_plain_norms: false,
        drafts: Drafts::Left,
        arch_with_experts: None,
        own_activation: None,
    };

    /// Returns how the rows of queries and keys in GGUF files differ from the folder's.
    pub(crate) fn gguf_rows(&self) -> GgufRows {
        let has = |wanted| self.recasts.iter().any(|&(_, recast)| recast == wanted);
        if has(Recast::ScoreScale) {
            GgufRows::Scaled
        } else if has(Recast::NeighbouringQueries) {
            GgufRows::Neighbours
        } else {
            GgufRows::Same
        }
    }

    fn layer_tables(&self) -> Vec<Names> {
        [&[self.layer][..], self.shared, &[LLAMA_LAYER]].concat()
    }

    /// Returns the GGUF name of a tensor, and its share of the GGUF tensor; `None` if the name is unknown.
    pub(crate) fn gguf_name(&self, hf_name: &str) -> Option<(String, Share)> {
        let prefixes = self.prefixes.iter().copied().chain([""]);
        prefixes
            .filter_map(|prefix| hf_name.strip_prefix(prefix))
            .find_map(|rest| match rest.strip_prefix(self.layers) {
                Some(rest) => {
                    let (layer, name) = rest.split_once('.')?;
                    let layer_idx: usize = layer.parse().ok()?;
                    let (name, share) = find(name, &self.layer_tables())?;
                    Some((format!("blk.{layer_idx}.{name}"), share))
                }
                None => find(rest, &[self.network, LLAMA_NETWORK]),
            })
    }

    /// Returns the folder's name for the tensor with this GGUF name, without prefix: the first of several
    /// names, and part 0 of a tensor in parts. `None` if there is none.
    pub(crate) fn hf_name(&self, gguf_name: &str) -> Option<String> {
        let Some((layer, name)) = gguf_name
            .strip_prefix("blk.")
            .and_then(|rest| rest.split_once('.'))
        else {
            return find_back(gguf_name, &[self.network, LLAMA_NETWORK]);
        };
        let name = find_back(name, &self.layer_tables())?;
        Some(format!("{}{layer}.{name}", self.layers))
    }

    /// Returns the layer of a tensor, whose name need not be known; `None` if it is in no layer.
    pub(crate) fn layer_idx(&self, hf_name: &str) -> Option<usize> {
        let prefixes = self.prefixes.iter().copied().chain([""]);
        prefixes
            .filter_map(|prefix| hf_name.strip_prefix(prefix)?.strip_prefix(self.layers))
            .find_map(|rest| rest.split_once('.')?.0.parse().ok())
    }

    /// Returns the changes of the tensor with this GGUF name, in order.
    pub(crate) fn changes_of(&self, gguf_name: &str) -> impl Iterator<Item = Change> {
        (self.changes.iter())
            .filter(move |(end, _)| gguf_name.ends_with(end))
            .map(|&(_, change)| change)
    }

    /// Returns whether a tensor belongs to another network.
    pub(crate) fn ignores(&self, hf_name: &str) -> bool {
        self.ignored.iter().any(|start| hf_name.starts_with(start))
    }
}

/// Looks up a name in tables, the first of which has priority. A row for the whole name has priority over a
/// row for its stem.
fn find(name: &str, tables: &[Names]) -> Option<(String, Share)> {
    let rows = || tables.iter().copied().flatten();
    let whole = rows().find_map(|&(pattern, gguf_name)| {
        let share = matches(pattern, name)?;
        Some((gguf_name.to_owned(), share))
    });
    whole.or_else(|| {
        let (stem, part) = name.rsplit_once('.')?;
        rows().find_map(|&(pattern, gguf_name)| {
            let share = matches(pattern, stem)?;
            Some((format!("{gguf_name}.{part}"), share))
        })
    })
}

/// Returns the pattern for a GGUF name: the inverse of [`find`].
fn find_back(gguf_name: &str, tables: &[Names]) -> Option<String> {
    let pattern_of = |wanted: &str| {
        let mut rows = tables.iter().copied().flatten();
        let row = rows.find(|(_, name)| *name == wanted)?;
        Some(row.0.replace('*', "0"))
    };
    pattern_of(gguf_name).or_else(|| {
        let (stem, part) = gguf_name.rsplit_once('.')?;
        Some(format!("{}.{part}", pattern_of(stem)?))
    })
}

/// Matches a name against a pattern. A number in the place of a `*` stands for a slice.
fn matches(pattern: &str, name: &str) -> Option<Share> {
    let Some((start, end)) = pattern.split_once('*') else {
        let share = match pattern.rsplit_once('_') {
            Some((_, "blocks")) => Share::Blocks,
            Some((_, "scales")) => Share::Scales,
            _ => Share::Whole,
        };
        return (pattern == name).then_some(share);
    };
    let number = name.strip_prefix(start)?.strip_suffix(end)?;
    number.parse().ok().map(Share::Slice)
}

const LLAMA_NETWORK: Names = &[
    ("embed_tokens", "token_embd"),
    ("norm", "output_norm"),
    ("lm_head", "output"),
];

const LLAMA_LAYER: Names = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("self_attn.rotary_emb", "rotary_emb"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_behind_every_prefix_and_with_every_ending() {
        let layout = HfLayout {
            layer: &[
                ("mlp.experts.*.up_proj", "ffn_up_exps"),
                ("linear_attn.A_log", "ssm_a"),
                ("post_attention_layernorm", "post_attention_norm"),
            ],
            ..HfLayout::LLAMA
        };
        for (hf_name, expected) in [
            (
                "model.embed_tokens.weight",
                Some(("token_embd.weight", Share::Whole)),
            ),
            ("lm_head.bias", Some(("output.bias", Share::Whole))),
            (
                "language_model.lm_head.weight",
                Some(("output.weight", Share::Whole)),
            ),
            (
                "model.language_model.layers.3.self_attn.q_proj.bias",
                Some(("blk.3.attn_q.bias", Share::Whole)),
            ),
            (
                "model.layers.0.post_attention_layernorm.weight",
                Some(("blk.0.post_attention_norm.weight", Share::Whole)),
            ),
            (
                "model.layers.1.linear_attn.A_log",
                Some(("blk.1.ssm_a", Share::Whole)),
            ),
            (
                "model.layers.1.mlp.experts.12.up_proj.weight",
                Some(("blk.1.ffn_up_exps.weight", Share::Slice(12))),
            ),
            ("model.layers.x.self_attn.q_proj.weight", None),
            ("model.layers.1.mlp.experts.x.up_proj.weight", None),
            ("model.abnorm.weight", None),
            ("weight", None),
        ] {
            let expected = expected.map(|(name, share)| (name.to_owned(), share));
            assert_eq!(layout.gguf_name(hf_name), expected, "{hf_name}");
        }
    }

    #[test]
    fn names_are_found_back() {
        let layout = HfLayout {
            layer: &[
                ("mlp.experts.*.up_proj", "ffn_up_exps"),
                ("linear_attn.A_log", "ssm_a"),
            ],
            ..HfLayout::LLAMA
        };
        for (gguf_name, expected) in [
            ("output.weight", Some("lm_head.weight")),
            ("token_embd.weight", Some("embed_tokens.weight")),
            ("blk.3.attn_q.bias", Some("layers.3.self_attn.q_proj.bias")),
            (
                "blk.1.ffn_up_exps.weight",
                Some("layers.1.mlp.experts.0.up_proj.weight"),
            ),
            ("blk.1.ssm_a", Some("layers.1.linear_attn.A_log")),
            ("blk.1.nothing.weight", None),
            ("weight", None),
        ] {
            assert_eq!(layout.hf_name(gguf_name).as_deref(), expected, "{gguf_name}");
        }
    }

    #[test]
    fn a_tensor_of_an_unknown_name_has_a_layer() {
        let layer_idx = |hf_name| HfLayout::LLAMA.layer_idx(hf_name);
        assert_eq!(layer_idx("model.layers.61.shared_head.norm.weight"), Some(61));
        assert_eq!(layer_idx("layers.0.x"), Some(0));
        assert_eq!(layer_idx("model.layers.x.enorm.weight"), None);
        assert_eq!(layer_idx("model.norm.weight"), None);
    }
}
