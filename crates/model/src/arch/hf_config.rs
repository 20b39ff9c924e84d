//! [`HfConfig`]: a Hugging Face `config.json` as the architectures ask for it, in its old and new layout.
//!
//! Separate from its GGUF twin: the two name the same things differently. Weights of such folders are not
//! reordered, so rope pairs are always halves.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tokenmill_gguf::RegularFile;

use tokenmill_backend::{Activation, NormKind, RopeStyle};

use crate::{
    AttentionDescriptor, DenseDescriptor, Descriptor, FfnDescriptor, LayerDescriptor, LoadError,
    MixerDescriptor, NormDescriptor, NormPlacement, OutputHead, Presence, Residual, RopeDescriptor,
    RopeScaling,
};

/// A `config.json`.
pub(crate) struct HfConfig {
    path: PathBuf,
    values: Map<String, Value>,
}

/// Real ones have some kilobytes.
const MAX_CONFIG_BYTES: usize = 16 << 20;
/// More layers than any network has; a larger count must not size a list.
const MAX_LAYERS: usize = 4096;

impl HfConfig {
    /// Reads a `config.json`.
    pub(crate) fn open(path: &Path) -> Result<Self, LoadError> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let bytes = RegularFile::read_in_folder(folder.unwrap_or(Path::new(".")), name, MAX_CONFIG_BYTES)
            .map_err(|source| LoadError::Read {
                path: path.to_owned(),
                source,
            })?;
        let values = serde_json::from_slice(&bytes).map_err(|error| LoadError::BadConfig {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
        Ok(Self {
            path: path.to_owned(),
            values,
        })
    }

    /// The first class of `architectures`.
    pub(super) fn class(&self) -> Result<&str, LoadError> {
        self.values
            .get("architectures")
            .and_then(|classes| classes.get(0)?.as_str())
            .ok_or_else(|| self.wrong("architectures", "a list of class names"))
    }

    fn wrong(&self, key: &str, expected: &str) -> LoadError {
        LoadError::BadConfig {
            path: self.path.clone(),
            reason: match self.values.get(key) {
                Some(found) => format!("`{key}` is {found}, expected {expected}"),
                None => format!("`{key}` is missing, expected {expected}"),
            },
        }
    }

    /// A value that is there and not null.
    fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    fn opt_usize(&self, key: &str) -> Result<Option<usize>, LoadError> {
        let number = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        self.get(key)
            .map(|value| number(value).ok_or_else(|| self.wrong(key, "a count")))
            .transpose()
    }

    fn usize(&self, key: &str) -> Result<usize, LoadError> {
        self.opt_usize(key)?.ok_or_else(|| self.wrong(key, "a count"))
    }

    fn opt_f32(&self, key: &str) -> Result<Option<f32>, LoadError> {
        self.get(key)
            .map(|value| value.as_f64().ok_or_else(|| self.wrong(key, "a number")))
            .transpose()
            .map(|number| number.map(|number| number as f32))
    }

    /// A claim that is false where it is not made.
    pub(super) fn is(&self, key: &str) -> Result<bool, LoadError> {
        self.get(key).map_or(Ok(false), |value| {
            value.as_bool().ok_or_else(|| self.wrong(key, "true or false"))
        })
    }

    /// [`Presence`] of what a claim says there is.
    pub(super) fn presence(&self, key: &str) -> Result<Presence, LoadError> {
        Ok(if self.is(key)? {
            Presence::Required
        } else {
            Presence::Absent
        })
    }

    /// The window of each layer, as `layer_types` gives it, or else for every layer from `first_layer` on.
    pub(super) fn set_windows(
        &self,
        descriptor: &mut Descriptor,
        first_layer: usize,
    ) -> Result<(), LoadError> {
        let Some(window) = self.opt_usize("sliding_window")? else {
            return Ok(());
        };
        let types = self.get("layer_types").and_then(Value::as_array);
        for (layer_idx, layer) in descriptor.layers.iter_mut().enumerate() {
            let is_sliding = match types {
                Some(types) => types.get(layer_idx).and_then(Value::as_str) == Some("sliding_attention"),
                None => layer_idx >= first_layer,
            };
            layer.attention_mut().window = is_sliding.then_some(window);
        }
        Ok(())
    }

    /// `max_window_layers`: the first layer with a window where `layer_types` does not say.
    pub(super) fn max_window_layers(&self) -> Result<usize, LoadError> {
        Ok(self.opt_usize("max_window_layers")?.unwrap_or(0))
    }

    /// Describes the network that most decoders are a variation of; see the GGUF twin.
    pub(super) fn decoder(&self) -> Result<Descriptor, LoadError> {
        let n_layers = self.usize("num_hidden_layers")?;
        if n_layers > MAX_LAYERS {
            return Err(self.wrong("num_hidden_layers", "a count of layers"));
        }
        let activation = match self.get("hidden_act").and_then(Value::as_str) {
            Some("silu" | "swish") => Activation::Silu,
            Some("gelu") => Activation::GeluErf,
            Some("gelu_pytorch_tanh" | "gelu_new") => Activation::GeluTanh,
            Some("relu") => Activation::Relu,
            Some("relu2") => Activation::ReluSquared,
            _ => return Err(self.wrong("hidden_act", "the name of a known activation")),
        };
        let n_embd = self.usize("hidden_size")?;
        let n_ctx_train = self.usize("max_position_embeddings")?;
        let n_heads = self.usize("num_attention_heads")?;
        let head_dim = self.opt_usize("head_dim")?.unwrap_or(n_embd / n_heads.max(1));
        let eps = self.opt_f32("rms_norm_eps")?;
        let layer = LayerDescriptor {
            mixer: MixerDescriptor::Attention(AttentionDescriptor {
                n_heads,
                n_kv_heads: self.opt_usize("num_key_value_heads")?.unwrap_or(n_heads),
                head_dim_k: head_dim,
                head_dim_v: head_dim,
                scale: 1.0 / (head_dim as f32).sqrt(),
                rope: Some(0),
                window: None,
                softcap: None,
                has_sinks: false,
                qk_norm: None,
                qkv_bias: Presence::Absent,
                output_bias: Presence::Absent,
            }),
            ffn: FfnDescriptor::Dense(DenseDescriptor {
                n_ff: self.usize("intermediate_size")?,
                activation,
                is_gated: true,
                bias: Presence::Absent,
            }),
            norms: NormPlacement::Pre,
            residual: Residual::Sequential,
        };
        Ok(Descriptor {
            arch: String::new(),
            n_vocab: self.usize("vocab_size")?,
            n_embd,
            n_ctx_train,
            embedding_scale: 1.0,
            norm: NormDescriptor {
                kind: NormKind::Rms,
                eps: eps.ok_or_else(|| self.wrong("rms_norm_eps", "a number"))?,
                bias: Presence::Absent,
            },
            ropes: vec![self.rope(head_dim, n_ctx_train)?],
            layers: vec![layer; n_layers],
            residual_scale: 1.0,
            head: if self.is("tie_word_embeddings")? {
                OutputHead::Tied
            } else {
                OutputHead::Own
            },
            head_bias: Presence::Absent,
            logit_scale: 1.0,
            logit_softcap: None,
        })
    }

    fn rope(&self, head_dim: usize, n_ctx_train: usize) -> Result<RopeDescriptor, LoadError> {
        // New layout: `rope_parameters` holds everything. Old: `rope_theta` at the top, the rest in `rope_scaling`.
        let key = if self.get("rope_parameters").is_some() {
            "rope_parameters"
        } else {
            "rope_scaling"
        };
        let parameters = Self {
            path: self.path.clone(),
            values: match self.get(key) {
                Some(Value::Object(values)) => values.clone(),
                Some(_) => return Err(self.wrong(key, "an object")),
                None => Map::new(),
            },
        };
        let base = match parameters.opt_f32("rope_theta")? {
            Some(base) => Some(base),
            None => self.opt_f32("rope_theta")?,
        };
        let part = self.opt_f32("partial_rotary_factor")?.unwrap_or(1.0);
        Ok(RopeDescriptor {
            style: RopeStyle::Neox,
            head_dim,
            n_dims: (head_dim as f32 * part) as usize,
            base: base.unwrap_or(10_000.0),
            scaling: parameters.rope_scaling(n_ctx_train)?,
            has_freq_factors: false,
        })
    }

    /// Reads `self` as the object that describes a scaling.
    fn rope_scaling(&self, n_ctx_train: usize) -> Result<RopeScaling, LoadError> {
        let kind = self.get("rope_type").or_else(|| self.get("type"));
        let number = |key: &str| self.opt_f32(key)?.ok_or_else(|| self.wrong(key, "a number"));
        let original_context = self
            .opt_usize("original_max_position_embeddings")?
            .unwrap_or(n_ctx_train);
        match kind.and_then(Value::as_str) {
            None | Some("default") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear {
                factor: number("factor")?,
            }),
            Some("llama3") => Ok(RopeScaling::Llama3 {
                factor: number("factor")?,
                low_freq_factor: number("low_freq_factor")?,
                high_freq_factor: number("high_freq_factor")?,
                original_context,
            }),
            Some("yarn")
                if self.get("mscale").is_none() && self.get("truncate") != Some(&Value::Bool(false)) =>
            {
                Ok(RopeScaling::Yarn {
                    factor: number("factor")?,
                    original_context,
                    beta_fast: self.opt_f32("beta_fast")?.unwrap_or(32.0),
                    beta_slow: self.opt_f32("beta_slow")?.unwrap_or(1.0),
                    magnitude: self.opt_f32("attention_factor")?,
                })
            }
            Some(kind) => Err(LoadError::BadConfig {
                path: self.path.clone(),
                reason: format!("this variant of rope scaling `{kind}` is not supported"),
            }),
        }
    }
}
