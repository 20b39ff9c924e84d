//! [`HfSizes`]: the sizes that almost every Hugging Face configuration states, and the names of its fields.
//!
//! The rule of an architecture makes keys of them. Invariant: the names of a field are in one list here, for the
//! readers and for the defaults of classes.

use serde_json::Value;
use tokenmill_backend::Activation;

use crate::{LoadError, Presence, RopeDescriptor};

use super::HfConfig;

/// The names of a field, the first of which that a configuration has counts.
pub(super) type Fields = &'static [&'static str];

pub(super) const N_LAYERS: Fields = &["num_hidden_layers", "n_layer", "num_layers"];
pub(super) const N_EMBD: Fields = &["hidden_size", "n_embd", "n_embed"];
pub(super) const N_HEADS: Fields = &["num_attention_heads", "n_head"];
pub(super) const N_FF: Fields = &["intermediate_size", "ffn_hidden_size", "n_inner"];
pub(super) const N_CTX: Fields = &[
    "max_position_embeddings",
    "n_positions",
    "seq_length",
    "model_max_length",
];
pub(super) const NORM_EPS: Fields = &[
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "norm_epsilon",
    "norm_eps",
];
pub(super) const ACTIVATION: Fields = &[
    "hidden_activation",
    "hidden_act",
    "activation_function",
    "activation",
    "mlp_hidden_act",
];

/// The supported names of activations, for errors.
const ACTIVATIONS: &str =
    "one of silu, swish, swiglu, gelu, gelu_pytorch_tanh, gelu_new, gelu_fast, relu, relu2";

/// Largest accepted number of layers. It bounds the size of lists.
const MAX_LAYERS: usize = 4096;

/// The sizes of a decoder whose layers are alike.
pub(crate) struct HfSizes {
    pub(super) n_layers: usize,
    pub(super) n_vocab: usize,
    pub(super) n_embd: usize,
    pub(super) n_ctx_train: usize,
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    /// Width of a head.
    pub(super) head_dim: usize,
    /// Width of each layer's dense network.
    pub(super) n_ff: Vec<usize>,
    pub(super) norm_eps: f32,
    /// The rope of layers without a window.
    pub(super) rope: RopeDescriptor,
}

impl HfSizes {
    /// Reads the sizes.
    pub(super) fn of(config: &HfConfig) -> Result<Self, LoadError> {
        let n_layers = match config
            .n_kinds()
            .filter(|_| N_LAYERS.iter().all(|key| config.get(key).is_none()))
        {
            Some(n_kinds) => n_kinds,
            None => config.first_usize(N_LAYERS)?,
        };
        if n_layers > MAX_LAYERS {
            return Err(config.wrong(N_LAYERS[0], "a count of layers"));
        }
        let n_embd = config.first_usize(N_EMBD)?;
        let n_heads = config.first_usize(N_HEADS)?;
        let n_ff = if config.get(N_FF[0]).is_some_and(Value::is_array) {
            // Some configurations have a width for each layer.
            let n_ff = config.counts(N_FF[0])?.unwrap_or_default();
            if n_ff.len() != n_layers {
                return Err(config.wrong(N_FF[0], "a count for each layer"));
            }
            n_ff
        } else {
            vec![config.first_usize(N_FF)?; n_layers]
        };
        let head_dim = config.opt_usize("head_dim")?.unwrap_or(n_embd / n_heads.max(1));
        let n_kv_heads = config.opt_first_usize(&["num_key_value_heads", "num_kv_heads"])?;
        Ok(Self {
            n_layers,
            n_vocab: config.count("vocab_size")?,
            n_embd,
            n_ctx_train: config.first_usize(N_CTX)?,
            n_heads,
            n_kv_heads: n_kv_heads.unwrap_or(n_heads),
            head_dim,
            n_ff,
            norm_eps: match config.first_f32(NORM_EPS)? {
                Some(eps) => eps,
                None => return Err(config.wrong(NORM_EPS[0], "a number")),
            },
            rope: config.rope("full_attention", head_dim)?,
        })
    }
}

impl HfConfig {
    /// Returns the number of layers whose kinds are listed or spelled, a letter for each.
    fn n_kinds(&self) -> Option<usize> {
        let listed = self.get("layers_block_type").and_then(Value::as_array);
        let spelled = self.get("hybrid_override_pattern").and_then(Value::as_str);
        (listed.map(Vec::len)).or(spelled.map(|kinds| kinds.chars().count()))
    }

    /// Converts a boolean, false if it is missing, to a [`Presence`].
    pub(super) fn presence(&self, key: &str) -> Result<Presence, LoadError> {
        Ok(Presence::of(self.is(key)?))
    }

    /// Reads the activation of the feed-forward networks.
    pub(super) fn activation(&self) -> Result<Activation, LoadError> {
        let found = ACTIVATION.iter().find(|key| self.get(key).is_some());
        let key = found.unwrap_or(&"hidden_act");
        match self.get(key).and_then(Value::as_str) {
            Some("silu" | "swish" | "swiglu") => Ok(Activation::Silu),
            Some("gelu" | "gelu_python") => Ok(Activation::GeluErf),
            Some("gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_new" | "gelu_fast" | "gelu_accurate") => {
                Ok(Activation::GeluTanh)
            }
            Some("relu") => Ok(Activation::Relu),
            Some("relu2") => Ok(Activation::ReluSquared),
            _ => Err(self.wrong(key, ACTIVATIONS)),
        }
    }

    /// Refuses an activation other than the one that a network requires.
    pub(super) fn require_activation(&self, expected: Activation, name: &str) -> Result<(), LoadError> {
        if self.activation()? == expected {
            return Ok(());
        }
        let key = ACTIVATION[..2].iter().find(|key| self.get(key).is_some());
        Err(self.wrong(key.unwrap_or(&"hidden_act"), name))
    }

    /// Refuses a `hidden_activation` other than GELU by the hyperbolic tangent, for classes that ignore `hidden_act`.
    pub(super) fn require_hidden_gelu(&self) -> Result<(), LoadError> {
        match self.get("hidden_activation") {
            Some(_) => self.require_activation(Activation::GeluTanh, "gelu_pytorch_tanh"),
            None => Ok(()),
        }
    }
}
