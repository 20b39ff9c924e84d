//! [`HfLayout`]: what the tensors of a Hugging Face folder are called, and how their numbers differ from a GGUF file's.
//!
//! Separate from the configuration, which says what a network is, and from the folder, which reads tensors. Invariant: data
//! only. With it a folder offers the tensors that a GGUF file of the same network has, under the same names.

/// The layout of an architecture's folders. What it does not name is called as in Llama's folders.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HfLayout {
    /// What names may begin with, the most specific first. Names are also tried whole.
    pub(crate) prefixes: &'static [&'static str],
    /// What stands before a layer's index.
    pub(crate) layers: &'static str,
    /// Names of a layer's tensors. A name is matched whole, or without its last part (`weight`, `bias`), which stays.
    /// A `*` matches a number: the tensors are joined in its order, along a new outermost dimension.
    pub(crate) layer: Names,
    /// More names of a layer's tensors, which several architectures share.
    pub(crate) shared: Names,
    /// Names of other tensors, matched as those of layers are.
    pub(crate) network: Names,
    /// Beginnings of the names of tensors that belong to other networks of the folder, such as a vision encoder.
    pub(crate) ignored: &'static [&'static str],
    /// How numbers change, by the end of the GGUF name.
    pub(crate) changes: &'static [(&'static str, Change)],
    /// How the rows of queries and keys of GGUF files differ from the folder's.
    pub(crate) gguf_rows: GgufRows,
}

/// How the rows of queries and keys of an architecture's GGUF files differ from those of its folders. Descriptors of both
/// kinds account for it; adapters made for the one kind and used with the other have to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GgufRows {
    /// Not at all.
    Same,
    /// Pairs that turn together are neighbours; in folders they are one of each half of a head.
    Neighbours,
    /// They are multiplied by numbers of the configuration.
    Scaled,
}

/// Pairs of a Hugging Face name and a GGUF name.
pub(crate) type Names = &'static [(&'static str, &'static str)];

/// How the numbers of a tensor change on their way to the GGUF form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// `x + 1`: norms whose weights are stored as distances from 1.
    AddOne,
    /// `-exp(x)`: decays of recurrent layers, stored as logarithms.
    NegExp,
    /// A vector of all channels becomes one of each group of heads.
    SplitGroups,
    /// A table of fewer rows than the vocabulary has tokens gets its first row for each of the others.
    FillVocabulary,
    /// The first rows, so many, are left out.
    SkipRows(usize),
    /// A matrix `[n_in, n_out]` becomes `[n_out, n_in]`.
    Transpose,
    /// The rows of a fused QKV tensor come by KV head, each with its queries, its key and its value; they become all
    /// queries, all keys, all values.
    UngroupQkv,
    /// The matrices of experts lie with their inputs as rows, unless they are quantized; the outputs become the rows.
    TransposeExperts,
    /// As [`Self::TransposeExperts`] where they lie so: published folders and those that transformers saves differ.
    TransposeExpertsIfNeeded,
    /// Of each expert's rows, those of the gate and of up alternate; all of the gate come first.
    SplitPairs,
}

/// How much of a GGUF tensor a tensor of a folder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Share {
    /// All of it.
    Whole,
    /// One slice of its outermost dimension.
    Slice(usize),
    /// The 4-bit numbers of a tensor in MXFP4, whose scales are apart: names that end with `_blocks`.
    Blocks,
    /// The scales of such a tensor: names that end with `_scales`.
    Scales,
}

/// The GGUF name of tensors that repeat what is known without them, such as masks.
pub(crate) const UNUSED: &str = "(unused)";

/// Beginnings of the names of vision encoders.
pub(super) const VISION: &[&str] = &[
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
    /// Llama's own.
    pub(super) const LLAMA: Self = Self {
        prefixes: &[
            "model.language_model.",
            "language_model.model.",
            "language_model.",
            "model.",
        ],
        layers: "layers.",
        layer: &[],
        shared: &[],
        network: &[],
        ignored: &[],
        changes: &[],
        gguf_rows: GgufRows::Same,
    };

    /// The GGUF name of a tensor, and its share of the tensor there; `None` where the name is unknown.
    pub(crate) fn gguf_name(&self, hf_name: &str) -> Option<(String, Share)> {
        let prefixes = self.prefixes.iter().copied().chain([""]);
        prefixes
            .filter_map(|prefix| hf_name.strip_prefix(prefix))
            .find_map(|rest| match rest.strip_prefix(self.layers) {
                Some(rest) => {
                    let (layer, name) = rest.split_once('.')?;
                    let layer_idx: usize = layer.parse().ok()?;
                    let (name, share) = find(name, &[self.layer, self.shared, LLAMA_LAYER])?;
                    Some((format!("blk.{layer_idx}.{name}"), share))
                }
                None => find(rest, &[self.network, LLAMA_NETWORK]),
            })
    }

    /// What a folder calls the tensor with this GGUF name, without what may stand before it: the first of several names, and of parts
    /// the one numbered 0. `None` where there is none.
    pub(crate) fn hf_name(&self, gguf_name: &str) -> Option<String> {
        let Some((layer, name)) = gguf_name
            .strip_prefix("blk.")
            .and_then(|rest| rest.split_once('.'))
        else {
            return find_back(gguf_name, &[self.network, LLAMA_NETWORK]);
        };
        let name = find_back(name, &[self.layer, self.shared, LLAMA_LAYER])?;
        Some(format!("{}{layer}.{name}", self.layers))
    }

    /// The layer of a tensor, which need not have a known name; `None` where it is in none.
    pub(crate) fn layer_idx(&self, hf_name: &str) -> Option<usize> {
        let prefixes = self.prefixes.iter().copied().chain([""]);
        prefixes
            .filter_map(|prefix| hf_name.strip_prefix(prefix)?.strip_prefix(self.layers))
            .find_map(|rest| rest.split_once('.')?.0.parse().ok())
    }

    /// How the numbers of the tensor with this GGUF name change, one after the other.
    pub(crate) fn changes_of(&self, gguf_name: &str) -> impl Iterator<Item = Change> {
        (self.changes.iter())
            .filter(move |(end, _)| gguf_name.ends_with(end))
            .map(|&(_, change)| change)
    }

    /// Whether a tensor belongs to another network.
    pub(crate) fn ignores(&self, hf_name: &str) -> bool {
        self.ignored.iter().any(|start| hf_name.starts_with(start))
    }
}

/// Finds a name in tables, the first of which goes before the others. A row for the whole name goes before one for all of
/// its stem.
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

/// Finds the pattern of a GGUF name in tables, as [`find`] does the other way.
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

/// What a name that has the form of a pattern stands for: a slice, where there is a number in the place of a `*`.
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
