//! [`HfConfig`]: typed access to a Hugging Face `config.json` for the architectures, in its old and new
//! layout.
//!
//! `GgufConfig` is its GGUF twin; the two formats name the same things differently. Weights of such folders
//! are not reordered, so rope pairs are always half a head apart.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tokenmill_gguf::RegularFile;

use tokenmill_backend::{Activation, NormKind};

use crate::{
    AttentionDescriptor, DenseDescriptor, Descriptor, FfnDescriptor, GateUpOrder, LayerDescriptor, LoadError,
    MixerDescriptor, NormDescriptor, NormPlacement, OutputHead, Presence, Residual,
};

use super::{class_defaults, gguf_config::nextn_layers};

/// A parsed `config.json`.
#[derive(Clone)]
pub(crate) struct HfConfig {
    path: PathBuf,
    values: Map<String, Value>,
}

/// Returns the path of a key in an object or its nested objects, with dots between the parts.
fn path_in(values: &Map<String, Value>, key: &str, depth: usize) -> Option<String> {
    if values.get(key).is_some_and(|value| !value.is_null()) {
        return Some(key.to_owned());
    }
    if depth == 0 {
        return None;
    }
    let objects = (values.iter()).filter_map(|(name, value)| Some((name, value.as_object()?)));
    let mut of_network = objects.filter(|(name, _)| !name.contains("vision") && !name.contains("audio"));
    of_network.find_map(|(name, object)| Some(format!("{name}.{}", path_in(object, key, depth - 1)?)))
}

/// Returns the JSON with Python's non-JSON numbers, such as `Infinity`, as strings. Null would count as
/// missing.
fn with_quoted_infinities(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len());
    let (mut rest, mut is_in_string) = (json, false);
    while let Some(&byte) = rest.first() {
        let names: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
        let found = names
            .into_iter()
            .find(|name| !is_in_string && rest.starts_with(name));
        let n_read = match (found, byte) {
            (Some(name), _) => {
                out.extend([b"\"", name, b"\""].concat());
                rest = &rest[name.len()..];
                continue;
            }
            (None, b'\\') if is_in_string => 2.min(rest.len()),
            (None, b'"') => {
                is_in_string = !is_in_string;
                1
            }
            _ => 1,
        };
        out.extend(&rest[..n_read]);
        rest = &rest[n_read..];
    }
    out
}

/// The supported names of activations, for errors.
const ACTIVATIONS: &str =
    "one of silu, swish, swiglu, gelu, gelu_pytorch_tanh, gelu_new, gelu_fast, relu, relu2";

/// Largest accepted size in bytes; real files have a few kilobytes.
const MAX_CONFIG_BYTES: usize = 16 << 20;
/// Largest accepted number of layers. It bounds the size of lists.
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
        let mut values: Map<String, Value> = serde_json::from_slice(&with_quoted_infinities(&bytes))
            .map_err(|error| LoadError::BadConfig {
                path: path.to_owned(),
                reason: error.to_string(),
            })?;
        // In a model with several networks, use the text network.
        if let Some(Value::Object(text)) = values.remove("text_config") {
            let own = text.into_iter().filter(|(key, _)| key != "architectures");
            values.extend(own);
        }
        Ok(Self {
            path: path.to_owned(),
            values,
        })
    }

    /// Returns the configuration with its class's defaults for missing fields.
    pub(super) fn with_class_defaults(&self, class: &str) -> Self {
        let mut filled = self.clone();
        class_defaults::fill(class, &mut filled.values);
        filled
    }

    /// Returns the first class of `architectures`.
    pub(crate) fn class(&self) -> Result<&str, LoadError> {
        self.values
            .get("architectures")
            .and_then(|classes| classes.get(0)?.as_str())
            .ok_or_else(|| self.wrong("architectures", "a list of class names"))
    }

    /// Returns the configuration of a module in a folder next to this file; `None` if there is none.
    pub(super) fn beside(&self, name: &str) -> Result<Option<Self>, LoadError> {
        let path = self.path.with_file_name(name);
        if path.is_file() {
            Self::open(&path).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Returns an error about this file.
    pub(crate) fn bad(&self, reason: String) -> LoadError {
        LoadError::BadConfig {
            path: self.path.clone(),
            reason,
        }
    }

    /// Returns the error for a value of the wrong kind.
    pub(crate) fn wrong(&self, key: &str, expected: &str) -> LoadError {
        LoadError::BadConfig {
            path: self.path.clone(),
            reason: match self.values.get(key) {
                Some(found) => format!("`{key}` is {found}, expected {expected}"),
                None => format!("`{key}` is missing, expected {expected}"),
            },
        }
    }

    /// Returns a value that is present and not null.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    /// Returns the path of a key with a value: at the top, or in an object such as `rope_scaling`. Objects of
    /// encoders do not count.
    pub(super) fn path_of(&self, key: &str) -> Option<String> {
        /// Rope objects are nested in another object.
        const MAX_DEPTH: usize = 2;
        path_in(&self.values, key, MAX_DEPTH)
    }

    /// Returns whether there is a value, even null.
    pub(super) fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// Reads an optional count.
    pub(crate) fn opt_usize(&self, key: &str) -> Result<Option<usize>, LoadError> {
        let number = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        self.get(key)
            .map(|value| number(value).ok_or_else(|| self.wrong(key, "a count")))
            .transpose()
    }

    /// Reads a required count, under the first of its names that exists.
    fn usize(&self, keys: &[&'static str]) -> Result<usize, LoadError> {
        for key in keys {
            if let Some(count) = self.opt_usize(key)? {
                return Ok(count);
            }
        }
        Err(self.wrong(keys[0], "a count"))
    }

    /// Reads an optional number.
    pub(super) fn opt_f32(&self, key: &str) -> Result<Option<f32>, LoadError> {
        self.get(key)
            .map(|value| value.as_f64().ok_or_else(|| self.wrong(key, "a number")))
            .transpose()
            .map(|number| number.map(|number| number as f32))
    }

    /// Reads a required number.
    pub(super) fn f32(&self, key: &str) -> Result<f32, LoadError> {
        self.opt_f32(key)?.ok_or_else(|| self.wrong(key, "a number"))
    }

    /// Reads an optional list of numbers.
    pub(super) fn opt_f32s(&self, key: &str) -> Result<Option<Vec<f32>>, LoadError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let number = |value: &Value| value.as_f64().map(|number| number as f32);
        let numbers = value
            .as_array()
            .and_then(|values| values.iter().map(number).collect());
        numbers
            .map(Some)
            .ok_or_else(|| self.wrong(key, "a list of numbers"))
    }

    /// Reads an optional boolean.
    pub(super) fn opt_bool(&self, key: &str) -> Result<Option<bool>, LoadError> {
        self.get(key)
            .map(|value| value.as_bool().ok_or_else(|| self.wrong(key, "true or false")))
            .transpose()
    }

    /// Reads a boolean that defaults to false.
    pub(super) fn is(&self, key: &str) -> Result<bool, LoadError> {
        Ok(self.opt_bool(key)?.unwrap_or(false))
    }

    /// Converts a boolean to a [`Presence`].
    pub(super) fn presence(&self, key: &str) -> Result<Presence, LoadError> {
        Ok(if self.is(key)? {
            Presence::Required
        } else {
            Presence::Absent
        })
    }

    /// Returns the window of each layer: from `layer_types`, or else from `is_sliding`, called with the layer's
    /// index.
    pub(super) fn windows(
        &self,
        n_layers: usize,
        is_sliding: impl Fn(usize) -> bool,
    ) -> Result<Vec<Option<usize>>, LoadError> {
        let kinds = ["full_attention", "sliding_attention"];
        let listed = self.layers_of_two_kinds(kinds, n_layers)?;
        let window = self.opt_usize("sliding_window")?;
        if window.is_none() && listed.as_ref().is_some_and(|listed| listed.contains(&true)) {
            return Err(self.wrong(
                "sliding_window",
                "a count, since `layer_types` has layers with a window",
            ));
        }
        let has_window = |layer_idx: usize| match &listed {
            Some(listed) => listed[layer_idx],
            None => is_sliding(layer_idx),
        };
        Ok((0..n_layers)
            .map(|layer_idx| window.filter(|_| has_window(layer_idx)))
            .collect())
    }

    /// Returns whether windows are enabled. `layer_types` may name layers with a window only then.
    pub(super) fn uses_windows(&self, n_layers: usize) -> Result<bool, LoadError> {
        let key = "use_sliding_window";
        let is_used = self.is(key)?;
        let kinds = ["full_attention", "sliding_attention"];
        let listed = self.layers_of_two_kinds(kinds, n_layers)?;
        if !is_used && listed.is_some_and(|listed| listed.contains(&true)) {
            return Err(self.wrong(key, "true, since `layer_types` has layers with a window"));
        }
        Ok(is_used)
    }

    /// Describes the network that most decoders are variations of; see the GGUF twin.
    pub(super) fn decoder(&self) -> Result<Descriptor, LoadError> {
        let counts = ["num_hidden_layers", "n_layer", "num_layers"];
        let n_layers = match self
            .n_kinds()
            .filter(|_| counts.iter().all(|key| self.get(key).is_none()))
        {
            Some(n_kinds) => n_kinds,
            None => self.usize(&counts)?,
        };
        if n_layers > MAX_LAYERS {
            return Err(self.wrong("num_hidden_layers", "a count of layers"));
        }
        let n_embd = self.usize(&["hidden_size", "n_embd", "n_embed"])?;
        let n_ctx_train = self.n_ctx_train()?;
        let n_heads = self.usize(&["num_attention_heads", "n_head"])?;
        let n_kv_heads = match self.opt_usize("num_key_value_heads")? {
            Some(n_kv_heads) => Some(n_kv_heads),
            None => self.opt_usize("num_kv_heads")?,
        };
        let n_ff_keys = ["intermediate_size", "ffn_hidden_size", "n_inner"];
        let n_ff = if self.get(n_ff_keys[0]).is_some_and(Value::is_array) {
            // Some configurations have a width for each layer.
            let n_ff = self.counts(n_ff_keys[0])?.unwrap_or_default();
            if n_ff.len() != n_layers {
                return Err(self.wrong(n_ff_keys[0], "a count for each layer"));
            }
            n_ff
        } else {
            vec![self.usize(&n_ff_keys)?; n_layers]
        };
        let head_dim = self.opt_usize("head_dim")?.unwrap_or(n_embd / n_heads.max(1));
        let activation = self.activation()?;
        let layer = |n_ff| LayerDescriptor {
            mixer: MixerDescriptor::Attention(AttentionDescriptor {
                n_heads,
                n_kv_heads: n_kv_heads.unwrap_or(n_heads),
                head_dim_k: head_dim,
                head_dim_v: head_dim,
                scale: 1.0 / (head_dim as f32).sqrt(),
                rope: Some(0),
                is_causal: true,
                window: None,
                is_chunked: false,
                softcap: None,
                has_sinks: false,
                alibi: None,
                temperature: None,
                qk_norm: None,
                is_normed_after_rope: false,
                takes_keys_as_values: false,
                has_v_norm: false,
                shares_kv_of: None,
                output_gate: None,
                qkv_bias: Presence::Absent,
                output_bias: Presence::Absent,
            }),
            ffn: FfnDescriptor::Dense(DenseDescriptor {
                n_ff,
                activation,
                xielu: None,
                cutoff: None,
                joined: GateUpOrder::GateFirst,
                is_gated: true,
                bias: Presence::Absent,
            }),
            norms: NormPlacement::Pre,
            residual: Residual::Sequential,
            has_output_scale: false,
        };
        Ok(Descriptor {
            arch: String::new(),
            n_vocab: self.usize(&["vocab_size"])?,
            n_embd,
            n_ctx_train,
            embedding_scale: 1.0,
            reads_hidden: false,
            token_types: Presence::Absent,
            n_learned_positions: None,
            embedding_norm: None,
            norm: NormDescriptor {
                kind: NormKind::Rms,
                eps: self.norm_eps()?,
                bias: Presence::Absent,
            },
            post_norm_eps: None,
            layer_embeddings: None,
            alt_up: None,
            ropes: vec![self.rope("full_attention", head_dim)?],
            layers: n_ff.into_iter().map(layer).collect(),
            tensor_names: &[],
            residual_scale: 1.0,
            has_output_norm: true,
            pooling: None,
            head: match self.opt_bool("tie_word_embeddings")? {
                Some(false) => OutputHead::Own,
                // If a folder has both tensors nevertheless, its own head is used.
                Some(true) | None => OutputHead::OwnIfPresent,
            },
            head_bias: Presence::Absent,
            logit_scale: 1.0,
            logit_softcap: None,
            row_factors: Vec::new(),
            n_deep_inputs: 0,
            tower: None,
            control: Vec::new(),
            ignorable: nextn_layers(n_layers, self.opt_usize("num_nextn_predict_layers")?.unwrap_or(0)),
        })
    }

    /// Returns the number of layers whose kinds are listed or spelled, a letter for each.
    fn n_kinds(&self) -> Option<usize> {
        let listed = self
            .get("layers_block_type")
            .and_then(Value::as_array)
            .map(Vec::len);
        let spelled = self.get("hybrid_override_pattern").and_then(Value::as_str);
        listed.or(spelled.map(|kinds| kinds.chars().count()))
    }

    fn n_ctx_train(&self) -> Result<usize, LoadError> {
        let keys = [
            "max_position_embeddings",
            "n_positions",
            "seq_length",
            "model_max_length",
        ];
        self.usize(&keys)
    }

    fn norm_eps(&self) -> Result<f32, LoadError> {
        let keys = [
            "rms_norm_eps",
            "layer_norm_eps",
            "layer_norm_epsilon",
            "norm_epsilon",
            "norm_eps",
        ];
        for key in keys {
            if let Some(eps) = self.opt_f32(key)? {
                return Ok(eps);
            }
        }
        Err(self.wrong(keys[0], "a number"))
    }

    pub(super) fn activation(&self) -> Result<Activation, LoadError> {
        let keys = [
            "hidden_activation",
            "hidden_act",
            "activation_function",
            "activation",
            "mlp_hidden_act",
        ];
        let Some(key) = keys.into_iter().find(|key| self.get(key).is_some()) else {
            return Err(self.wrong("hidden_act", ACTIVATIONS));
        };
        match self.get(key).and_then(Value::as_str) {
            Some("silu" | "swish" | "swiglu") => Ok(Activation::Silu),
            Some("gelu" | "gelu_python") => Ok(Activation::GeluErf),
            Some("gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_new" | "gelu_fast" | "gelu_accurate") => {
                Ok(Activation::GeluTanh)
            }
            Some("relu") => Ok(Activation::Relu),
            Some("relu2") => Ok(Activation::ReluSquared),
            // Apertus sets its own function, which has parameters, so it is none of these.
            Some("xielu") if self.class()? == "ApertusForCausalLM" => Ok(Activation::Identity),
            _ => Err(self.wrong(key, ACTIVATIONS)),
        }
    }

    /// Refuses an activation other than the one that a network requires.
    pub(super) fn require_activation(&self, expected: Activation, name: &str) -> Result<(), LoadError> {
        if self.activation()? == expected {
            return Ok(());
        }
        let key = ["hidden_activation", "hidden_act"]
            .into_iter()
            .find(|key| self.get(key).is_some());
        Err(self.wrong(key.unwrap_or("hidden_act"), name))
    }

    /// Does the same as [`Self::require_activation`], for classes that read only `hidden_activation` and ignore
    /// `hidden_act`.
    pub(super) fn require_hidden_activation(
        &self,
        expected: Activation,
        name: &str,
    ) -> Result<(), LoadError> {
        if self.get("hidden_activation").is_none() {
            return Ok(());
        }
        self.require_activation(expected, name)
    }

    /// Returns the object under a key, or an empty one.
    pub(super) fn object(&self, key: &str) -> Result<Self, LoadError> {
        Ok(Self {
            path: self.path.clone(),
            values: match self.get(key) {
                Some(Value::Object(values)) => values.clone(),
                Some(_) => return Err(self.wrong(key, "an object")),
                None => Map::new(),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinities_outside_strings_become_strings() {
        let check = |json: &str, expected: &str| {
            assert_eq!(with_quoted_infinities(json.as_bytes()), expected.as_bytes());
        };
        check(
            "[0.0, Infinity, -Infinity, NaN]",
            r#"[0.0, "Infinity", "-Infinity", "NaN"]"#,
        );
        check(
            r#"{"Infinity": "a\"NaN", "b": NaN}"#,
            r#"{"Infinity": "a\"NaN", "b": "NaN"}"#,
        );
        check(r#""\"#, r#""\"#);
    }
}
