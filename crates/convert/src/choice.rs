//! [`choose`]: the type of each tensor in a quantized model.
//!
//! It does not work on files, because a model is also quantized while it loads. Invariant: tensors are
//! processed in the order in which llama.cpp writes them, since some rules count them, and the choices are
//! the same.
//!
//! Source: ggml-org/llama.cpp, `src/llama-quant.cpp` (`llama_tensor_get_type`, `tensor_type_fallback`, `tensor_requires_imatrix`).

use tokenmill_gguf::TensorType;

use crate::{
    ConvertError, ModelShape, Preset, Recipe, TensorShape,
    role::{self, Role},
};

/// The chosen type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeChoice {
    /// The chosen type.
    pub ty: TensorType,
    /// The type that the rules give it, if its rows are not whole blocks of that type.
    pub instead_of: Option<TensorType>,
    /// Whether the type is useless without an importance matrix.
    pub needs_importance: bool,
}

/// Returns the sort key of tensors in a quantized file: tensors outside layers first, then by layer, then by
/// name.
pub(crate) fn reference_order(name: &str) -> (Option<usize>, &str) {
    (layer_of(name), name)
}

fn layer_of(name: &str) -> Option<usize> {
    let (number, _) = name.strip_prefix("blk.")?.split_once('.')?;
    number.parse().ok()
}

/// Chooses a type for each tensor; the choices are in the order of `tensors`.
///
/// # Errors
/// [`ConvertError::NoFallback`] and [`ConvertError::PartialBlocks`].
pub fn choose(
    model: &ModelShape,
    recipe: &Recipe,
    has_importance: bool,
    tensors: &[TensorShape<'_>],
) -> Result<Vec<TypeChoice>, ConvertError> {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&idx| reference_order(tensors[idx].name));
    let count = |role| {
        tensors
            .iter()
            .filter(|tensor| Role::of(tensor.name) == role)
            .count()
    };
    let mut rules = Rules {
        model,
        recipe,
        has_importance,
        is_tied: count(Role::Output) == 0,
        n_values: count(Role::Value),
        value_idx: 0,
        down_idx: 0,
        gate_idx: 0,
        up_idx: 0,
    };
    let mut choices = vec![None; tensors.len()];
    for idx in order {
        choices[idx] = Some(rules.choose(&tensors[idx])?);
    }
    Ok(choices
        .into_iter()
        .map(|choice| choice.expect("each index is in the order once"))
        .collect())
}

/// The rules, with their counters.
struct Rules<'a> {
    model: &'a ModelShape,
    recipe: &'a Recipe,
    has_importance: bool,
    /// Whether the embeddings are also the output projection.
    is_tied: bool,
    n_values: usize,
    value_idx: usize,
    down_idx: usize,
    gate_idx: usize,
    up_idx: usize,
}

/// Returns whether a layer gets more bits: the first and the last eighth do, and every third layer between.
fn gets_more_bits(layer_idx: usize, n_layers: usize) -> bool {
    let eighth = n_layers / 8;
    layer_idx < eighth || layer_idx >= n_layers.saturating_mul(7) / 8 || (layer_idx - eighth) % 3 == 2
}

impl Rules<'_> {
    fn choose(&mut self, tensor: &TensorShape<'_>) -> Result<TypeChoice, ConvertError> {
        let n_dims = tensor
            .dims
            .iter()
            .rposition(|&dim| dim > 1)
            .map_or(1, |last| last + 1);
        let role = Role::of(tensor.name);
        let is_kept =
            !role::is_quantized(tensor.name, n_dims) || self.recipe.keeps_output && role == Role::Output;
        if is_kept {
            return Ok(TypeChoice {
                ty: tensor.ty,
                instead_of: None,
                needs_importance: false,
            });
        }
        let default = self.recipe.preset.default_type();
        let given = match role {
            Role::Embedding => self.recipe.embedding_type,
            Role::Output => self.recipe.output_type,
            _ => None,
        };
        let (wanted, ty) = match given {
            Some(ty) => (ty, ty),
            None if is_float(default) => (default, default),
            None => {
                let wanted = self.wanted(tensor, role, default)?;
                (wanted, fitting(tensor, wanted)?)
            }
        };
        if ty.row_bytes(tensor.dims[0]).is_none() {
            return Err(ConvertError::PartialBlocks {
                name: tensor.name.to_owned(),
                ty,
                row_len: tensor.dims[0],
            });
        }
        Ok(TypeChoice {
            ty,
            instead_of: (ty != wanted).then_some(wanted),
            needs_importance: self.needs_importance(role, ty),
        })
    }

    /// Returns the type that the recipe gives to a tensor, regardless of the length of its rows.
    fn wanted(
        &mut self,
        tensor: &TensorShape<'_>,
        role: Role,
        default: TensorType,
    ) -> Result<TensorType, ConvertError> {
        let by_name = self
            .recipe
            .tensor_types
            .iter()
            .find(|(pattern, _)| pattern.is_match(tensor.name));
        match by_name {
            Some(&(_, ty)) => Ok(ty),
            None if self.recipe.is_pure => Ok(default),
            None => self.mixed(tensor, role, default),
        }
    }

    fn needs_importance(&self, role: Role, ty: TensorType) -> bool {
        use TensorType as T;
        if matches!(role, Role::Embedding | Role::Output) {
            return false;
        }
        match ty {
            T::IQ3_XXS | T::IQ2_XXS | T::IQ2_XS | T::IQ2_S | T::IQ1_M | T::IQ1_S => true,
            T::Q2_K => self.recipe.preset == Preset::Q2_K_S,
            _ => false,
        }
    }

    /// Returns the type that the preset's mixture gives to a tensor.
    fn mixed(
        &mut self,
        tensor: &TensorShape<'_>,
        role: Role,
        default: TensorType,
    ) -> Result<TensorType, ConvertError> {
        use Preset as P;
        use TensorType as T;
        let preset = self.recipe.preset;
        let is_output = role == Role::Output || self.is_tied && role == Role::Embedding;
        if is_output {
            return Ok(self.output(tensor, default));
        }
        if preset == P::MXFP4_MOE {
            let is_expert = tensor.dims.get(2).is_some_and(|&n| n > 1);
            return Ok(if is_expert { T::MXFP4 } else { T::Q8_0 });
        }
        Ok(match role {
            Role::Embedding => match preset {
                P::IQ2_XXS | P::IQ2_XS | P::IQ1_S | P::IQ1_M => T::Q2_K,
                P::IQ2_S | P::IQ2_M | P::IQ3_XXS => T::IQ3_S,
                P::TQ1_0 | P::TQ2_0 | P::Q2_0 => T::Q4_K,
                _ => default,
            },
            _ if is_below_three_bits(preset) => self.below_three_bits(role, default),
            Role::Value => self.value(default),
            Role::Key | Role::Query => match preset {
                _ if role == Role::Key && self.model.n_experts == 8 => T::Q8_0,
                P::IQ3_XS => T::IQ3_XXS,
                P::IQ3_XXS => T::IQ2_S,
                _ => default,
            },
            Role::Down => {
                let layer_idx = self.layer_idx(tensor.name, self.down_idx)?;
                self.down_idx += 1;
                self.down(layer_idx, default)
            }
            Role::AttentionOutput => self.attention_output(default),
            Role::Gate => {
                let layer_idx = self.layer_idx(tensor.name, self.gate_idx)?;
                self.gate_idx += 1;
                self.gate_or_up(layer_idx, default)
            }
            Role::Up => {
                let layer_idx = self.layer_idx(tensor.name, self.up_idx)?;
                self.up_idx += 1;
                self.gate_or_up(layer_idx, default)
            }
            Role::Output | Role::Other => default,
        })
    }

    /// Returns the layer of a tensor. With experts it is taken from the name, otherwise tensors are counted.
    fn layer_idx(&self, name: &str, counted: usize) -> Result<usize, ConvertError> {
        if self.model.n_experts <= 1 {
            return Ok(counted);
        }
        layer_of(name)
            .filter(|&layer_idx| layer_idx < self.model.n_layers)
            .ok_or_else(|| ConvertError::NoLayer {
                name: name.to_owned(),
                n_layers: self.model.n_layers,
            })
    }

    fn is_falcon(&self) -> bool {
        self.model.architecture == "falcon"
    }

    fn output(&self, tensor: &TensorShape<'_>, default: TensorType) -> TensorType {
        use Preset as P;
        use TensorType as T;
        if let Some(ty) = self.recipe.output_type {
            return ty;
        }
        let is_whole = tensor.dims[0].is_multiple_of(default.block_len());
        match self.recipe.preset {
            P::MXFP4_MOE => T::Q8_0,
            _ if self.is_falcon() || !is_whole || default == T::Q8_0 => T::Q8_0,
            P::IQ2_XXS | P::IQ2_XS | P::IQ3_XXS | P::IQ1_S | P::IQ2_S | P::IQ2_M | P::IQ1_M => T::Q5_K,
            _ => T::Q6_K,
        }
    }

    fn below_three_bits(&mut self, role: Role, default: TensorType) -> TensorType {
        use Preset as P;
        use TensorType as T;
        let preset = self.recipe.preset;
        let is_two_and_a_half = matches!(preset, P::IQ2_S | P::IQ2_M);
        let better = if is_two_and_a_half { T::IQ3_S } else { T::Q2_K };
        match role {
            Role::Value => {
                self.value_idx += 1;
                if self.model.group_size() >= 4 || self.model.n_experts >= 4 {
                    T::Q4_K
                } else {
                    better
                }
            }
            Role::Key if self.model.n_experts == 8 => T::Q4_K,
            Role::Down => {
                let is_first = self.down_idx < self.model.n_layers / 8;
                self.down_idx += 1;
                if is_first { better } else { default }
            }
            Role::AttentionOutput if self.model.n_experts == 8 => T::Q5_K,
            Role::AttentionOutput => match preset {
                P::IQ1_S | P::IQ1_M => T::IQ2_XXS,
                _ if is_two_and_a_half => T::IQ3_S,
                _ => default,
            },
            _ => default,
        }
    }

    fn value(&mut self, default: TensorType) -> TensorType {
        use Preset as P;
        use TensorType as T;
        let is_shared = self.model.group_size() >= 4;
        let idx = self.value_idx;
        self.value_idx += 1;
        let ty = match self.recipe.preset {
            P::Q2_K | P::Q2_K_S | P::IQ3_XS | P::IQ3_S | P::IQ3_XXS if is_shared => T::Q4_K,
            P::Q2_K => T::Q3_K,
            P::IQ3_XXS if !self.has_importance => T::IQ3_S,
            P::Q3_K_M if idx < 2 => T::Q5_K,
            P::Q3_K_M | P::IQ3_M => T::Q4_K,
            P::Q3_K_L => T::Q5_K,
            P::IQ4_NL | P::IQ4_XS if is_shared => T::Q5_K,
            P::Q4_K_M | P::Q5_K_M if gets_more_bits(idx, self.n_values) => T::Q6_K,
            P::Q4_K_S if idx < 4 => T::Q5_K,
            _ => default,
        };
        match ty {
            // It costs about a hundred megabytes with eight experts.
            _ if self.model.n_experts == 8 => T::Q8_0,
            T::Q3_K | T::Q4_K if self.model.is_70b() => T::Q5_K,
            _ => ty,
        }
    }

    fn down(&self, layer_idx: usize, default: TensorType) -> TensorType {
        use Preset as P;
        use TensorType as T;
        let n_layers = self.model.n_layers;
        let is_first = layer_idx < n_layers / 8;
        let is_very_first = layer_idx < n_layers / 16;
        let gets_more = gets_more_bits(layer_idx, n_layers);
        match self.recipe.preset {
            P::Q2_K => T::Q3_K,
            P::Q2_K_S if is_first => T::Q4_K,
            P::IQ3_XXS if !self.has_importance => {
                if is_first {
                    T::Q4_K
                } else {
                    T::Q3_K
                }
            }
            P::Q3_K_M if is_very_first => T::Q5_K,
            P::Q3_K_M if !self.is_falcon() || gets_more => T::Q4_K,
            P::IQ3_M if is_first || self.model.n_experts == 8 && gets_more => T::Q4_K,
            P::Q3_K_L => {
                if self.is_falcon() {
                    T::Q4_K
                } else {
                    T::Q5_K
                }
            }
            P::Q4_K_M if self.is_falcon() => {
                if is_very_first {
                    T::Q6_K
                } else if gets_more {
                    T::Q5_K
                } else {
                    T::Q4_K
                }
            }
            P::Q4_K_M | P::Q5_K_M if gets_more => T::Q6_K,
            P::IQ4_NL | P::IQ4_XS if is_first && !self.has_importance => T::Q5_K,
            P::Q4_K_S if is_first && !self.is_falcon() => T::Q5_K,
            // Even with an importance matrix the first layers can go wrong without a minimum.
            P::Q4_0 if is_first && self.has_importance => T::Q4_1,
            P::Q5_0 if is_first && self.has_importance => T::Q5_1,
            _ => default,
        }
    }

    fn attention_output(&self, default: TensorType) -> TensorType {
        use Preset as P;
        use TensorType as T;
        let preset = self.recipe.preset;
        if self.is_falcon() {
            return if preset == P::Q3_K_L { T::Q4_K } else { default };
        }
        if self.model.n_experts == 8 {
            return match preset {
                P::Q2_K
                | P::IQ3_XS
                | P::IQ3_XXS
                | P::Q3_K_S
                | P::Q3_K_M
                | P::IQ4_NL
                | P::Q4_K_S
                | P::Q4_K_M
                | P::IQ3_S
                | P::IQ3_M
                | P::IQ4_XS => T::Q5_K,
                _ => default,
            };
        }
        match preset {
            P::Q2_K => T::Q3_K,
            P::IQ3_XXS => T::IQ3_S,
            P::Q3_K_M | P::IQ3_M => T::Q4_K,
            P::Q3_K_L => T::Q5_K,
            _ => default,
        }
    }

    fn gate_or_up(&self, layer_idx: usize, default: TensorType) -> TensorType {
        let n_layers = self.model.n_layers;
        let is_middle = layer_idx >= n_layers / 8 && layer_idx < n_layers.saturating_mul(7) / 8;
        if self.recipe.preset == Preset::IQ3_XS && is_middle {
            TensorType::IQ3_XXS
        } else {
            default
        }
    }
}

fn is_below_three_bits(preset: Preset) -> bool {
    use Preset as P;
    matches!(
        preset,
        P::IQ2_XXS | P::IQ2_XS | P::IQ1_S | P::IQ2_S | P::IQ2_M | P::IQ1_M
    )
}

/// Returns whether a type is a plain float.
pub(crate) fn is_float(ty: TensorType) -> bool {
    ty.block_len() == 1
}

/// Returns whether importance matrices have no entry for a tensor.
pub(crate) fn is_embedding(name: &str) -> bool {
    matches!(name, "token_embd.weight" | "per_layer_token_embd.weight")
}

/// Smallest block length of a quantized type.
const SMALLEST_BLOCK: usize = 32;

/// Returns the wanted type, or one with smaller blocks if a tensor's rows are not whole blocks of it; F16 if no blocks fit.
fn fitting(tensor: &TensorShape<'_>, wanted: TensorType) -> Result<TensorType, ConvertError> {
    use TensorType as T;
    let row_len = tensor.dims[0];
    if row_len.is_multiple_of(wanted.block_len()) {
        return Ok(wanted);
    }
    let smaller = match wanted {
        T::IQ1_S | T::IQ1_M | T::IQ2_XXS | T::IQ2_XS | T::IQ2_S | T::IQ3_XXS | T::IQ3_S | T::IQ4_XS => {
            T::IQ4_NL
        }
        T::Q2_0 | T::Q2_K | T::Q3_K | T::TQ1_0 | T::TQ2_0 => T::Q4_0,
        T::Q4_K => T::Q5_0,
        T::Q5_K => T::Q5_1,
        T::Q6_K => T::Q8_0,
        // No type has smaller blocks.
        _ if wanted.block_len() <= SMALLEST_BLOCK => wanted,
        _ => {
            return Err(ConvertError::NoFallback {
                name: tensor.name.to_owned(),
                ty: wanted,
                row_len,
            });
        }
    };
    Ok(if row_len.is_multiple_of(smaller.block_len()) {
        smaller
    } else {
        T::F16
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(preset: Preset, name: &str, dims: &[usize]) -> TypeChoice {
        let model = ModelShape {
            architecture: "llama".to_owned(),
            n_layers: 16,
            n_heads: 8,
            n_kv_heads: 2,
            ..ModelShape::default()
        };
        let tensors = [
            TensorShape {
                name: "output.weight",
                ty: TensorType::F32,
                dims: &[256, 8],
            },
            TensorShape {
                name,
                ty: TensorType::F32,
                dims,
            },
        ];
        choose(&model, &Recipe::new(preset), false, &tensors).unwrap()[1]
    }

    #[test]
    fn rows_that_are_not_whole_blocks_take_another_type() {
        let name = "blk.0.attn_q.weight";
        for (row_len, ty, instead_of) in [
            (256, TensorType::Q4_K, None),
            (96, TensorType::Q5_0, Some(TensorType::Q4_K)),
            (30, TensorType::F16, Some(TensorType::Q4_K)),
        ] {
            let found = choice(Preset::Q4_K_M, name, &[row_len, 4]);
            assert_eq!((found.ty, found.instead_of), (ty, instead_of), "{row_len}");
        }
        for (preset, wanted) in [
            (Preset::Q4_0, TensorType::Q4_0),
            (Preset::Q5_1, TensorType::Q5_1),
            (Preset::Q8_0, TensorType::Q8_0),
            (Preset::IQ4_NL, TensorType::IQ4_NL),
            (Preset::IQ4_XS, TensorType::IQ4_XS),
        ] {
            let found = choice(preset, name, &[48, 4]);
            assert_eq!(
                (found.ty, found.instead_of),
                (TensorType::F16, Some(wanted)),
                "{preset}"
            );
        }
    }

    #[test]
    fn a_type_by_name_goes_before_the_mixture() {
        let recipe = Recipe::new(Preset::Q4_K_M)
            .with_tensor_type(r"blk\.0\.ffn_down", TensorType::Q8_0)
            .unwrap();
        let tensors = ["blk.0.ffn_down.weight", "blk.1.ffn_down.weight"].map(|name| TensorShape {
            name,
            ty: TensorType::F32,
            dims: &[256, 256],
        });
        let model = ModelShape {
            n_layers: 2,
            ..ModelShape::default()
        };
        let found = choose(&model, &recipe, false, &tensors).unwrap();
        assert_eq!(found[0].ty, TensorType::Q8_0);
        assert_ne!(found[1].ty, TensorType::Q8_0);
        let error = Recipe::new(Preset::Q4_0)
            .with_tensor_type("(", TensorType::Q8_0)
            .unwrap_err();
        assert!(
            error.to_string().starts_with("`(` is not a regular expression"),
            "{error}"
        );
    }

    #[test]
    fn vectors_and_norms_stay_what_they_are() {
        assert_eq!(
            choice(Preset::Q4_0, "blk.0.attn_norm.weight", &[256]).ty,
            TensorType::F32
        );
        assert_eq!(
            choice(Preset::Q4_0, "blk.0.attn_q.weight", &[256, 1]).ty,
            TensorType::F32
        );
    }

    #[test]
    fn few_bits_need_importance() {
        assert!(choice(Preset::IQ2_XS, "blk.0.attn_q.weight", &[256, 4]).needs_importance);
        assert!(!choice(Preset::IQ2_XS, "token_embd.weight", &[256, 4]).needs_importance);
        assert!(choice(Preset::Q2_K_S, "blk.0.attn_q.weight", &[256, 4]).needs_importance);
        assert!(!choice(Preset::Q2_K, "blk.0.attn_q.weight", &[256, 4]).needs_importance);
    }
}
