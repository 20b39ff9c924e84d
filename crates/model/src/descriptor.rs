//! [`Descriptor`]: everything that makes one decoder network differ from another, as data.
//!
//! It stands between files and the forward pass: an architecture's file turns metadata into a descriptor, the loader turns
//! a descriptor and weights into a network, and the forward pass follows it without knowing an architecture's name.
//! Invariant: a descriptor that passed [`Descriptor::validate`] describes a network that can be built and run.

use tokenmill_backend::{Activation, LayerShape, NetworkShape, NormKind};

use crate::{
    LoadError, RopeDescriptor,
    error::{check, check_positive},
};

/// A decoder network, without its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Descriptor {
    /// Name of the architecture, as the file gives it.
    pub arch: String,
    /// Tokens in the vocabulary.
    pub n_vocab: usize,
    /// Width of a hidden state.
    pub n_embd: usize,
    /// Positions the model was made for.
    pub n_ctx_train: usize,
    /// Multiplies the token embeddings.
    pub embedding_scale: f32,
    /// All norms of the network but those of q and k are of this kind.
    pub norm: NormDescriptor,
    /// The distinct rotary embeddings of the layers.
    pub ropes: Vec<RopeDescriptor>,
    /// The layers, first to last.
    pub layers: Vec<LayerDescriptor>,
    /// Multiplies what a layer adds to the hidden state.
    pub residual_scale: f32,
    /// Where the output head's weights are.
    pub head: OutputHead,
    /// Whether the output head has a bias.
    pub head_bias: Presence,
    /// Multiplies the logits.
    pub logit_scale: f32,
    /// Caps the logits: `cap * tanh(x / cap)`.
    pub logit_softcap: Option<f32>,
}

/// A kind of norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormDescriptor {
    /// RMS or layer norm.
    pub kind: NormKind,
    /// Added under the square root.
    pub eps: f32,
    /// Whether there is a bias in addition to the weight.
    pub bias: Presence,
}

/// One layer: attention and a feed-forward network.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerDescriptor {
    /// Attention.
    pub attention: AttentionDescriptor,
    /// The feed-forward network.
    pub ffn: FfnDescriptor,
    /// Where the layer has norms.
    pub norms: NormPlacement,
    /// How attention and feed-forward network follow each other.
    pub residual: Residual,
}

/// Attention of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionDescriptor {
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Width of a query and key head.
    pub head_dim_k: usize,
    /// Width of a value head.
    pub head_dim_v: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// Index in [`Descriptor::ropes`]; `None` for a layer without positions.
    pub rope: Option<usize>,
    /// How many positions a query sees, its own included; `None` sees all.
    pub window: Option<usize>,
    /// Caps the scores.
    pub softcap: Option<f32>,
    /// Whether each head has an attention sink.
    pub has_sinks: bool,
    /// Norm of queries and keys before rope.
    pub qk_norm: Option<QkNorm>,
    /// Biases of q, k and v.
    pub qkv_bias: Presence,
    /// Bias of the output projection.
    pub output_bias: Presence,
}

/// What a norm of queries and keys spans. It is an RMS norm with a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Each head by itself; one weight of the width of a head.
    Head,
    /// All heads of a token together.
    Row,
}

/// The feed-forward network of one layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FfnDescriptor {
    /// Width inside.
    pub n_ff: usize,
    /// Its function.
    pub activation: Activation,
    /// Whether there is a gate: `down(f(gate(x)) * up(x))` instead of `down(f(up(x)))`.
    pub is_gated: bool,
    /// Biases of its matrices.
    pub bias: Presence,
}

/// Where a layer has norms, for attention and feed-forward network alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// Before each half: `x + f(norm(x))`.
    Pre,
    /// After each half: `x + norm(f(x))`.
    Post,
    /// Both.
    PreAndPost,
}

impl NormPlacement {
    /// Whether the input of a half is normed.
    pub fn has_pre(self) -> bool {
        self != Self::Post
    }

    /// Whether the output of a half is normed.
    pub fn has_post(self) -> bool {
        self != Self::Pre
    }
}

/// How the halves of a layer follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residual {
    /// The feed-forward network sees what attention added.
    Sequential,
    /// Both see the layer's input, through one norm.
    Parallel,
    /// Both see the layer's input, each through its own norm.
    ParallelTwoNorms,
}

/// Where the output head's weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputHead {
    /// In their own tensor.
    Own,
    /// In the token embedding.
    Tied,
    /// In their own tensor if there is one, else in the token embedding.
    OwnIfPresent,
}

/// Whether an optional tensor exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It does not.
    Absent,
    /// It is used where the file has it.
    Optional,
    /// A file without it is broken.
    Required,
}

impl Descriptor {
    /// Checks that all sizes fit together.
    ///
    /// # Errors
    /// [`LoadError::BadValue`] for the first that does not.
    pub fn validate(&self) -> Result<(), LoadError> {
        check("vocabulary size", self.n_vocab, self.n_vocab > 0, "at least 1")?;
        check(
            "embedding length",
            self.n_embd,
            (1..=MAX_WIDTH).contains(&self.n_embd),
            WIDTH,
        )?;
        check(
            "context length",
            self.n_ctx_train,
            self.n_ctx_train > 0,
            "at least 1",
        )?;
        check(
            "layer count",
            self.layers.len(),
            !self.layers.is_empty(),
            "at least 1",
        )?;
        check(
            "norm epsilon",
            self.norm.eps,
            self.norm.eps >= 0.0 && self.norm.eps.is_finite(),
            "a number, not negative",
        )?;
        for (what, scale) in [
            ("embedding scale", self.embedding_scale),
            ("residual scale", self.residual_scale),
            ("logit scale", self.logit_scale),
        ] {
            check(what, scale, scale.is_finite(), "a number")?;
        }
        check_positive("logit softcap", self.logit_softcap.unwrap_or(1.0))?;
        for rope in &self.ropes {
            rope.validate()?;
        }
        for layer in &self.layers {
            self.validate_layer(layer)?;
        }
        Ok(())
    }

    fn validate_layer(&self, layer: &LayerDescriptor) -> Result<(), LoadError> {
        let attention = &layer.attention;
        check(
            "head count",
            attention.n_heads,
            (1..=MAX_WIDTH).contains(&attention.n_heads),
            "at least 1",
        )?;
        check(
            "KV head count",
            attention.n_kv_heads,
            attention.n_kv_heads > 0 && attention.n_heads.is_multiple_of(attention.n_kv_heads),
            "a divisor of the head count",
        )?;
        for head_dim in [attention.head_dim_k, attention.head_dim_v] {
            check(
                "head width",
                head_dim,
                (1..=MAX_WIDTH / attention.n_heads).contains(&head_dim),
                WIDTH,
            )?;
        }
        check_positive("attention scale", attention.scale)?;
        check_positive("attention softcap", attention.softcap.unwrap_or(1.0))?;
        check(
            "feed-forward length",
            layer.ffn.n_ff,
            (1..=MAX_WIDTH).contains(&layer.ffn.n_ff),
            WIDTH,
        )?;
        check(
            "sliding window",
            attention.window.unwrap_or(1),
            attention.window != Some(0),
            "at least 1",
        )?;
        check(
            "norm placement of a parallel layer",
            format_args!("{:?}", layer.norms),
            layer.residual == Residual::Sequential || layer.norms == NormPlacement::Pre,
            "Pre",
        )?;
        if let Some(rope_idx) = attention.rope {
            let n_dims = self.ropes[rope_idx].n_dims;
            check(
                "rope dimension count",
                n_dims,
                n_dims <= attention.head_dim_k,
                "at most the width of a head",
            )?;
            let head_dim = self.ropes[rope_idx].head_dim;
            assert_eq!(
                head_dim, attention.head_dim_k,
                "a rope is made for the heads that use it"
            );
        }
        Ok(())
    }

    /// The widths that a backend prepares for.
    pub fn shape(&self) -> NetworkShape {
        NetworkShape {
            n_embd: self.n_embd,
            layers: (self.layers.iter())
                .map(|layer| LayerShape {
                    n_heads: layer.attention.n_heads,
                    n_kv_heads: layer.attention.n_kv_heads,
                    head_dim_k: layer.attention.head_dim_k,
                    head_dim_v: layer.attention.head_dim_v,
                    n_ff: layer.ffn.n_ff,
                })
                .collect(),
        }
    }

    /// The width of the widest window, where every layer has one.
    pub fn kv_window(&self) -> Option<usize> {
        self.layers
            .iter()
            .map(|layer| layer.attention.window)
            .try_fold(0, |widest, window| window.map(|window| window.max(widest)))
    }
}

/// Larger widths than this are taken for nonsense: sums of products of such numbers could overflow.
const MAX_WIDTH: usize = 1 << 24;
const WIDTH: &str = "between 1 and 2^24";
