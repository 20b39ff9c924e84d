//! [`Recipe`], [`ModelShape`] and [`TensorShape`]: the inputs of a choice of types.
//!
//! Files and folders both provide them. Invariant: nothing here is computed from weights.

use regex::Regex;
use tokenmill_gguf::{Metadata, TensorInfo, TensorType};

use crate::{ConvertError, Preset};

/// The requested properties of a quantized file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Recipe {
    /// The kind of file.
    pub preset: Preset,
    /// Gives every tensor the preset's default type, without the exceptions of its mixture.
    pub is_pure: bool,
    /// Leaves the output projection unchanged.
    pub keeps_output: bool,
    /// The type of the output projection.
    pub output_type: Option<TensorType>,
    /// The type of the token embeddings.
    pub embedding_type: Option<TensorType>,
    /// Types of tensors by a regular expression that is searched in their names; the first match counts.
    pub tensor_types: Vec<(Regex, TensorType)>,
}

impl Recipe {
    /// Creates a recipe without exceptions.
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

    /// Adds a type for tensors whose names match `pattern` anywhere.
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

    /// Returns the regular expressions that match none of the `names`, with their indices in `tensor_types`.
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

/// The properties of a model that the rules use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelShape {
    /// Its architecture.
    pub architecture: String,
    /// Number of layers, including MTP layers.
    pub n_layers: usize,
    /// Number of experts per layer; 0 without.
    pub n_experts: usize,
    /// Number of heads of the first layer.
    pub n_heads: usize,
    /// Number of key and value heads of the first layer.
    pub n_kv_heads: usize,
}

impl ModelShape {
    /// Reads the properties from a file's metadata.
    ///
    /// # Errors
    /// [`ConvertError::Gguf`] for keys that are missing or have another type.
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

    /// Returns the number of heads that share keys and values.
    pub(crate) fn group_size(&self) -> usize {
        self.n_heads.checked_div(self.n_kv_heads).unwrap_or(0)
    }

    /// Returns whether it has the shape of a 70B model, which has few values.
    pub(crate) fn is_70b(&self) -> bool {
        let is_known = match self.architecture.as_str() {
            "llama" => self.n_heads != self.n_kv_heads,
            "qwen2" | "deci" => true,
            _ => false,
        };
        is_known && self.n_layers == 80
    }
}

/// The properties of a tensor that a choice uses.
#[derive(Clone, Copy, Debug)]
pub struct TensorShape<'a> {
    /// Its GGUF name.
    pub name: &'a str,
    /// Its current type.
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
