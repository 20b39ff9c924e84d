//! [`Recipe`], [`ModelShape`] and [`TensorShape`]: what a choice of types is made from.
//!
//! Apart from the choice because files and folders both say it. Invariant: nothing here is computed from weights.

use regex::Regex;
use tokenmill_gguf::{Metadata, TensorInfo, TensorType};

use crate::{ConvertError, Preset};

/// What is wanted of a quantized file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Recipe {
    /// The kind of file.
    pub preset: Preset,
    /// Gives every tensor the preset's default type, without the exceptions of its mixture.
    pub is_pure: bool,
    /// Leaves the output projection as it is.
    pub keeps_output: bool,
    /// The type of the output projection.
    pub output_type: Option<TensorType>,
    /// The type of the embeddings of tokens.
    pub embedding_type: Option<TensorType>,
    /// Types of tensors by a regular expression that is searched in their names; the first that is found counts.
    pub tensor_types: Vec<(Regex, TensorType)>,
}

impl Recipe {
    /// A preset as it is.
    pub fn new(preset: Preset) -> Self {
        Self {
            preset,
            is_pure: false,
            keeps_output: false,
            output_type: None,
            embedding_type: None,
            tensor_types: Vec::new(),
        }
    }

    /// Adds a type for the tensors in whose names `pattern` is found.
    ///
    /// # Errors
    /// [`ConvertError::BadPattern`].
    pub fn with_tensor_type(mut self, pattern: &str, ty: TensorType) -> Result<Self, ConvertError> {
        let regex = Regex::new(pattern).map_err(|source| ConvertError::BadPattern {
            pattern: pattern.to_owned(),
            source: Box::new(source),
        })?;
        self.tensor_types.push((regex, ty));
        Ok(self)
    }

    /// The regular expressions for types that are found in none of the `names`, with their places in `tensor_types`.
    pub fn unused_tensor_types<'n>(&self, names: impl Iterator<Item = &'n str>) -> Vec<(usize, &str)> {
        let mut unused: Vec<(usize, &Regex)> = (self.tensor_types.iter().enumerate())
            .map(|(idx, (pattern, _))| (idx, pattern))
            .collect();
        for name in names {
            unused.retain(|(_, pattern)| !pattern.is_match(name));
        }
        unused
            .into_iter()
            .map(|(idx, pattern)| (idx, pattern.as_str()))
            .collect()
    }
}

/// What the rules ask about a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelShape {
    /// Its architecture.
    pub architecture: String,
    /// Layers, with those for drafts.
    pub n_layers: usize,
    /// Experts in a layer; 0 without.
    pub n_experts: usize,
    /// Heads of the first layer.
    pub n_heads: usize,
    /// Heads of keys and values of the first layer.
    pub n_kv_heads: usize,
}

impl ModelShape {
    /// Reads them from a file's metadata.
    ///
    /// # Errors
    /// [`ConvertError::Gguf`]: keys that are missing or have another type.
    pub fn of(metadata: &Metadata) -> Result<Self, ConvertError> {
        let architecture = metadata.str("general.architecture")?.to_owned();
        let key = |name: &str| format!("{architecture}.{name}");
        let first = |name: &str| -> Result<Option<usize>, ConvertError> {
            let numbers = metadata.opt_u32_per_layer(&key(name), 1)?;
            Ok(numbers.map(|numbers| numbers[0] as usize))
        };
        let n_heads = first("attention.head_count")?.unwrap_or(0);
        Ok(Self {
            n_layers: metadata.opt_usize(&key("block_count"))?.unwrap_or(0),
            n_experts: metadata.opt_usize(&key("expert_count"))?.unwrap_or(0),
            n_heads,
            n_kv_heads: first("attention.head_count_kv")?.unwrap_or(n_heads),
            architecture,
        })
    }

    /// Heads that share keys and values.
    pub(crate) fn group_size(&self) -> usize {
        self.n_heads.checked_div(self.n_kv_heads).unwrap_or(0)
    }

    /// Whether it has the shape of a 70B model, whose values are few.
    pub(crate) fn is_70b(&self) -> bool {
        let is_known = match self.architecture.as_str() {
            "llama" => self.n_heads != self.n_kv_heads,
            "qwen2" | "deci" => true,
            _ => false,
        };
        is_known && self.n_layers == 80
    }
}

/// A tensor as a choice sees it.
#[derive(Clone, Copy, Debug)]
pub struct TensorShape<'a> {
    /// Its GGUF name.
    pub name: &'a str,
    /// The type it has.
    pub ty: TensorType,
    /// Its dimensions, the contiguous one first.
    pub dims: &'a [usize],
}

impl<'a> From<&'a TensorInfo> for TensorShape<'a> {
    fn from(info: &'a TensorInfo) -> Self {
        Self {
            name: &info.name,
            ty: info.ty,
            dims: &info.dims,
        }
    }
}
