//! [`Recipe`]: the type of each tensor of a quantized file.
//!
//! A file called `Q4_K_M` holds several types; the mix decides its size and speed, so it must be the one that users
//! have. Source: `llama_tensor_get_type` in llama.cpp (`src/llama-quant.cpp`), without an importance matrix. Models
//! of exactly 8 experts, which it treats differently, are not among the presets.

use anyhow::Context;
use tokenmill_gguf::TensorType;

use super::preset::Preset;

/// A kind of file: the type of most tensors, and the tensors with more bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recipe {
    pub(super) name: &'static str,
    /// The value of `general.file_type`.
    pub(super) file_type: u32,
    base: TensorType,
    mix: Mix,
}

/// Selects the tensors with another type than the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mix {
    None,
    Small,
    Medium,
    Large,
    /// Experts have the base type, all others 8 bits.
    Experts,
}

const fn recipe(name: &'static str, file_type: u32, base: TensorType, mix: Mix) -> Recipe {
    Recipe {
        name,
        file_type,
        base,
        mix,
    }
}

pub(super) const RECIPES: [Recipe; 20] = [
    recipe("F32", 0, TensorType::F32, Mix::None),
    recipe("F16", 1, TensorType::F16, Mix::None),
    recipe("BF16", 32, TensorType::BF16, Mix::None),
    recipe("Q4_0", 2, TensorType::Q4_0, Mix::None),
    recipe("Q4_1", 3, TensorType::Q4_1, Mix::None),
    recipe("Q5_0", 8, TensorType::Q5_0, Mix::None),
    recipe("Q5_1", 9, TensorType::Q5_1, Mix::None),
    recipe("Q8_0", 7, TensorType::Q8_0, Mix::None),
    recipe("Q2_K", 10, TensorType::Q2_K, Mix::Medium),
    recipe("Q3_K_S", 11, TensorType::Q3_K, Mix::None),
    recipe("Q3_K_M", 12, TensorType::Q3_K, Mix::Medium),
    recipe("Q3_K_L", 13, TensorType::Q3_K, Mix::Large),
    recipe("Q4_K_S", 14, TensorType::Q4_K, Mix::Small),
    recipe("Q4_K_M", 15, TensorType::Q4_K, Mix::Medium),
    recipe("Q5_K_S", 16, TensorType::Q5_K, Mix::None),
    recipe("Q5_K_M", 17, TensorType::Q5_K, Mix::Medium),
    recipe("Q6_K", 18, TensorType::Q6_K, Mix::None),
    recipe("IQ4_NL", 25, TensorType::IQ4_NL, Mix::Small),
    recipe("IQ4_XS", 30, TensorType::IQ4_XS, Mix::Small),
    recipe("MXFP4_MOE", 38, TensorType::MXFP4, Mix::Experts),
];

impl Recipe {
    /// Finds a recipe by its name, in upper or lower case.
    ///
    /// # Errors
    /// A name that no recipe has.
    pub(super) fn find(name: &str) -> anyhow::Result<&'static Self> {
        let is_it = |recipe: &&Self| recipe.name.eq_ignore_ascii_case(name);
        RECIPES.iter().find(is_it).with_context(|| {
            let names = RECIPES.map(|recipe| recipe.name).join(", ");
            format!("unknown type `{name}`; known are {names}")
        })
    }

    /// Returns whether the weights are quantized.
    pub(super) fn is_quantized(&self) -> bool {
        self.base.block_len() > 1
    }

    /// Returns the type of the weight `name`, whose rows have `row_len` elements.
    pub(super) fn type_of(&self, preset: &Preset, name: &str, row_len: u64) -> TensorType {
        if !self.is_quantized() {
            return self.base;
        }
        if self.mix == Mix::Experts && !name.ends_with("_exps.weight") {
            return fitting(TensorType::Q8_0, row_len);
        }
        let is_head = name == "output.weight" || preset.is_tied && name == "token_embd.weight";
        let wanted = if !is_head {
            self.mixed_type(preset, name)
        } else if self.base == TensorType::Q8_0 || !row_len.is_multiple_of(256) {
            TensorType::Q8_0
        } else {
            TensorType::Q6_K
        };
        fitting(wanted, row_len)
    }

    /// Returns the type of a weight other than the head, without regard to its rows.
    fn mixed_type(&self, preset: &Preset, name: &str) -> TensorType {
        let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let Some((layer_idx, tensor)) = layer else {
            return self.base;
        };
        let layer_idx: u32 = layer_idx.parse().expect("the number of a layer");
        let n_layers = preset.n_layers;
        let shares_kv_widely = preset.n_heads / preset.n_kv_heads >= 4;
        // Experts have the type of the dense network that they replace, and joined matrices that of the values
        // among them.
        let tensor = match tensor {
            "attn_qkv.weight" => "attn_v.weight",
            "ffn_down_exps.weight" => "ffn_down.weight",
            other => other,
        };
        let is_key_layer = needs_more_bits(layer_idx, n_layers);
        match (self.base, self.mix, tensor) {
            (TensorType::Q2_K, _, "attn_v.weight") if shares_kv_widely => TensorType::Q4_K,
            (TensorType::Q2_K, _, "attn_v.weight" | "attn_output.weight" | "ffn_down.weight") => {
                TensorType::Q3_K
            }

            (TensorType::Q3_K, Mix::Medium, "attn_v.weight") if layer_idx < 2 => TensorType::Q5_K,
            (TensorType::Q3_K, Mix::Medium, "ffn_down.weight") if layer_idx < n_layers / 16 => {
                TensorType::Q5_K
            }
            (TensorType::Q3_K, Mix::Medium, "attn_v.weight" | "attn_output.weight" | "ffn_down.weight") => {
                TensorType::Q4_K
            }
            (TensorType::Q3_K, Mix::Large, "attn_v.weight" | "attn_output.weight" | "ffn_down.weight") => {
                TensorType::Q5_K
            }

            (TensorType::Q4_K, Mix::Small, "attn_v.weight") if layer_idx < 4 => TensorType::Q5_K,
            (TensorType::Q4_K, Mix::Small, "ffn_down.weight") if layer_idx < n_layers / 8 => TensorType::Q5_K,
            (TensorType::Q4_K | TensorType::Q5_K, Mix::Medium, "attn_v.weight" | "ffn_down.weight")
                if is_key_layer =>
            {
                TensorType::Q6_K
            }

            (TensorType::IQ4_NL | TensorType::IQ4_XS, _, "attn_v.weight") if shares_kv_widely => {
                TensorType::Q5_K
            }
            (TensorType::IQ4_NL | TensorType::IQ4_XS, _, "ffn_down.weight") if layer_idx < n_layers / 8 => {
                TensorType::Q5_K
            }
            _ => self.base,
        }
    }
}

/// Returns whether a layer is among those whose errors cost most: the first and last eighth, and every third
/// between.
fn needs_more_bits(layer_idx: u32, n_layers: u32) -> bool {
    let eighth = n_layers / 8;
    layer_idx < eighth || layer_idx >= 7 * n_layers / 8 || (layer_idx - eighth) % 3 == 2
}

/// Returns the nearest type whose blocks fill rows of this length.
fn fitting(wanted: TensorType, row_len: u64) -> TensorType {
    if row_len.is_multiple_of(wanted.block_len() as u64) {
        return wanted;
    }
    match wanted {
        TensorType::Q2_K | TensorType::Q3_K | TensorType::IQ4_XS => TensorType::IQ4_NL,
        TensorType::Q4_K => TensorType::Q5_0,
        TensorType::Q5_K => TensorType::Q5_1,
        TensorType::Q6_K => TensorType::Q8_0,
        _ => TensorType::F16,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{super::tensors::TensorKind, *};

    /// One section of a snapshot: the base type, and the tensors that have another.
    struct Section<'a> {
        base: &'a str,
        others: HashMap<&'a str, &'a str>,
    }

    fn sections(text: &str) -> HashMap<&str, Section<'_>> {
        let mut sections = HashMap::new();
        let mut name = "";
        for line in text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            if let Some((head, base)) = line.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
                name = head;
                let others = HashMap::new();
                sections.insert(name, Section { base, others });
            } else if let (Some((tensor, ty)), Some(section)) = (line.split_once(' '), sections.get_mut(name))
            {
                section.others.insert(tensor, ty);
            }
        }
        sections
    }

    #[test]
    fn mixes_are_those_of_the_reference_quantizer() {
        let mut comparisons = tokenmill_testkit::Comparisons::of("mixes of types");
        let Some(dir) = comparisons.find("gguf/quant-mix-snapshots") else {
            return;
        };
        let qwen3 = Preset::find("qwen3-0.6b").unwrap();
        // The snapshots' models have heads of their own.
        let small = Preset {
            is_tied: false,
            ..qwen3.clone()
        };
        let large = Preset {
            n_layers: 40,
            n_heads: 40,
            n_kv_heads: 8,
            ..small.clone()
        };
        let gemma = Preset::find("gemma-3-4b").unwrap().clone();
        let experts = Preset {
            n_layers: 36,
            ..Preset::find("gpt-oss-20b-6l").unwrap().clone()
        };
        for (name, preset) in [
            ("qwen3-0.6b", small),
            ("qwen3-14b", large),
            ("gemma-3-4b-it", gemma),
            ("gpt-oss-120b", experts),
        ] {
            let path = dir.join(format!("{name}.schema"));
            // Rows that no super-block fills get other small types there; such models are not made in those types.
            let is_compared = |recipe: &&Recipe| {
                name != "gpt-oss-120b" || ["Q4_0", "Q4_K_M", "Q8_0", "MXFP4_MOE"].contains(&recipe.name)
            };
            let recipes: Vec<&Recipe> = RECIPES.iter().filter(is_compared).collect();
            check_against_snapshot(&preset, &recipes, &std::fs::read_to_string(path).unwrap());
            comparisons.compared(recipes.len());
        }
    }

    fn check_against_snapshot(preset: &Preset, recipes: &[&Recipe], snapshot: &str) {
        let sections = sections(snapshot);
        for recipe in recipes {
            let section = &sections[recipe.name];
            for tensor in (preset.tensors().iter()).filter(|tensor| tensor.kind == TensorKind::Weight) {
                let expected = section
                    .others
                    .get(tensor.name.as_str())
                    .copied()
                    .unwrap_or(section.base);
                let found = recipe.type_of(preset, &tensor.name, tensor.dims[0]);
                assert!(
                    found.name().eq_ignore_ascii_case(expected),
                    "{} of {}: {found}, expected {expected}",
                    tensor.name,
                    recipe.name
                );
            }
        }
    }

    #[test]
    fn rows_that_no_super_block_fills_get_a_smaller_block() {
        let preset = Preset::find("qwen2.5-0.5b").unwrap();
        let check = |name: &str, row_len, expected| {
            let recipe = Recipe::find("Q4_K_M").unwrap();
            assert_eq!(recipe.type_of(preset, name, row_len), expected, "{name}");
        };
        check("token_embd.weight", 896, TensorType::Q8_0);
        check("blk.5.attn_q.weight", 896, TensorType::Q5_0);
        check("blk.0.attn_v.weight", 896, TensorType::Q8_0);
        check("blk.0.ffn_down.weight", 4864, TensorType::Q6_K);
    }
}
