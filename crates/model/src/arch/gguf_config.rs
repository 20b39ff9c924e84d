//! [`GgufConfig`]: typed access to the metadata of a GGUF file for the architectures.
//!
//! `HfConfig` is its Hugging Face twin; the two formats name the same things differently.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
};

use tokenmill_backend::{NormKind, RopeStyle};
use tokenmill_gguf::{Array, GgufError, Metadata, Value};

use crate::{
    AttentionDescriptor, Descriptor, Ignorable, LayerDescriptor, LoadError, Presence, RopeDescriptor,
    RopeScaling, YarnRounding, error::check, gguf_header::layer_of, rope::yarn_magnitude,
};

use super::folder_facts::FolderFacts;

/// The key of the window pattern; errors name it too.
const WINDOW_PATTERN: &str = "attention.sliding_window_pattern";
const WINDOW_PATTERN_NAME: &str = "sliding window pattern";

/// Returns the tensors of MTP layers after the last layer, if there are any.
pub(super) fn nextn_layers(n_layers: usize, n_nextn_layers: usize) -> Vec<Ignorable> {
    if n_nextn_layers > 0 {
        vec![Ignorable::LayersFrom(n_layers)]
    } else {
        Vec::new()
    }
}

/// The header of a GGUF file; keys are looked up without the architecture prefix.
pub(super) struct GgufConfig<'a> {
    pub(super) metadata: &'a Metadata,
    /// Dimensions of each tensor by name, the contiguous one first.
    pub(super) tensors: BTreeMap<&'a str, &'a [usize]>,
    pub(super) arch: &'static str,
    pub(super) n_vocab: usize,
    /// Whether MTP layers are described after the others.
    pub(super) with_nextn: bool,
    /// The facts of a folder, whose keys have no tensors with them; `None` for a file.
    pub(super) facts: Option<&'a FolderFacts>,
    /// Keys that the description has read, without the architecture prefix.
    pub(super) read_keys: RefCell<BTreeSet<String>>,
}

impl<'a> GgufConfig<'a> {
    /// Returns access to the metadata of a file.
    pub(super) fn of(
        arch: &'static str,
        n_vocab: usize,
        metadata: &'a Metadata,
        tensors: BTreeMap<&'a str, &'a [usize]>,
    ) -> Self {
        Self {
            metadata,
            tensors,
            arch,
            n_vocab,
            with_nextn: false,
            facts: None,
            read_keys: RefCell::default(),
        }
    }

    /// Returns whether queries and keys are normed: as the folder states, or if the file has a tensor.
    pub(super) fn has_qk_norm(&self, tensor: &str) -> bool {
        match self.facts {
            Some(facts) => facts.has_qk_norm,
            None => self.has_tensor(tensor),
        }
    }

    /// Returns the full name of a key.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    /// Returns the full name of a key and records that the description reads it.
    fn read_key(&self, name: &str) -> String {
        self.read_keys.borrow_mut().insert(name.to_owned());
        self.key(name)
    }

    /// Returns whether the description has read a key.
    pub(super) fn has_read(&self, name: &str) -> bool {
        self.read_keys.borrow().contains(name)
    }

    /// Returns a value without recording that it was read.
    pub(super) fn peek(&self, name: &str) -> Option<&Value> {
        self.metadata.get(&self.key(name))
    }

    /// Returns an optional value.
    pub(super) fn value(&self, name: &str) -> Option<&Value> {
        self.metadata.get(&self.read_key(name))
    }

    /// Reads a required count.
    pub(super) fn usize(&self, name: &str) -> Result<usize, LoadError> {
        Ok(self.metadata.usize(&self.read_key(name))?)
    }

    /// Reads an optional count.
    pub(super) fn opt_usize(&self, name: &str) -> Result<Option<usize>, LoadError> {
        Ok(self.metadata.opt_usize(&self.read_key(name))?)
    }

    /// Reads an optional count; 0 means that it is absent. Files that llama.cpp saves have all its keys, with 0 for unset ones.
    pub(super) fn opt_count(&self, name: &str) -> Result<Option<usize>, LoadError> {
        Ok(self.opt_usize(name)?.filter(|&count| count > 0))
    }

    /// Reads an optional number.
    pub(super) fn opt_f32(&self, name: &str) -> Result<Option<f32>, LoadError> {
        Ok(self.metadata.opt_f32(&self.read_key(name))?)
    }

    /// Reads an optional boolean.
    pub(super) fn opt_bool(&self, name: &str) -> Result<Option<bool>, LoadError> {
        Ok(self.metadata.opt_bool(&self.read_key(name))?)
    }

    /// Reads an optional string.
    pub(super) fn opt_str(&self, name: &str) -> Result<Option<&str>, LoadError> {
        Ok(self.metadata.opt_str(&self.read_key(name))?)
    }

    /// Reads an optional number; 0 counts as absent.
    pub(super) fn opt_positive(&self, name: &str) -> Result<Option<f32>, LoadError> {
        Ok(self.opt_f32(name)?.filter(|&number| number != 0.0))
    }

    /// Reads a flag for each layer, from a list of booleans or integers, or from one value for all layers.
    ///
    /// # Errors
    /// [`GgufError::WrongType`] for another type, and [`LoadError::BadValue`] for a list shorter than
    /// `n_layers`; `what` names the value.
    pub(super) fn opt_flags(
        &self,
        what: &'static str,
        name: &str,
        n_layers: usize,
    ) -> Result<Option<Vec<bool>>, LoadError> {
        let key = self.read_key(name);
        let listed: Vec<bool> = match self.metadata.get(&key) {
            None => return Ok(None),
            Some(Value::Array(Array::Bool(claims))) => claims.clone(),
            Some(Value::Bool(claim)) => vec![*claim; n_layers],
            Some(Value::Array(_)) => self.metadata.i32_array(&key)?.iter().map(|&n| n != 0).collect(),
            Some(_) => vec![self.metadata.i32(&key)? != 0; n_layers],
        };
        if listed.len() < n_layers {
            return Err(LoadError::BadValue {
                what,
                found: format!("a list of {}", listed.len()),
                expected: "an entry for each layer",
            });
        }
        Ok(Some(listed[..n_layers].to_vec()))
    }

    /// Returns whether llama.cpp itself saved the file. Such a file has all keys, with a default value for
    /// unset ones.
    pub(super) fn is_saved_by_reader(&self) -> bool {
        // No converter writes a negative number here.
        let factor = self.peek("rope.scaling.yarn_ext_factor");
        matches!(factor, Some(Value::F32(factor)) if *factor < 0.0)
    }

    /// Returns whether the file has a tensor.
    pub(super) fn has_tensor(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Returns the number of rows of a tensor; 0 if the file has none of that name.
    pub(super) fn n_rows_of(&self, name: &str) -> usize {
        self.tensors.get(name).map_or(0, |dims| n_rows(dims))
    }

    /// Returns an error that names an unsupported feature.
    pub(super) fn unsupported(&self, feature: impl Into<String>) -> LoadError {
        LoadError::UnsupportedFeature {
            arch: self.arch.to_owned(),
            feature: feature.into(),
        }
    }

    fn opt_per_layer(&self, name: &str, n_layers: usize) -> Result<Option<Vec<usize>>, LoadError> {
        let values = self.metadata.opt_u32_per_layer(&self.read_key(name), n_layers)?;
        Ok(values.map(|values| values.iter().map(|&value| value as usize).collect()))
    }

    fn per_layer(&self, name: &str, n_layers: usize) -> Result<Vec<usize>, LoadError> {
        let missing = || GgufError::MissingKey { key: self.key(name) };
        Ok(self.opt_per_layer(name, n_layers)?.ok_or_else(missing)?)
    }

    /// Returns the largest number of query heads of any layer.
    pub(super) fn most_heads(&self) -> Result<usize, LoadError> {
        let n_heads = self.per_layer("attention.head_count", self.usize("block_count")?)?;
        Ok(n_heads.into_iter().max().unwrap_or(0))
    }

    /// Returns whether each layer has the window, as the file's pattern states; without a pattern, all but
    /// every `period`th have it.
    pub(super) fn sliding_layers(&self, n_layers: usize, period: usize) -> Result<Vec<bool>, LoadError> {
        if let Some(facts) = self.facts {
            return Ok(facts.windows.iter().map(Option::is_some).collect());
        }
        if matches!(self.value(WINDOW_PATTERN), Some(Value::Array(_) | Value::Bool(_))) {
            let listed = self.opt_flags(WINDOW_PATTERN_NAME, WINDOW_PATTERN, n_layers)?;
            return Ok(listed.unwrap_or_default());
        }
        let period = self.opt_usize(WINDOW_PATTERN)?.unwrap_or(period);
        Ok((0..n_layers)
            .map(|layer_idx| period == 0 || layer_idx % period < period - 1)
            .collect())
    }

    /// Returns the number of decoder layers, and the number of MTP layers after them.
    pub(super) fn layer_counts(&self) -> Result<(usize, usize), LoadError> {
        let n_nextn = self.opt_usize("nextn_predict_layers")?.unwrap_or(0);
        Ok((self.usize("block_count")?.saturating_sub(n_nextn), n_nextn))
    }

    /// Checks that the file has tensors for every layer that it counts, MTP layers excepted, and for no
    /// other.
    pub(super) fn check_layers(&self, n_layers: usize) -> Result<(), LoadError> {
        let last = self.tensors.keys().filter_map(|name| layer_of(name)).max();
        let n_found = last.map_or(0, |last| last.saturating_add(1));
        let n_nextn = self.opt_usize("nextn_predict_layers")?.unwrap_or(0);
        if n_found <= n_layers && n_found + n_nextn >= n_layers {
            // An MTP layer without any tensor is in another file.
            let is_nextn = |layer_idx: usize| {
                let start = format!("blk.{layer_idx}.");
                let names = self.tensors.keys();
                let mut parts = names
                    .filter_map(|name| name.strip_prefix(start.as_str()))
                    .peekable();
                parts.peek().is_none() || parts.any(|part| part.starts_with("nextn."))
            };
            if (n_layers - n_nextn..n_layers).all(is_nextn) {
                return Ok(());
            }
            return Err(LoadError::BadValue {
                what: "count of layers that predict further tokens",
                found: n_nextn.to_string(),
                expected: "as many as have tensors for that",
            });
        }
        Err(LoadError::LayerCount {
            expected: n_layers,
            found: n_found,
            key: self.key("block_count"),
        })
    }

    /// Returns the name and dimensions of a tensor of experts, if there is one.
    pub(super) fn tensor_of_experts(&self) -> Option<(&str, &[usize])> {
        let mut tensors = self.tensors.iter().map(|(&name, &dims)| (name, dims));
        tensors.find(|(name, _)| name.ends_with("_exps.weight"))
    }

    /// Removes the window from full-attention layers; [`Self::decoder`] gave it to all.
    pub(super) fn set_windows(&self, descriptor: &mut Descriptor, period: usize) -> Result<(), LoadError> {
        let is_sliding = self.sliding_layers(descriptor.layers.len(), period)?;
        for (layer, is_sliding) in descriptor.layers.iter_mut().zip(is_sliding) {
            if !is_sliding {
                layer.attention_mut().window = None;
            }
        }
        Ok(())
    }

    /// Describes a decoder with windows: in all layers but every `period`th, if the file does not list them, and of
    /// `width` if the file does not state it. Their rope is their own if the file has other values for it.
    pub(super) fn decoder_with_windows(
        &self,
        rope_style: RopeStyle,
        period: usize,
        width: Option<usize>,
    ) -> Result<Descriptor, LoadError> {
        let mut descriptor = self.decoder(rope_style)?;
        if let Some(width) = width
            && self.facts.is_none()
            && self.opt_usize("attention.sliding_window")?.is_none()
        {
            descriptor = descriptor.with_layers(|_, layer| layer.attention_mut().window = Some(width));
        }
        self.set_windows(&mut descriptor, period)?;
        self.set_window_rope(&mut descriptor)?;
        Ok(descriptor)
    }

    /// Gives the layers with a window a rope of their own if the file has other values for them.
    pub(super) fn set_window_rope(&self, descriptor: &mut Descriptor) -> Result<(), LoadError> {
        for rope_idx in 0..descriptor.ropes.len() {
            let rope = descriptor.ropes[rope_idx].clone();
            let mut own = rope.clone();
            if let Some(base) = self.opt_positive("rope.freq_base_swa")? {
                own.base = base;
            }
            if let Some(n_dims) = self.opt_count("rope.dimension_count_swa")? {
                own.n_dims = n_dims;
            }
            if own == rope {
                continue;
            }
            let own_idx = descriptor.ropes.len();
            let mut is_used = false;
            for layer in &mut descriptor.layers {
                let attention = layer.attention_mut();
                if attention.window.is_some() && attention.rope == Some(rope_idx) {
                    attention.rope = Some(own_idx);
                    is_used = true;
                }
            }
            if is_used {
                descriptor.ropes.push(own);
            }
        }
        Ok(())
    }

    /// Describes the network that most decoders are variations of: pre-norm RMS layers with rope, grouped
    /// heads and a SiLU-gated feed-forward network; biases if their tensors exist; the head tied if it has no
    /// tensor.
    pub(super) fn decoder(&self, rope_style: RopeStyle) -> Result<Descriptor, LoadError> {
        let n_blocks = self.usize("block_count")?;
        // Every layer has tensors, so a larger count is invalid. Checking it bounds the lists below.
        if self.facts.is_none() && n_blocks > self.tensors.len() {
            return Err(LoadError::BadValue {
                what: "layer count",
                found: n_blocks.to_string(),
                expected: "at most the number of tensors",
            });
        }
        // MTP layers are included in the count of layers, and come last.
        let n_nextn_layers = self.opt_usize("nextn_predict_layers")?.unwrap_or(0);
        if n_nextn_layers >= n_blocks && n_nextn_layers > 0 {
            return Err(LoadError::BadValue {
                what: "count of layers that predict further tokens",
                found: n_nextn_layers.to_string(),
                expected: "less than the layer count",
            });
        }
        let n_embd = self.usize("embedding_length")?;
        let n_ctx_train = self.usize("context_length")?;
        let n_heads = self.per_layer("attention.head_count", n_blocks)?;
        let n_kv_heads = self.opt_per_layer("attention.head_count_kv", n_blocks)?;
        let n_kv_heads = n_kv_heads.unwrap_or_else(|| n_heads.clone());
        let n_ff = match self.opt_per_layer("feed_forward_length", n_blocks)? {
            // Files of networks in which all layers have experts may omit the key.
            None if self.n_experts()? > 0 => vec![0; n_blocks],
            Some(n_ff) => n_ff,
            None => self.per_layer("feed_forward_length", n_blocks)?,
        };
        let default_head_dim = n_embd / n_heads.first().copied().unwrap_or(1).max(1);
        let width = |name: &str| Ok::<_, LoadError>(self.opt_count(name)?.unwrap_or(default_head_dim));
        let (head_dim_k, head_dim_v) = (width("attention.key_length")?, width("attention.value_length")?);
        let window = self.opt_count("attention.sliding_window")?;
        // Read if the file lists which layers have the window.
        let pattern = match self.peek(WINDOW_PATTERN) {
            Some(Value::Array(_)) if window.is_some() => {
                self.opt_flags(WINDOW_PATTERN_NAME, WINDOW_PATTERN, n_blocks)?
            }
            _ => None,
        };
        let has_window = |layer_idx: usize| pattern.as_ref().is_none_or(|pattern| pattern[layer_idx]);
        let rope = match self.facts.and_then(|facts| facts.rope.clone()) {
            Some(rope) => rope,
            None => RopeDescriptor {
                n_dims: self.opt_count("rope.dimension_count")?.unwrap_or(head_dim_k),
                scaling: self.rope_scaling(n_ctx_train)?,
                has_freq_factors: true,
                ..RopeDescriptor::plain(
                    rope_style,
                    head_dim_k,
                    self.opt_f32("rope.freq_base")?.unwrap_or(10_000.0),
                )
            },
        };
        // As in other readers, a bias that the file contains is used.
        let bias = match self.facts {
            Some(_) => Presence::Absent,
            None => Presence::Optional,
        };
        let scale = self.opt_positive("attention.scale")?;
        let n_decoding = n_blocks - n_nextn_layers;
        let n_layers = if self.with_nextn { n_blocks } else { n_decoding };
        let layers = (0..n_layers).map(|layer_idx| {
            let dims = [head_dim_k, head_dim_v];
            let mut attention = AttentionDescriptor::plain(n_heads[layer_idx], n_kv_heads[layer_idx], dims);
            attention.scale = scale.unwrap_or(attention.scale);
            attention.window = match self.facts {
                Some(facts) => facts.windows[layer_idx],
                None => window.filter(|_| has_window(layer_idx)),
            };
            LayerDescriptor::plain(attention, n_ff[layer_idx])
        });
        let sizes = [self.n_vocab, n_embd, n_ctx_train];
        let mut descriptor = Descriptor::plain(sizes, rope, layers.collect()).with_biases(bias);
        self.arch.clone_into(&mut descriptor.arch);
        descriptor.norm.eps = self.norm_epsilon(NormKind::Rms)?;
        descriptor.head = self.facts.map_or(descriptor.head, |facts| facts.head);
        descriptor.ignorable = nextn_layers(n_decoding, n_nextn_layers);
        Ok(descriptor)
    }

    /// Reads the epsilon of the norms under the key for their kind, or else the key for the other kind.
    pub(super) fn norm_epsilon(&self, kind: NormKind) -> Result<f32, LoadError> {
        let rms = "attention.layer_norm_rms_epsilon";
        let layer = "attention.layer_norm_epsilon";
        let (own, other) = match kind {
            NormKind::Rms => (rms, layer),
            NormKind::Layer => (layer, rms),
        };
        // If one key is 0 and the other is not, the 0 means that the key is unset.
        let (own, other) = (self.opt_f32(own)?, self.opt_f32(other)?);
        let is_set = |eps: &f32| *eps != 0.0;
        let eps = own.filter(is_set).or(other.filter(is_set)).or(own).or(other);
        Ok(eps.ok_or_else(|| GgufError::MissingKey { key: self.key(rms) })?)
    }

    fn rope_scaling(&self, n_ctx_train: usize) -> Result<RopeScaling, LoadError> {
        let kind = self.opt_str("rope.scaling.type")?;
        let factor = match self.opt_f32("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            // The key that early converters wrote.
            None => self.opt_f32("rope.scale_linear")?,
        };
        if kind == Some("yarn") && factor.is_none() {
            return Err(LoadError::from(GgufError::MissingKey {
                key: self.key("rope.scaling.factor"),
            }));
        }
        // Some converters write a factor of 0 or 1 for no scaling.
        let factor = factor.filter(|&factor| factor != 0.0 && factor != 1.0);
        let original_context = self.opt_count("rope.scaling.original_context_length")?;
        let original_context = original_context.unwrap_or(n_ctx_train);
        let attn_factor = self.opt_positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
        if self.has_tensor("rope_factors_long.weight") {
            if let Some(factor) = factor.filter(|_| kind != Some("none")) {
                return Err(LoadError::BadValue {
                    what: "rope scaling factor",
                    found: factor.to_string(),
                    expected: "1 beside a factor for each frequency",
                });
            }
            return Ok(RopeScaling::LongRope {
                original_context,
                magnitude: attn_factor,
                factors: None,
            });
        }
        match (kind, factor) {
            (Some("none"), _) | (None | Some("linear" | "yarn" | "longrope"), None) => Ok(RopeScaling::None),
            (Some("linear") | None, Some(factor)) => Ok(RopeScaling::Linear { factor }),
            (Some("yarn"), Some(factor)) => self.yarn(factor, original_context, attn_factor),
            (Some(other), _) => Err(self.unsupported(format!(
                "rope scaling `{other}` (key `{}`; supported are none, linear, yarn and longrope)",
                self.key("rope.scaling.type")
            ))),
        }
    }

    fn yarn(&self, factor: f32, original_context: usize, attn_factor: f32) -> Result<RopeScaling, LoadError> {
        // The logarithm's multiplier cancels the same factor of the magnitude.
        let log_multiplier = self.opt_f32("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
        let extrapolation = self.opt_f32("rope.scaling.yarn_ext_factor")?;
        check(
            "extrapolation factor of the rope scaling",
            extrapolation.unwrap_or(1.0),
            extrapolation.is_none_or(|factor| factor < 0.0 || factor == 1.0),
            "1",
        )?;
        let given = self.opt_positive("rope.scaling.yarn_attn_factor")?;
        let given = given.filter(|_| !self.is_saved_by_reader());
        let magnitude =
            given.unwrap_or_else(|| yarn_magnitude(factor, 1.0) / yarn_magnitude(factor, log_multiplier));
        Ok(RopeScaling::Yarn {
            factor,
            original_context,
            beta_fast: self.opt_f32("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
            beta_slow: self.opt_f32("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            magnitude: Some(magnitude * attn_factor),
            rounding: YarnRounding::Outwards,
        })
    }
}

/// Returns the number of rows: the product of all dimensions but the first.
pub(super) fn n_rows(dims: &[usize]) -> usize {
    dims.iter().skip(1).product()
}
