//! [`FolderNames`]: the names of an image encoder's tensors in Hugging Face folders.
//!
//! Invariant: each tensor of a supported encoder has a row, so an unlisted tensor means an unsupported
//! variant.
//!
//! Source: llama.cpp, `gguf-py/gguf/tensor_mapping.py`, `conversion/qwenvl.py` and `qwen3vl.py`.

use super::VisionFamily;

/// A tensor's names without prefix and suffix, in the folder and in the file. `#` is the layer number.
type Row = (&'static str, &'static str, Part);

/// The part of a folder's tensor that becomes a tensor of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The whole tensor.
    Whole,
    /// The whole tensor, with 1 added to each number.
    PlusOne,
    /// A third of the rows.
    Third(usize),
    /// One of the two frames of patches.
    Frame(usize),
}

const GEMMA3: &[Row] = &[
    ("embeddings.patch_embedding", "v.patch_embd", Part::Whole),
    ("embeddings.position_embedding", "v.position_embd", Part::Whole),
    ("encoder.layers.#.layer_norm1", "v.blk.#.ln1", Part::Whole),
    ("encoder.layers.#.layer_norm2", "v.blk.#.ln2", Part::Whole),
    ("encoder.layers.#.self_attn.q_proj", "v.blk.#.attn_q", Part::Whole),
    ("encoder.layers.#.self_attn.k_proj", "v.blk.#.attn_k", Part::Whole),
    ("encoder.layers.#.self_attn.v_proj", "v.blk.#.attn_v", Part::Whole),
    (
        "encoder.layers.#.self_attn.out_proj",
        "v.blk.#.attn_out",
        Part::Whole,
    ),
    ("encoder.layers.#.mlp.fc1", "v.blk.#.ffn_up", Part::Whole),
    ("encoder.layers.#.mlp.fc2", "v.blk.#.ffn_down", Part::Whole),
    ("post_layernorm", "v.post_ln", Part::Whole),
    ("mm_input_projection", "mm.input_projection", Part::Whole),
    ("mm_soft_emb_norm", "mm.soft_emb_norm", Part::PlusOne),
];

/// The tensors that Qwen 2 VL and 2.5 VL share.
const QWEN2: &[Row] = &[
    ("patch_embed.proj", "v.patch_embd", Part::Frame(0)),
    ("patch_embed.proj", "v.patch_embd", Part::Frame(1)),
    ("blocks.#.norm1", "v.blk.#.ln1", Part::Whole),
    ("blocks.#.norm2", "v.blk.#.ln2", Part::Whole),
    ("blocks.#.attn.qkv", "v.blk.#.attn_q", Part::Third(0)),
    ("blocks.#.attn.qkv", "v.blk.#.attn_k", Part::Third(1)),
    ("blocks.#.attn.qkv", "v.blk.#.attn_v", Part::Third(2)),
    ("blocks.#.attn.proj", "v.blk.#.attn_out", Part::Whole),
    ("merger.ln_q", "v.post_ln", Part::Whole),
    ("merger.mlp.0", "mm.0", Part::Whole),
    ("merger.mlp.2", "mm.2", Part::Whole),
];

const QWEN2_FFN: &[Row] = &[
    ("blocks.#.mlp.fc1", "v.blk.#.ffn_up", Part::Whole),
    ("blocks.#.mlp.fc2", "v.blk.#.ffn_down", Part::Whole),
];

const QWEN25_FFN: &[Row] = &[
    ("blocks.#.mlp.gate_proj", "v.blk.#.ffn_gate", Part::Whole),
    ("blocks.#.mlp.up_proj", "v.blk.#.ffn_up", Part::Whole),
    ("blocks.#.mlp.down_proj", "v.blk.#.ffn_down", Part::Whole),
];

const QWEN3: &[Row] = &[
    ("patch_embed.proj", "v.patch_embd", Part::Frame(0)),
    ("patch_embed.proj", "v.patch_embd", Part::Frame(1)),
    ("pos_embed", "v.position_embd", Part::Whole),
    ("blocks.#.norm1", "v.blk.#.ln1", Part::Whole),
    ("blocks.#.norm2", "v.blk.#.ln2", Part::Whole),
    ("blocks.#.attn.qkv", "v.blk.#.attn_qkv", Part::Whole),
    ("blocks.#.attn.proj", "v.blk.#.attn_out", Part::Whole),
    ("blocks.#.mlp.linear_fc1", "v.blk.#.ffn_up", Part::Whole),
    ("blocks.#.mlp.linear_fc2", "v.blk.#.ffn_down", Part::Whole),
    ("merger.norm", "v.post_ln", Part::Whole),
    ("merger.linear_fc1", "mm.0", Part::Whole),
    ("merger.linear_fc2", "mm.2", Part::Whole),
    ("deepstack_merger_list.#.norm", "v.deepstack.#.norm", Part::Whole),
    (
        "deepstack_merger_list.#.linear_fc1",
        "v.deepstack.#.fc1",
        Part::Whole,
    ),
    (
        "deepstack_merger_list.#.linear_fc2",
        "v.deepstack.#.fc2",
        Part::Whole,
    ),
];

/// Name prefixes, in published folders and in those written by newer versions of transformers.
const GEMMA3_PREFIXES: [&str; 3] = [
    "vision_tower.vision_model.",
    "vision_tower.",
    "multi_modal_projector.",
];
const QWEN_PREFIXES: [&str; 1] = ["visual."];

/// The part of Gemma 3's encoder that reduces an image to one row; the model does not use it.
const UNUSED_HEAD: &str = "head.";

/// The destination of a part of a tensor.
pub(super) struct Place {
    /// The tensor's name in the file.
    pub(super) name: String,
    pub(super) part: Part,
}

/// The names of a family.
pub(super) struct FolderNames {
    rows: Vec<Row>,
    prefixes: &'static [&'static str],
    /// The tapped layers, in the order of the folder's list.
    taps: Vec<usize>,
    /// The prefix of layer names in this folder.
    found: Option<String>,
}

impl FolderNames {
    pub(super) fn of(family: VisionFamily, taps: Vec<usize>) -> Self {
        let (rows, prefixes): (_, &[_]) = match family {
            VisionFamily::Gemma3 => (GEMMA3.to_vec(), &GEMMA3_PREFIXES),
            VisionFamily::Qwen2Vl => ([QWEN2, QWEN2_FFN].concat(), &QWEN_PREFIXES),
            VisionFamily::Qwen25Vl => ([QWEN2, QWEN25_FFN].concat(), &QWEN_PREFIXES),
            VisionFamily::Qwen3Vl => (QWEN3.to_vec(), &QWEN_PREFIXES),
        };
        Self {
            rows,
            prefixes,
            taps,
            found: None,
        }
    }

    /// Returns a tensor's name without prefix; `None` if the tensor does not belong to the encoder.
    pub(super) fn own_part(&mut self, hf_name: &str) -> Option<String> {
        let rest = hf_name.strip_prefix("model.").unwrap_or(hf_name);
        let own = self
            .prefixes
            .iter()
            .find_map(|prefix| rest.strip_prefix(prefix))?;
        if own.starts_with(UNUSED_HEAD) {
            return None;
        }
        if own.starts_with("encoder.layers.") || own.starts_with("blocks.") {
            self.found = Some(hf_name[..hf_name.len() - own.len()].to_owned());
        }
        Some(own.to_owned())
    }

    /// Returns the destinations of a tensor's parts; none for an unknown tensor.
    pub(super) fn places(&self, own: &str) -> Vec<Place> {
        // Gemma 3 has a matrix without a module.
        let split = (own.rsplit_once('.')).filter(|(_, suffix)| matches!(*suffix, "weight" | "bias"));
        let Some((stem, suffix)) = split.or_else(|| Some((own.strip_suffix("_weight")?, "weight"))) else {
            return Vec::new();
        };
        let (pattern, number) = numbered(stem);
        let is_bias = suffix == "bias";
        let place = |&(hf, gguf, part): &Row| {
            let number = match number.filter(|_| hf == pattern) {
                Some(number) if gguf.starts_with("v.deepstack.") => Some(*self.taps.get(number)?),
                Some(number) => Some(number),
                None if hf == stem => None,
                None => return None,
            };
            let name = number.map_or_else(
                || gguf.to_owned(),
                |number| gguf.replace('#', &number.to_string()),
            );
            Some(match part {
                // The bias goes to one frame only, so that it is added once.
                Part::Frame(0) if is_bias => Place {
                    name: format!("{name}.bias"),
                    part: Part::Whole,
                },
                Part::Frame(_) if is_bias => return None,
                Part::Frame(1) => Place {
                    name: format!("{name}.weight.1"),
                    part,
                },
                _ => Place {
                    name: format!("{name}.{suffix}"),
                    part,
                },
            })
        };
        self.rows.iter().filter_map(place).collect()
    }

    /// Returns the folder's name of a tensor of the file, or the name that it would have.
    pub(super) fn hf_name(&self, gguf_name: &str) -> Option<String> {
        let name = gguf_name.strip_suffix(".1").unwrap_or(gguf_name);
        let (stem, suffix) = name.rsplit_once('.')?;
        let (pattern, number) = numbered(stem);
        let of_number = |row: &&Row| row.1 == pattern && number.is_some();
        let (hf, number) = match self.rows.iter().find(of_number) {
            Some((hf, gguf, _)) if gguf.starts_with("v.deepstack.") => {
                (hf, self.taps.iter().position(|&tap| Some(tap) == number)?)
            }
            Some((hf, ..)) => (hf, number?),
            None => (&self.rows.iter().find(|row| row.1 == stem)?.0, 0),
        };
        let own = hf.replace('#', &number.to_string());
        let found = self.found.as_deref().unwrap_or(self.prefixes[0]);
        if !own.starts_with("mm_") {
            return Some(format!("{found}{own}.{suffix}"));
        }
        let outer = if found.starts_with("model.") { "model." } else { "" };
        let dot = if own == "mm_input_projection" { '_' } else { '.' };
        Some(format!("{outer}multi_modal_projector.{own}{dot}{suffix}"))
    }
}

/// Replaces the first number of a name by `#`; returns the name and the number.
fn numbered(name: &str) -> (String, Option<usize>) {
    let mut parts: Vec<&str> = name.split('.').collect();
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let Some(at) = parts.iter().position(is_number) else {
        return (name.to_owned(), None);
    };
    let number = parts[at].parse().ok();
    parts[at] = "#";
    (parts.join("."), number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(family: VisionFamily, hf_name: &str, expected: &[(&str, Part)]) {
        let mut names = FolderNames::of(family, vec![5, 11]);
        let own = names.own_part(hf_name).unwrap();
        let places = names.places(&own);
        let found: Vec<_> = (places.iter().map(|place| (place.name.as_str(), place.part))).collect();
        assert_eq!(found, expected, "{hf_name}");
        for place in &places {
            let from = format!("{}x", names.found.clone().unwrap_or_default());
            let back = names.hf_name(&place.name).unwrap();
            assert!(
                back == hf_name || from == "x" && hf_name.ends_with(back.split_once('.').unwrap().1),
                "{} of {hf_name}: {back}",
                place.name
            );
        }
    }

    #[test]
    fn tensors_have_the_names_of_files() {
        use VisionFamily::{Gemma3, Qwen2Vl, Qwen3Vl, Qwen25Vl};
        let whole = |name| [(name, Part::Whole)];
        for prefix in ["", "model."] {
            for tower in ["vision_tower.vision_model", "vision_tower"] {
                let name = |part: &str| format!("{prefix}{tower}.{part}");
                check(
                    Gemma3,
                    &name("encoder.layers.26.self_attn.out_proj.bias"),
                    &whole("v.blk.26.attn_out.bias"),
                );
            }
            let name = |part: &str| format!("{prefix}visual.{part}");
            check(
                Qwen2Vl,
                &name("blocks.0.mlp.fc1.weight"),
                &whole("v.blk.0.ffn_up.weight"),
            );
            check(
                Qwen25Vl,
                &name("blocks.3.mlp.up_proj.weight"),
                &whole("v.blk.3.ffn_up.weight"),
            );
            check(
                Qwen25Vl,
                &name("blocks.31.attn.qkv.bias"),
                &[
                    ("v.blk.31.attn_q.bias", Part::Third(0)),
                    ("v.blk.31.attn_k.bias", Part::Third(1)),
                    ("v.blk.31.attn_v.bias", Part::Third(2)),
                ],
            );
            check(
                Qwen3Vl,
                &name("blocks.2.attn.qkv.weight"),
                &whole("v.blk.2.attn_qkv.weight"),
            );
        }
        check(
            Qwen3Vl,
            "visual.deepstack_merger_list.1.linear_fc2.weight",
            &whole("v.deepstack.11.fc2.weight"),
        );
        check(Qwen2Vl, "visual.merger.mlp.0.bias", &whole("mm.0.bias"));
        check(
            Qwen3Vl,
            "visual.patch_embed.proj.weight",
            &[
                ("v.patch_embd.weight", Part::Frame(0)),
                ("v.patch_embd.weight.1", Part::Frame(1)),
            ],
        );
        check(
            Qwen3Vl,
            "visual.patch_embed.proj.bias",
            &whole("v.patch_embd.bias"),
        );
        check(
            Gemma3,
            "multi_modal_projector.mm_input_projection_weight",
            &whole("mm.input_projection.weight"),
        );
        check(
            Gemma3,
            "multi_modal_projector.mm_soft_emb_norm.weight",
            &[("mm.soft_emb_norm.weight", Part::PlusOne)],
        );
    }

    #[test]
    fn other_tensors_have_no_place() {
        let mut names = FolderNames::of(VisionFamily::Qwen3Vl, vec![5, 11]);
        for name in [
            "model.layers.0.self_attn.q_proj.weight",
            "lm_head.weight",
            "model.language_model.layers.0.mlp.up_proj.weight",
        ] {
            assert_eq!(names.own_part(name), None, "{name}");
        }
        for own in [
            "blocks.0.scale",
            "blocks.0.more.weight",
            "deepstack_merger_list.2.norm.weight",
            "",
        ] {
            assert!(names.places(own).is_empty(), "{own}");
        }
        let mut names = FolderNames::of(VisionFamily::Gemma3, Vec::new());
        assert_eq!(names.own_part("vision_tower.vision_model.head.probe"), None);
    }
}
